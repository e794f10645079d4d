// Reads one tool call as models of the Qwen family write it, while it is being written.
//
// Two forms, told apart by their first character, both ended by </tool_call>:
//
//     {"name": "weather", "arguments": {"city": "Oslo"}}
//
//     <function=weather>
//     <parameter=city>
//     Oslo
//     </parameter>
//     </function>
//
// The arguments are handed on as JSON text as they arrive; of the second form they are made into
// JSON, each value by the type that the function's schema gives it. Pure value; one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/chat/reply_delta.h"
#include "server/json.h"

namespace server {

inline constexpr std::string_view kToolCallStart = "<tool_call>";
inline constexpr std::string_view kToolCallEnd = "</tool_call>";
// Blank space around the parts of a reply.
inline constexpr std::string_view kBlanks = " \t\r\n";

class ToolCallStream {
 public:
  // `index` is the call's number. `tools` are those of the request, in OpenAI's form; they outlive
  // this object.
  ToolCallStream(std::size_t index, const Json& tools) : index_(index), tools_(&tools) {}

  // Takes text behind <tool_call>, whole characters, and appends what is known of the call by now.
  void Feed(std::string_view text, ReplyDeltas& deltas);
  // No more text comes. A call that was begun stays as far as it got.
  void Finish(ReplyDeltas& deltas);

  // Whether the call has ended. rest() is then the text behind it.
  bool done() const { return state_ == State::kDone; }
  const std::string& rest() const { return buffer_; }
  // Whether a name was found, so that a call was reported.
  bool begun() const { return begun_; }
  // Everything fed that belongs to no call, when done or finished without having begun: it is text
  // after all.
  const std::string& raw() const { return raw_; }

 private:
  enum class State { kForm, kJson, kFunction, kBody, kValue, kEnd, kMalformed, kDone };

  bool Step(ReplyDeltas& deltas);
  bool ReadForm();
  bool ReadJson(ReplyDeltas& deltas);
  void ScanJson(char c, std::size_t at);
  void EndJsonValue(std::size_t end);
  bool ReadFunction(ReplyDeltas& deltas);
  bool ReadBody(ReplyDeltas& deltas);
  bool ReadValue(ReplyDeltas& deltas);
  bool ReadEnd();
  bool ReadMalformed();
  void Begin(std::string name, ReplyDeltas& deltas);
  void Arguments(std::string text, ReplyDeltas& deltas);
  void BeginValue(std::string key, ReplyDeltas& deltas);
  void EndValue(ReplyDeltas& deltas);
  // The type that the schema of the function gives its parameter; empty when it gives none.
  std::string TypeOf(const std::string& parameter) const;
  bool SkipBlanks();
  void Consume(std::size_t size);

  std::size_t index_;
  const Json* tools_;
  State state_ = State::kForm;
  std::string buffer_;  // not consumed yet
  std::string raw_;     // consumed, while nothing was reported
  bool begun_ = false;

  // The JSON form: a scan of buffer_, which stays whole until the object has ended.
  struct JsonScan {
    std::size_t at = 0;
    std::size_t depth = 0;
    bool in_string = false;
    bool escaped = false;
    bool in_value = false;                  // of a member of the outermost object
    std::size_t start = std::string::npos;  // of the outermost key or value that is being read
    std::string key;
    std::string name;
    std::size_t arguments = std::string::npos;      // where the value begins
    std::size_t arguments_end = std::string::npos;  // and ends
    std::size_t reported = 0;                       // of it, bytes
    bool complete = false;
  } json_;

  // The tagged form.
  std::string function_;
  bool string_value_ = false;  // handed on as it arrives
  std::string value_;          // of another type, whole
  bool value_started_ = false;
  std::size_t num_parameters_ = 0;
};

}  // namespace server
