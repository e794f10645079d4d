#include "server/anthropic/response.h"

#include <gtest/gtest.h>

namespace server::anthropic {
namespace {

struct StreamEvent {
  std::string name;
  Json data;
};

std::vector<StreamEvent> Events(const std::string& stream) {
  std::vector<StreamEvent> events;
  std::size_t begin = 0;
  while (begin < stream.size()) {
    const std::size_t line = stream.find('\n', begin);
    const std::size_t end = stream.find("\n\n", begin);
    EXPECT_TRUE(stream.substr(begin).starts_with("event: ")) << stream.substr(begin);
    if (line == std::string::npos || end == std::string::npos) break;
    events.push_back({stream.substr(begin + 7, line - begin - 7),
                      Json::parse(stream.substr(line + 7, end - line - 7))});
    EXPECT_EQ(events.back().data["type"], events.back().name);
    begin = end + 2;
  }
  return events;
}

std::string Stream(ReplyFormat& format, Reply& reply, const std::vector<std::string>& pieces) {
  std::string stream = format.Begin();
  for (const std::string& piece : pieces) {
    const auto update = reply.Feed({.token = 1, .piece = piece});
    stream += format.Update(0, reply, update);
  }
  const auto update = reply.Finish(engine::FinishReason::kEnd);
  stream += format.Update(0, reply, update);
  stream += format.EndChoice(0, reply);
  return stream + format.End({.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 4});
}

const std::vector<std::string> kPieces = {"<think>Hm",
                                          ".</think>\n\n",
                                          "Yes.",
                                          "<tool_call>",
                                          "{\"name\": \"f\", \"arguments\": {\"a\": ",
                                          "1}}",
                                          "</tool_call>"};

TEST(AnthropicResponseTest, AStreamHasABlockForEachPart) {
  const auto format = MakeMessagesFormat({.id = "msg_1", .model = "m", .prompt_tokens = 5});
  Reply reply({.form = {.tool_calls = true}});
  const auto events = Events(Stream(*format, reply, kPieces));
  std::string order;
  for (const StreamEvent& event : events) {
    order += event.name;
    if (event.data.contains("content_block")) {
      order += ":" + event.data["content_block"]["type"].get<std::string>();
    }
    if (event.data.contains("index")) order += std::to_string(event.data["index"].get<int>());
    order += "\n";
  }
  EXPECT_EQ(order,
            "message_start\nping\n"
            "content_block_start:thinking0\ncontent_block_delta0\ncontent_block_delta0\n"
            "content_block_stop0\n"
            "content_block_start:text1\ncontent_block_delta1\ncontent_block_stop1\n"
            "content_block_start:tool_use2\ncontent_block_delta2\ncontent_block_delta2\n"
            "content_block_stop2\nmessage_delta\nmessage_stop\n");
  EXPECT_EQ(events.front().data["message"]["usage"]["input_tokens"], 5);
  const Json& end = events[events.size() - 2].data;
  EXPECT_EQ(end["delta"], Json({{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(end["usage"]["input_tokens"], 3);
  EXPECT_EQ(end["usage"]["cache_read_input_tokens"], 2);
  EXPECT_EQ(end["usage"]["output_tokens"], 4);
}

TEST(AnthropicResponseTest, AWholeMessageHasTheSameParts) {
  const auto format = MakeMessagesFormat({.id = "msg_1", .model = "m"});
  Reply reply({.form = {.tool_calls = true}});
  Stream(*format, reply, kPieces);
  const Reply* replies[] = {&reply};
  const Json whole = format->Whole(replies, {.prompt_tokens = 5, .completion_tokens = 4});
  ASSERT_EQ(whole["content"].size(), 3u);
  EXPECT_EQ(whole["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(whole["content"][1], Json({{"type", "text"}, {"text", "Yes."}}));
  EXPECT_EQ(whole["content"][2]["input"], Json({{"a", 1}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["type"], "message");
}

TEST(AnthropicResponseTest, StopSequencesAndErrors) {
  const auto format = MakeMessagesFormat({.id = "msg_1", .model = "m"});
  Reply reply({.stop = {"END"}});
  Stream(*format, reply, {"a", "E", "ND"});
  const Reply* replies[] = {&reply};
  const Json whole = format->Whole(replies, {});
  EXPECT_EQ(whole["stop_reason"], "stop_sequence");
  EXPECT_EQ(whole["stop_sequence"], "END");
  EXPECT_EQ(ErrorBody({.status = 429, .message = "full"}),
            Json::parse(R"({"type": "error", "error": {"type": "rate_limit_error",
              "message": "full"}})"));
}

}  // namespace
}  // namespace server::anthropic
