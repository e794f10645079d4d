#include "server/openai/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/request_cases.h"

namespace server::openai {
namespace {

using ::testing::HasSubstr;

ApiResult<ChatRequest> ParseChat(const std::string& body) {
  const auto json = ParseRequestBody(body);
  return json ? ParseChatRequest(*json) : std::unexpected(json.error());
}

ApiResult<CompletionRequest> ParseCompletion(const std::string& body) {
  const auto json = ParseRequestBody(body);
  return json ? ParseCompletionRequest(*json) : std::unexpected(json.error());
}

ChatRequest MustParse(const std::string& body) {
  auto request = ParseChat(body);
  EXPECT_TRUE(request) << request.error().message;
  return request ? *request : ChatRequest();
}

TEST(OpenAiRequestTest, WrongChatRequestsNameTheField) {
  const auto cases = RequestCases("openai/testdata/bad_chat_requests.txt");
  ASSERT_GT(cases.size(), 60u);
  for (const RequestCase& one : cases) {
    const auto request = ParseChat(one.body);
    ASSERT_FALSE(request) << one.body;
    EXPECT_EQ(request.error().status, 400) << one.body;
    EXPECT_EQ(request.error().param, one.param) << one.body << "\n" << request.error().message;
    EXPECT_EQ(request.error().message.find('\n'), std::string::npos) << request.error().message;
    if (!one.param.empty() && !one.param.starts_with("logit_bias.")) {
      EXPECT_THAT(request.error().message, HasSubstr(one.param));
    }
  }
}

TEST(OpenAiRequestTest, WrongCompletionRequestsNameTheField) {
  const auto cases = RequestCases("openai/testdata/bad_completion_requests.txt");
  ASSERT_GT(cases.size(), 10u);
  for (const RequestCase& one : cases) {
    const auto request = ParseCompletion(one.body);
    ASSERT_FALSE(request) << one.body;
    EXPECT_EQ(request.error().param, one.param) << one.body << "\n" << request.error().message;
  }
}

TEST(OpenAiRequestTest, NestingAndEncodingAreChecked) {
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_THAT(ParseChat("{\"messages\": " + deep + "}").error().message, HasSubstr("5001"));
  EXPECT_FALSE(ParseChat("{\"a\": " + std::string(100000, '[')));
  EXPECT_THAT(
      ParseChat("{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}").error().message,
      HasSubstr("UTF-8"));
  EXPECT_FALSE(ParseChat("{\"temperature\": 1e999, \"messages\": []}"));
  // Brackets inside strings nest nothing.
  EXPECT_TRUE(ParseChat("{\"messages\": [{\"role\": \"user\", \"content\": \"" +
                        std::string(500, '[') + "\\\"\"}]}"));
}

TEST(OpenAiRequestTest, EverySettingArrives) {
  const ChatRequest request = MustParse(R"({
    "model": "m", "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3,
    "min_p": 0.125, "typical_p": 0.5, "seed": -1, "n": 2, "stop": ["a", "b"], "stream": true,
    "stream_options": {"include_usage": true}, "presence_penalty": 1, "frequency_penalty": -1,
    "repeat_penalty": 1.5, "repeat_last_n": 9, "logit_bias": {"5": -100, "6": 2}, "logprobs": true,
    "top_logprobs": 4, "ignore_eos": true, "timeout_ms": 1500, "dry_multiplier": 0.5,
    "chat_template_kwargs": {"enable_thinking": false}, "user": "someone", "metadata": {},
    "messages": [{"role": "user", "content": "hi"}]})");
  const GenerationOptions& options = request.options;
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.max_tokens, 7u);
  EXPECT_EQ(options.sampling.temperature, 0.5F);
  EXPECT_EQ(options.sampling.top_p, 0.25F);
  EXPECT_EQ(options.sampling.top_k, 3);
  EXPECT_EQ(options.sampling.min_p, 0.125F);
  EXPECT_EQ(options.sampling.typical_p, 0.5F);
  EXPECT_EQ(options.seed, 0xffffffffU);
  EXPECT_EQ(options.choices, 2u);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(options.stream && options.stream_usage && options.logprobs && options.ignore_end);
  EXPECT_EQ(options.sampling.presence_penalty, 1.0F);
  EXPECT_EQ(options.sampling.frequency_penalty, -1.0F);
  EXPECT_EQ(options.sampling.repeat_penalty, 1.5F);
  EXPECT_EQ(options.sampling.penalty_last_n, 9);
  EXPECT_EQ(options.sampling.dry_multiplier, 0.5F);
  ASSERT_EQ(options.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(options.sampling.logit_bias[0].token, 5);
  EXPECT_EQ(options.sampling.logit_bias[0].bias, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(options.sampling.logit_bias[1].bias, 2.0F);
  EXPECT_EQ(options.top_logprobs, 4u);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(request.template_variables, Json({{"enable_thinking", false}}));
}

TEST(OpenAiRequestTest, MessagesBecomeWhatTemplatesTake) {
  const ChatRequest request = MustParse(R"({"messages": [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"}]})");
  EXPECT_EQ(request.messages, Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"}])"));
}

TEST(OpenAiRequestTest, ToolsAndFormats) {
  const std::string head = R"({"messages": [{"role": "user", "content": "a"}], )";
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(MustParse(head + tools + "}").tools.size(), 1u);
  EXPECT_EQ(MustParse(head + tools + R"(, "tool_choice": "none"})").tool_choice.kind,
            ToolChoice::Kind::kNone);
  const ChatRequest named = MustParse(
      head + tools + R"(, "tool_choice": {"type": "function", "function": {"name": "f"}}})");
  EXPECT_EQ(named.tool_choice.kind, ToolChoice::Kind::kFunction);
  EXPECT_EQ(named.tool_choice.name, "f");
  const ChatRequest schema =
      MustParse(head + R"("response_format": {"type": "json_schema", "json_schema": {"name": "n",
      "schema": {"type": "object"}}}})");
  EXPECT_EQ(schema.format.kind, OutputFormat::Kind::kJsonSchema);
  EXPECT_EQ(schema.format.schema, Json({{"type", "object"}}));
  EXPECT_EQ(MustParse(head + R"("response_format": {"type": "json_object"}})").format.kind,
            OutputFormat::Kind::kJson);
}

TEST(OpenAiRequestTest, PromptsAreTextsOrTokens) {
  const auto parse = [](const std::string& body) {
    auto request = ParseCompletion(body);
    EXPECT_TRUE(request) << request.error().message;
    return request ? *request : CompletionRequest();
  };
  EXPECT_EQ(parse(R"({"prompt": "a"})").prompts, (std::vector<std::string>{"a"}));
  EXPECT_EQ(parse(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  EXPECT_EQ(parse(R"({"prompt": [1, 2]})").token_prompts,
            (std::vector<std::vector<std::int32_t>>{{1, 2}}));
  EXPECT_EQ(parse(R"({"prompt": [[1], [2, 3]]})").token_prompts.size(), 2u);
  EXPECT_EQ(parse(R"({"prompt": "a"})").options.max_tokens, 16u);
  EXPECT_EQ(parse(R"({"prompt": "a", "logprobs": 3})").options.top_logprobs, 3u);
}

}  // namespace
}  // namespace server::openai
