#include "server/openai/response.h"

#include <gtest/gtest.h>

namespace server::openai {
namespace {

ReplyHead Head(std::size_t choices = 1, bool usage = false) {
  return {.id = "id-1",
          .model = "m",
          .created = 5,
          .choices = choices,
          .stream_usage = usage,
          .prompt_tokens = 3,
          .piece = [](model::Token token) { return "t" + std::to_string(token); }};
}

engine::GeneratedToken Token(std::string piece) {
  return {.token = 1,
          .piece = std::move(piece),
          .log_probability = -0.5F,
          .top = {{1, -0.5F}, {2, -1.5F}}};
}

// The documents of a stream's events, and "[DONE]" as a string.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  std::size_t begin = 0;
  while (begin < stream.size()) {
    const std::size_t end = stream.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << stream;
    if (end == std::string::npos) break;
    const std::string line = stream.substr(begin, end - begin);
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    const std::string data = line.substr(6);
    events.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
    begin = end + 2;
  }
  return events;
}

std::string Stream(ReplyFormat& format, Reply& reply, const std::vector<std::string>& pieces,
                   engine::FinishReason reason = engine::FinishReason::kEnd) {
  std::string stream = format.Begin();
  for (const std::string& piece : pieces) {
    const auto update = reply.Feed(Token(piece));
    stream += format.Update(0, reply, update);
  }
  const auto update = reply.Finish(reason);
  stream += format.Update(0, reply, update);
  stream += format.EndChoice(0, reply);
  return stream + format.End({.prompt_tokens = 3, .completion_tokens = pieces.size()});
}

TEST(OpenAiResponseTest, AChatStreamHasRoleTextReasonAndUsage) {
  const auto format = MakeChatFormat(Head(1, true), false);
  Reply reply({});
  const auto events = Events(Stream(*format, reply, {"Hel", "lo"}, engine::FinishReason::kLength));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0], Json::parse(R"({"id": "id-1", "object": "chat.completion.chunk",
    "created": 5, "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant",
    "content": ""}, "logprobs": null, "finish_reason": null}], "usage": null})"));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json({{"content", "Hel"}}));
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[4]["choices"], Json::array());
  EXPECT_EQ(events[4]["usage"]["total_tokens"], 5);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST(OpenAiResponseTest, ToolCallsStreamInParts) {
  const auto format = MakeChatFormat(Head(), false);
  Reply reply({.form = {.tool_calls = true}});
  const auto events = Events(
      Stream(*format, reply,
             {"<tool_call>{\"name\": \"f\", ", "\"arguments\": {\"a\":", " 1}}", "</tool_call>"}));
  const Json& first = events[1]["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_EQ(first["index"], 0);
  EXPECT_EQ(first["function"], Json({{"name", "f"}, {"arguments", ""}}));
  EXPECT_EQ(first["id"], reply.calls()[0].id);
  EXPECT_EQ(events[2]["choices"][0]["delta"]["tool_calls"][0],
            Json({{"index", 0}, {"function", {{"arguments", "{\"a\":"}}}}));
  EXPECT_EQ(events[4]["choices"][0]["finish_reason"], "tool_calls");
}

TEST(OpenAiResponseTest, AWholeChatHasEveryPart) {
  const auto format = MakeChatFormat(Head(), true);
  Reply reply({.form = {.tool_calls = true}, .logprobs = true});
  Stream(*format, reply,
         {"<think>Hm.</think>", "Yes.", "<tool_call>{\"name\": \"f\"}</tool_call>"});
  const Reply* replies[] = {&reply};
  const Json whole = format->Whole(
      replies,
      {.prompt_tokens = 3, .cached_tokens = 2, .completion_tokens = 4, .reasoning_tokens = 1});
  EXPECT_EQ(whole["object"], "chat.completion");
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Yes.");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Hm.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            Json({{"name", "f"}, {"arguments", "{}"}}));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  ASSERT_EQ(choice["logprobs"]["content"].size(), 3u);
  const Json& token = choice["logprobs"]["content"][1];
  EXPECT_EQ(token["token"], "Yes.");
  EXPECT_EQ(token["bytes"], Json::parse("[89, 101, 115, 46]"));
  EXPECT_EQ(token["top_logprobs"][1]["token"], "t2");
}

TEST(OpenAiResponseTest, CompletionsHaveTextsEchoesAndOffsets) {
  const auto format = MakeCompletionFormat(Head(2), true, {"P"}, 2);
  Reply first({.form = {.separate_reasoning = false}, .logprobs = true});
  Reply second({.form = {.separate_reasoning = false}, .logprobs = true});
  for (Reply* reply : {&first, &second}) {
    reply->Feed(Token("<think>"));
    reply->Feed(Token("b"));
    reply->Finish(engine::FinishReason::kEnd);
  }
  const Reply* replies[] = {&first, &second};
  const Json whole = format->Whole(replies, {});
  EXPECT_EQ(whole["choices"][1]["text"], "P<think>b");
  EXPECT_EQ(whole["choices"][1]["logprobs"]["text_offset"], Json::parse("[1, 8]"));
  EXPECT_EQ(whole["choices"][0]["logprobs"]["top_logprobs"][0]["t2"], -1.5);
}

TEST(OpenAiResponseTest, BytesThatAreNoTextAreShownAsReplacement) {
  const auto format = MakeChatFormat(Head(), true);
  Reply reply({.logprobs = true});
  const auto events = Events(Stream(*format, reply, {"\xE2", "\x82", "\xAC"}));
  std::string text;
  std::size_t tokens = 0;
  for (const Json& event : events) {
    if (!event.is_object()) continue;
    const Json& choice = event["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["content"].size();
  }
  EXPECT_EQ(text, "€");
  EXPECT_EQ(tokens, 3u);
}

TEST(OpenAiResponseTest, ErrorsNameTheFieldAndEndAStream) {
  ApiError error = BadRequest("n", "'n' is wrong").error();
  EXPECT_EQ(ErrorBody(error), Json::parse(R"({"error": {"message": "'n' is wrong",
    "type": "invalid_request_error", "param": "n", "code": null}})"));
  EXPECT_EQ(ErrorBody(FromError({base::ErrorKind::kBusy, "full"}))["error"]["code"],
            "rate_limit_exceeded");
  const auto events = Events(MakeChatFormat(Head(), false)->Failure(error));
  EXPECT_EQ(events[0]["error"]["param"], "n");
  EXPECT_EQ(events[1], "[DONE]");
}

}  // namespace
}  // namespace server::openai
