#include "server/chat/reply.h"

#include <gtest/gtest.h>

namespace server {
namespace {

engine::GeneratedToken Token(std::string piece) {
  return {.token = 1, .piece = std::move(piece), .log_probability = -0.5F};
}

TEST(ReplyTest, StopStringsEndTheTextAndTheTokens) {
  Reply reply({.stop = {"END"}, .logprobs = true});
  EXPECT_EQ(reply.Feed(Token("one")).tokens.size(), 1u);
  EXPECT_TRUE(reply.Feed(Token(" E")).tokens.empty() || reply.content() == "one ");
  EXPECT_FALSE(reply.stopped());
  reply.Feed(Token("ND more"));
  EXPECT_TRUE(reply.stopped());
  reply.Feed(Token("ignored"));
  reply.Finish(engine::FinishReason::kCancelled);
  EXPECT_EQ(reply.content(), "one ");
  EXPECT_EQ(reply.stop_reason(), StopReason::kStopString);
  EXPECT_EQ(reply.stop_string(), "END");
  EXPECT_EQ(reply.tokens().size(), 2u);
}

TEST(ReplyTest, TokensOfKeptBackTextComeWhenItDoes) {
  Reply reply({.stop = {"END"}, .logprobs = true});
  EXPECT_EQ(reply.Feed(Token("E")).tokens.size(), 0u);
  EXPECT_EQ(reply.Feed(Token("N")).tokens.size(), 0u);
  const Reply::Update update = reply.Feed(Token("x"));
  EXPECT_EQ(update.tokens.size(), 3u);
  ASSERT_EQ(update.deltas.size(), 1u);
  EXPECT_EQ(update.deltas[0].text, "ENx");
}

TEST(ReplyTest, CharactersAreNeverCut) {
  Reply reply({});
  EXPECT_TRUE(reply.Feed(Token("\xE2\x82")).deltas.empty());
  EXPECT_EQ(reply.Feed(Token("\xAC")).deltas.front().text, "€");
  EXPECT_TRUE(reply.Feed(Token("\xE2")).deltas.empty());
  EXPECT_EQ(reply.Finish(engine::FinishReason::kLength).deltas.front().text, "\uFFFD");
  EXPECT_EQ(reply.content(), "€\uFFFD");
  EXPECT_EQ(reply.stop_reason(), StopReason::kLength);
}

TEST(ReplyTest, CallsGiveTheReasonAndHaveIds) {
  Reply reply({.form = {.tool_calls = true}});
  reply.Feed(Token("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":"));
  reply.Feed(Token(" 1}}</tool_call>"));
  reply.Finish(engine::FinishReason::kEnd);
  ASSERT_EQ(reply.calls().size(), 1u);
  EXPECT_EQ(reply.calls()[0].name, "f");
  EXPECT_EQ(reply.calls()[0].arguments, "{\"a\": 1}");
  EXPECT_TRUE(reply.calls()[0].id.starts_with("call_"));
  EXPECT_EQ(reply.stop_reason(), StopReason::kToolCalls);
}

TEST(ReplyTest, ReasoningTokensAreCounted) {
  Reply reply({.form = {.starts_in_reasoning = true}});
  for (const char* piece : {"Hm", ".", "</think>", "\n\n", "Yes"}) reply.Feed(Token(piece));
  reply.Finish(engine::FinishReason::kEnd);
  EXPECT_EQ(reply.reasoning(), "Hm.");
  EXPECT_EQ(reply.content(), "Yes");
  EXPECT_EQ(reply.reasoning_tokens(), 3u);
}

}  // namespace
}  // namespace server
