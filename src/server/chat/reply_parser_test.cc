#include "server/chat/reply_parser.h"

#include <gtest/gtest.h>

#include "server/chat/utf8_stream.h"

namespace server {
namespace {

const Json& Tools() {
  static const Json tools = Json::parse(R"([{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}}}}}])");
  return tools;
}

// The whole reply, one line a part: what must come out whatever the pieces.
std::string Parts(const std::string& text, std::size_t size, ReplyForm form) {
  ReplyParser parser(std::move(form));
  Utf8Stream utf8;
  ReplyDeltas deltas;
  for (std::size_t i = 0; i < text.size(); i += size) {
    parser.Feed(utf8.Feed(text.substr(i, size)), deltas);
  }
  parser.Finish(deltas);
  std::string parts;
  ReplyDelta::Kind last = ReplyDelta::Kind::kToolCall;
  for (const ReplyDelta& delta : deltas) {
    const bool goes_on = delta.kind == last && delta.kind != ReplyDelta::Kind::kToolCall;
    last = delta.kind;
    const char* kinds[] = {"reasoning:", "content:", "call:", "arguments:"};
    if (!goes_on) parts += (parts.empty() ? "" : "\n") + std::string(kinds[static_cast<int>(last)]);
    parts += delta.text + delta.name;
  }
  return parts;
}

ReplyForm WithTools() { return {.tool_calls = true, .tools = Tools()}; }

void ExpectParts(const std::string& text, const std::string& parts,
                 const std::function<ReplyForm()>& form = WithTools) {
  for (std::size_t size = 1; size <= text.size(); ++size) {
    EXPECT_EQ(Parts(text, size, form()), parts) << "pieces of " << size << " bytes of " << text;
  }
}

TEST(ReplyParserTest, PlainTextIsContent) {
  ExpectParts("Hello, wörld <b>!", "content:Hello, wörld <b>!");
  ExpectParts("  spaces  ", "content:  spaces  ");
  ExpectParts("a < b", "content:a < b");
}

TEST(ReplyParserTest, ReasoningIsSeparated) {
  ExpectParts("<think>\nHm, 1 < 2.\n</think>\n\nYes.", "reasoning:Hm, 1 < 2.\ncontent:Yes.");
  ExpectParts("<think>\n\n</think>\n\nYes.", "content:Yes.");
  ExpectParts("<think>never ended", "reasoning:never ended");
  ExpectParts("Yes <think> no", "content:Yes <think> no");
}

TEST(ReplyParserTest, ThePromptMayHaveOpenedTheReasoning) {
  const auto open = [] { return ReplyForm{.starts_in_reasoning = true}; };
  ExpectParts("Hm.\n</think>\n\nYes.", "reasoning:Hm.\ncontent:Yes.", open);
  ExpectParts("Hm", "reasoning:Hm", open);
}

TEST(ReplyParserTest, SeparationCanBeSwitchedOff) {
  ExpectParts("<think>\nHm.\n</think>\n\nYes.", "content:<think>\nHm.\n</think>\n\nYes.",
              [] { return ReplyForm{.separate_reasoning = false, .starts_in_reasoning = true}; });
}

TEST(ReplyParserTest, CallsAsJson) {
  ExpectParts(
      "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo }\\\"\"}}"
      "\n</tool_call>",
      "content:I look.\ncall:weather\narguments:{\"city\": \"Oslo }\\\"\"}");
  ExpectParts("<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call> ",
              "call:f\narguments:{\"a\": [1, {}]}");
  ExpectParts(
      "<tool_call>{\"name\": \"f\"}</tool_call>\n"
      "<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>\nDone.",
      "call:f\narguments:{}\ncall:g\narguments:{\"a\": 1}\ncontent:Done.");
  ExpectParts("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
              "call:f\narguments:{}");
}

TEST(ReplyParserTest, CallsInTags) {
  ExpectParts(
      "<tool_call>\n<function=weather>\n<parameter=city>\nOslo \"north\"\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
      "call:weather\narguments:{\"city\": \"Oslo \\\"north\\\"\", \"days\": 3}");
  ExpectParts("<tool_call>\n<function=weather>\n</function>\n</tool_call>",
              "call:weather\narguments:{}");
  // A string stays one whatever it looks like; lines in it are kept.
  ExpectParts(
      "<tool_call><function=weather><parameter=city>\n12\n\nü\n</parameter>"
      "<parameter=more>{\"a\": [true]}</parameter></function></tool_call>",
      "call:weather\narguments:{\"city\": \"12\\n\\nü\", \"more\": {\"a\":[true]}}");
  // Without a schema values are what they look like.
  ExpectParts(
      "<tool_call><function=f><parameter=a>12</parameter><parameter=b>x y</parameter>"
      "<parameter=c>True</parameter></function></tool_call>",
      "call:f\narguments:{\"a\": 12, \"b\": \"x y\", \"c\": true}");
}

TEST(ReplyParserTest, ACallThatIsCutOffKeepsWhatItHas) {
  ExpectParts("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
              "call:weather\narguments:{\"city\": \"Os");
  ExpectParts("<tool_call>\n<function=weather>\n<parameter=city>\nOs",
              "call:weather\narguments:{\"city\": \"Os");
}

TEST(ReplyParserTest, WhatIsNoCallStaysText) {
  ExpectParts("<tool_call>nothing</tool_call> more", "content:<tool_call>nothing</tool_call> more");
  ExpectParts("<tool_call>{\"nom\": 1}</tool_call>", "content:<tool_call>{\"nom\": 1}</tool_call>");
  ExpectParts("<tool_call>{\"na", "content:<tool_call>{\"na");
  ExpectParts("<tool_call>{\"name\": \"f\"}</tool_call>",
              "content:<tool_call>{\"name\": \"f\"}</tool_call>", [] { return ReplyForm{}; });
}

TEST(ReplyParserTest, ReasoningContentAndCallsTogether) {
  ExpectParts(
      "<think>\nLook.\n</think>\n\nOne moment.\n\n<tool_call>\n{\"name\": \"f\", "
      "\"arguments\": {}}\n</tool_call><|im_end|>",
      "reasoning:Look.\ncontent:One moment.\ncall:f\narguments:{}\ncontent:<|im_end|>");
}

TEST(ReplyParserTest, ArgumentsAreHandedOnBeforeTheCallEnds) {
  ReplyParser parser(WithTools());
  ReplyDeltas deltas;
  parser.Feed("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os", deltas);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[1].text, "{\"city\": \"Os");
  deltas.clear();
  parser.Feed("lo", deltas);
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].text, "lo");
}

}  // namespace
}  // namespace server
