// Takes a model's text apart: reasoning, content, tool calls.
//
//     <think>
//     reasoning
//     </think>
//
//     content
//     <tool_call>
//     ... (server/chat/tool_call_stream.h)
//     </tool_call>
//
// Blank space around the parts is dropped, inside them kept. Text is handed on as it arrives, but
// for what may turn out to be a tag. What looks like a call and is none stays content. Pure value;
// one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/chat/reply_delta.h"
#include "server/chat/tool_call_stream.h"
#include "server/json.h"

namespace server {

struct ReplyForm {
  bool separate_reasoning = true;  // false: <think> and </think> are text like any other
  // The prompt ended with an opening <think>, so the reply begins behind it.
  bool starts_in_reasoning = false;
  bool tool_calls = false;     // false: <tool_call> is text like any other
  Json tools = Json::array();  // of the request, in OpenAI's form
};

class ReplyParser {
 public:
  explicit ReplyParser(ReplyForm form);
  // Its parts refer to its own form.
  ReplyParser(const ReplyParser&) = delete;
  ReplyParser& operator=(const ReplyParser&) = delete;

  // `text` is whole characters. Appends what is known by now.
  void Feed(std::string_view text, ReplyDeltas& deltas);
  // No more text comes: appends what was kept back.
  void Finish(ReplyDeltas& deltas);

  // Whether text that comes now is reasoning.
  bool reasoning() const { return state_ == State::kReasoning; }
  // Tool calls begun so far.
  std::size_t num_calls() const { return num_calls_; }

 private:
  enum class State { kStart, kReasoning, kContent, kCall };

  bool Step(ReplyDeltas& deltas);
  bool ReadStart();
  bool ReadReasoning(ReplyDeltas& deltas);
  bool ReadContent(ReplyDeltas& deltas);
  bool ReadCall(ReplyDeltas& deltas);
  void EndCall(ReplyDeltas& deltas);
  // Hands on `size` bytes of the buffer as text of `kind`.
  void Show(ReplyDelta::Kind kind, std::size_t size, ReplyDeltas& deltas);

  ReplyForm form_;
  State state_ = State::kStart;
  std::string buffer_;
  bool skip_blanks_ = false;  // in front of the next part
  std::optional<ToolCallStream> call_;
  std::size_t num_calls_ = 0;
};

}  // namespace server
