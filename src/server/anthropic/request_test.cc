#include "server/anthropic/request.h"

#include <gtest/gtest.h>

#include "server/request_cases.h"

namespace server::anthropic {
namespace {

ChatRequest MustParse(const std::string& body) {
  const auto json = ParseRequestBody(body);
  EXPECT_TRUE(json) << json.error().message;
  auto request = ParseMessagesRequest(*json);
  EXPECT_TRUE(request) << request.error().message;
  return request ? *request : ChatRequest();
}

TEST(AnthropicRequestTest, WrongRequestsNameTheField) {
  const auto cases = RequestCases("anthropic/testdata/bad_requests.txt");
  ASSERT_GT(cases.size(), 20u);
  for (const RequestCase& one : cases) {
    const auto json = ParseRequestBody(one.body);
    ASSERT_TRUE(json) << one.body;
    const auto request = ParseMessagesRequest(*json);
    ASSERT_FALSE(request) << one.body;
    EXPECT_EQ(request.error().param, one.param) << one.body << "\n" << request.error().message;
  }
}

TEST(AnthropicRequestTest, ConversationsWithToolsBecomeTheCommonForm) {
  const ChatRequest request = MustParse(R"({"model": "m", "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"], "top_k": 5,
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    "messages": [{"role": "user", "content": "hi"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
        {"type": "text", "text": "a"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
        "content": [{"type": "text", "text": "2"}]}]}]})");
  EXPECT_EQ(request.messages, Json::parse(R"([
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "a", "reasoning_content": "t", "tool_calls": [{"id": "c",
      "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "2", "tool_call_id": "c"}])"));
  EXPECT_EQ(request.tools, Json::parse(R"([{"type": "function", "function": {"name": "f",
    "description": "d", "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(request.tool_choice.kind, ToolChoice::Kind::kRequired);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.options.max_tokens, 9u);
  EXPECT_EQ(request.options.sampling.top_k, 5);
  EXPECT_EQ(request.options.stop, (std::vector<std::string>{"x"}));
  EXPECT_FALSE(request.continue_last);
  EXPECT_EQ(request.template_variables["enable_thinking"], false);
}

TEST(AnthropicRequestTest, AnAssistantsLastMessageIsGoneOnWith) {
  EXPECT_TRUE(MustParse(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "The answer is"}]})")
                  .continue_last);
}

TEST(AnthropicRequestTest, ThinkingIsOnWhenAskedFor) {
  EXPECT_EQ(MustParse(R"({"max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "messages": [{"role": "user", "content": "a"}]})")
                .template_variables["enable_thinking"],
            true);
}

}  // namespace
}  // namespace server::anthropic
