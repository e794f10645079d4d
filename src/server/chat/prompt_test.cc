#include "server/chat/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace server {
namespace {

using ::testing::HasSubstr;

const model::Vocabulary& Vocabulary() {
  static const auto vocabulary = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
  EXPECT_TRUE(vocabulary) << vocabulary.error().message;
  return *vocabulary;
}

model::ChatTemplate Template(std::string source = "") {
  auto chat = model::ChatTemplate::Make(std::move(source), "", "<|im_end|>");
  EXPECT_TRUE(chat) << chat.error().message;
  return *std::move(chat);
}

ChatRequest Request(const std::string& messages) {
  ChatRequest request;
  request.messages = Json::parse(messages);
  return request;
}

ChatPrompt MustMake(const ChatRequest& request, const model::ChatTemplate& chat) {
  auto prompt = MakePrompt(request, chat, Vocabulary());
  EXPECT_TRUE(prompt) << prompt.error().message;
  return prompt ? *prompt : ChatPrompt();
}

constexpr const char* kHello = R"([{"role": "system", "content": "Be brief."},
                                   {"role": "user", "content": "hi"}])";

TEST(PromptTest, ChatMlWithoutATemplate) {
  const ChatPrompt prompt = MustMake(Request(kHello), Template());
  EXPECT_EQ(prompt.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(Vocabulary().Text(prompt.tokens), prompt.text);
  EXPECT_FALSE(prompt.form.starts_in_reasoning);
}

TEST(PromptTest, MessagesEndAtBoundaries) {
  const ChatPrompt prompt = MustMake(Request(kHello), Template());
  ASSERT_EQ(prompt.boundaries.size(), 2u);
  const auto text_to = [&](std::size_t end) {
    return Vocabulary().Text(
        {prompt.tokens.begin(), prompt.tokens.begin() + static_cast<std::ptrdiff_t>(end)});
  };
  EXPECT_EQ(text_to(prompt.boundaries[0]), "<|im_start|>system\nBe brief.<|im_end|>");
  EXPECT_THAT(text_to(prompt.boundaries[1]), ::testing::EndsWith("hi<|im_end|>"));
}

TEST(PromptTest, ToolsBecomeTextWhereTheTemplateKnowsNone) {
  ChatRequest request = Request(R"([{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function",
      "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "2", "tool_call_id": "c"}])");
  request.tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const ChatPrompt prompt = MustMake(request, Template());
  EXPECT_THAT(prompt.text, HasSubstr("<|im_start|>system\nBe brief.\n\nYou can call functions."));
  EXPECT_THAT(prompt.text, HasSubstr(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_THAT(prompt.text,
              HasSubstr("assistant\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}"));
  EXPECT_THAT(prompt.text, HasSubstr("user\n<tool_response>\n2\n</tool_response>"));
  EXPECT_TRUE(prompt.form.tool_calls);
  request.tool_choice.kind = ToolChoice::Kind::kNone;
  const ChatPrompt none = MustMake(request, Template());
  EXPECT_THAT(none.text, ::testing::Not(HasSubstr("You can call")));
  EXPECT_FALSE(none.form.tool_calls);
}

TEST(PromptTest, TemplatesGetToolsVariablesAndTokens) {
  ChatRequest request = Request(R"([{"role": "user", "content": "hi"}])");
  request.tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  request.template_variables = {{"enable_thinking", false}, {"more", "x"}};
  const ChatPrompt prompt = MustMake(
      request,
      Template("{% for t in tools %}{{ t.function.name }}{% endfor %}|{{ messages[0].content }}"
               "|{{ more }}|{% if not enable_thinking %}quiet{% endif %}|{{ eos_token }}"));
  EXPECT_EQ(prompt.text, "f|hi|x|quiet|<|im_end|>");
}

TEST(PromptTest, AnOpenThinkTagIsNoticed) {
  EXPECT_TRUE(MustMake(Request(kHello), Template("a<think>\n")).form.starts_in_reasoning);
  EXPECT_FALSE(
      MustMake(Request(kHello), Template("a<think>\n\n</think>\n\n")).form.starts_in_reasoning);
}

TEST(PromptTest, TheLastMessageIsGoneOnWith) {
  ChatRequest request = Request(R"([{"role": "user", "content": "hi"},
                                    {"role": "assistant", "content": "The answer"}])");
  request.continue_last = true;
  EXPECT_THAT(MustMake(request, Template()).text,
              ::testing::EndsWith("<|im_start|>assistant\nThe answer"));
}

TEST(PromptTest, ATemplateThatRefusesGivesItsOwnWords) {
  const auto prompt = MakePrompt(
      Request(kHello), Template("{{ raise_exception('no system messages') }}"), Vocabulary());
  ASSERT_FALSE(prompt);
  EXPECT_EQ(prompt.error().status, 400);
  EXPECT_EQ(prompt.error().param, "messages");
  EXPECT_THAT(prompt.error().message, HasSubstr("no system messages"));
  EXPECT_EQ(prompt.error().message.find('\n'), std::string::npos);
  EXPECT_FALSE(
      MakePrompt(Request(kHello), Template("{{ messages[0].nothing.more }}"), Vocabulary()));
}

TEST(PromptTest, ATemplateThatDoesNotParseIsAnError) {
  const auto chat = model::ChatTemplate::Make("{% if %}", "", "");
  ASSERT_FALSE(chat);
  EXPECT_EQ(chat.error().message.find('\n'), std::string::npos);
  EXPECT_THAT(chat.error().message, HasSubstr("--chat-template"));
}

TEST(PromptTest, GrammarsComeFromFormatsAndForcedCalls) {
  std::vector<Json> schemas;
  const SchemaToGrammar to_grammar = [&](const Json& schema) -> base::Result<std::string> {
    schemas.push_back(schema);
    if (schema.contains("bad")) return base::Fail(base::ErrorKind::kInvalidInput, "bad schema");
    return std::string("x ::= \"1\"\nroot ::= x");
  };
  ChatRequest request = Request(kHello);
  EXPECT_EQ(*MakeGrammar(request, to_grammar), "");
  request.format = {OutputFormat::Kind::kJsonSchema, {{"bad", 1}}, "", "response_format.schema"};
  const auto refused = MakeGrammar(request, to_grammar);
  EXPECT_EQ(refused.error().param, "response_format.schema");
  request.format = {OutputFormat::Kind::kGrammar, {}, "root ::= \"a\"", "grammar"};
  EXPECT_EQ(*MakeGrammar(request, to_grammar), "root ::= \"a\"");
  request.tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object",
      "properties": {"a": {"type": "string"}}}}}])");
  request.tool_choice = {ToolChoice::Kind::kFunction, "g"};
  EXPECT_EQ(*MakeGrammar(request, to_grammar),
            "root ::= \"<tool_call>\\n\" call-object \"\\n</tool_call>\"\n"
            "x ::= \"1\"\ncall-object ::= x");
  EXPECT_EQ(schemas.back()["properties"]["name"], Json({{"const", "g"}}));
  request.tool_choice = {ToolChoice::Kind::kRequired, ""};
  ASSERT_TRUE(MakeGrammar(request, to_grammar));
  EXPECT_EQ(schemas.back()["anyOf"].size(), 2u);
}

}  // namespace
}  // namespace server
