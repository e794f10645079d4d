#include "server/chat/tool_call_stream.h"

#include <algorithm>
#include <utility>

#include "server/chat/stop_strings.h"

namespace server {
namespace {

constexpr std::string_view kFunctionStart = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameterStart = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

std::string Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlanks) - first + 1));
}

// Whether `text` is a beginning of `word`, so that more text may make it the whole of it.
bool MayBecome(std::string_view text, std::string_view word) {
  return text.size() < word.size() && word.starts_with(text);
}

}  // namespace

void ToolCallStream::Feed(std::string_view text, ReplyDeltas& deltas) {
  buffer_ += text;
  while (state_ != State::kDone && Step(deltas)) {
  }
}

void ToolCallStream::Finish(ReplyDeltas& deltas) {
  if (state_ == State::kDone) return;
  if (begun_ && state_ == State::kJson && json_.arguments == std::string::npos) {
    Arguments("{}", deltas);
  }
  if (begun_ && state_ == State::kBody) Arguments(num_parameters_ == 0 ? "{}" : "}", deltas);
  if (!begun_) raw_ += buffer_;
  buffer_.clear();
  state_ = State::kDone;
}

// False when more text is needed.
bool ToolCallStream::Step(ReplyDeltas& deltas) {
  switch (state_) {
    case State::kForm:
      return ReadForm();
    case State::kJson:
      return ReadJson(deltas);
    case State::kFunction:
      return ReadFunction(deltas);
    case State::kBody:
      return ReadBody(deltas);
    case State::kValue:
      return ReadValue(deltas);
    case State::kEnd:
      return ReadEnd();
    case State::kMalformed:
      return ReadMalformed();
    case State::kDone:
      return false;
  }
  return false;
}

void ToolCallStream::Consume(std::size_t size) {
  if (!begun_) raw_.append(buffer_, 0, size);
  buffer_.erase(0, size);
}

// False when nothing is left.
bool ToolCallStream::SkipBlanks() {
  Consume(std::min(buffer_.find_first_not_of(kBlanks), buffer_.size()));
  return !buffer_.empty();
}

bool ToolCallStream::ReadForm() {
  if (!SkipBlanks()) return false;
  if (buffer_.front() == '{') {
    state_ = State::kJson;
  } else if (buffer_.starts_with(kFunctionStart)) {
    Consume(kFunctionStart.size());
    state_ = State::kFunction;
  } else if (MayBecome(buffer_, kFunctionStart)) {
    return false;
  } else {
    state_ = State::kMalformed;
  }
  return true;
}

void ToolCallStream::Begin(std::string name, ReplyDeltas& deltas) {
  begun_ = true;
  raw_.clear();
  deltas.push_back({ReplyDelta::Kind::kToolCall, "", index_, std::move(name)});
}

void ToolCallStream::Arguments(std::string text, ReplyDeltas& deltas) {
  if (text.empty()) return;
  if (!deltas.empty() && deltas.back().kind == ReplyDelta::Kind::kToolArguments &&
      deltas.back().call == index_) {
    deltas.back().text += text;
  } else {
    deltas.push_back({ReplyDelta::Kind::kToolArguments, std::move(text), index_, ""});
  }
}

// --- the JSON form ---------------------------------------------------------------------------

// The outermost value that json_.start begins has ended in front of `end`.
void ToolCallStream::EndJsonValue(std::size_t end) {
  const std::string text =
      Trimmed(std::string_view(buffer_).substr(json_.start, end - json_.start));
  if (json_.key == "name") {
    const Json name = ParseOrDiscard(text);
    if (name.is_string()) json_.name = name.get<std::string>();
  } else if (json_.key == "arguments" || json_.key == "parameters") {
    json_.arguments_end = json_.arguments + text.size();
  }
  json_.in_value = false;
  json_.start = std::string::npos;
}

void ToolCallStream::ScanJson(char c, std::size_t at) {
  if (json_.in_string) {
    if (json_.escaped) {
      json_.escaped = false;
    } else if (c == '\\') {
      json_.escaped = true;
    } else if (c == '"') {
      json_.in_string = false;
      if (json_.depth == 1 && !json_.in_value) {
        const Json key =
            ParseOrDiscard(std::string_view(buffer_).substr(json_.start, at + 1 - json_.start));
        json_.key = key.is_string() ? key.get<std::string>() : std::string();
      }
    }
    return;
  }
  const bool blank = kBlanks.find(c) != std::string_view::npos;
  if (json_.depth == 1 && (c == ',' || c == '}')) {
    if (json_.in_value && json_.start != std::string::npos) EndJsonValue(at);
    json_.in_value = false;
    if (c == '}') json_.complete = true;
    return;
  }
  if (json_.depth == 1 && c == ':' && !json_.in_value) {
    json_.in_value = true;
    json_.start = std::string::npos;
    return;
  }
  if (json_.depth == 1 && !blank && (json_.start == std::string::npos || !json_.in_value)) {
    json_.start = at;
    if (json_.in_value && (json_.key == "arguments" || json_.key == "parameters")) {
      json_.arguments = at;
    }
  }
  if (c == '"') json_.in_string = true;
  if (c == '{' || c == '[') ++json_.depth;
  if ((c == '}' || c == ']') && json_.depth > 0) --json_.depth;
}

bool ToolCallStream::ReadJson(ReplyDeltas& deltas) {
  while (json_.at < buffer_.size() && !json_.complete) {
    ScanJson(buffer_[json_.at], json_.at);
    ++json_.at;
  }
  if (!begun_ && !json_.name.empty()) Begin(json_.name, deltas);
  const bool has_arguments = json_.arguments != std::string::npos;
  if (begun_ && has_arguments && buffer_[json_.arguments] == '{') {
    // An object's text can be handed on before it is complete.
    const std::size_t end =
        json_.arguments_end != std::string::npos ? json_.arguments_end : json_.at;
    // Blank space behind the object may have been handed on before its end was seen.
    const std::size_t from = std::min(json_.arguments + json_.reported, end);
    Arguments(buffer_.substr(from, end - from), deltas);
    json_.reported = std::max(json_.reported, end - json_.arguments);
  }
  if (!json_.complete) return false;
  if (!begun_) {
    state_ = State::kMalformed;
    return true;
  }
  if (!has_arguments) {
    Arguments("{}", deltas);
  } else if (buffer_[json_.arguments] != '{') {
    // Some models write the object as a string that holds it, or null for none.
    const std::string text = buffer_.substr(json_.arguments, json_.arguments_end - json_.arguments);
    const Json value = ParseOrDiscard(text);
    Arguments(value.is_string() ? value.get<std::string>() : value.is_null() ? "{}" : text, deltas);
  }
  Consume(json_.at);
  state_ = State::kEnd;
  return true;
}

// --- the tagged form -------------------------------------------------------------------------

bool ToolCallStream::ReadFunction(ReplyDeltas& deltas) {
  const std::size_t close = buffer_.find('>');
  if (close == std::string::npos) return false;
  function_ = Trimmed(std::string_view(buffer_).substr(0, close));
  if (function_.empty()) {
    state_ = State::kMalformed;
    return true;
  }
  Begin(function_, deltas);
  Consume(close + 1);
  state_ = State::kBody;
  return true;
}

bool ToolCallStream::ReadBody(ReplyDeltas& deltas) {
  if (!SkipBlanks()) return false;
  if (buffer_.starts_with(kParameterStart)) {
    const std::size_t close = buffer_.find('>');
    if (close == std::string::npos) return false;
    BeginValue(Trimmed(std::string_view(buffer_).substr(kParameterStart.size(),
                                                        close - kParameterStart.size())),
               deltas);
    Consume(close + 1);
    state_ = State::kValue;
    return true;
  }
  const bool function_ended = buffer_.starts_with(kFunctionEnd);
  if (function_ended || buffer_.starts_with(kToolCallEnd)) {
    Arguments(num_parameters_ == 0 ? "{}" : "}", deltas);
    if (function_ended) Consume(kFunctionEnd.size());
    state_ = State::kEnd;
    return true;
  }
  if (MayBecome(buffer_, kParameterStart) || MayBecome(buffer_, kFunctionEnd) ||
      MayBecome(buffer_, kToolCallEnd)) {
    return false;
  }
  // Stray text between parameters belongs to nothing.
  const std::size_t next = buffer_.find('<', 1);
  Consume(std::min(next, buffer_.size()));
  return !buffer_.empty();
}

std::string ToolCallStream::TypeOf(const std::string& parameter) const {
  if (!tools_->is_array()) return {};
  for (const Json& tool : *tools_) {
    const Json function = tool.value("function", Json::object());
    if (!function.is_object() || function.value("name", Json()) != Json(function_)) continue;
    const Json schema = function.value("parameters", Json::object());
    if (!schema.is_object()) return {};
    const Json properties = schema.value("properties", Json::object());
    if (!properties.is_object()) return {};
    const Json property = properties.value(parameter, Json::object());
    if (!property.is_object()) return {};
    const Json type = property.value("type", Json());
    return type.is_string() ? type.get<std::string>() : std::string();
  }
  return {};
}

void ToolCallStream::BeginValue(std::string key, ReplyDeltas& deltas) {
  string_value_ = TypeOf(key) == "string";
  value_.clear();
  value_started_ = false;
  Arguments(
      (num_parameters_++ == 0 ? "{" : ", ") + Dump(Json(key)) + ": " + (string_value_ ? "\"" : ""),
      deltas);
}

bool ToolCallStream::ReadValue(ReplyDeltas& deltas) {
  if (!value_started_) {
    if (buffer_.empty()) return false;
    if (buffer_.front() == '\n') Consume(1);
    value_started_ = true;
  }
  const std::size_t close = buffer_.find(kParameterEnd);
  const bool ended = close != std::string::npos;
  std::size_t size = ended ? close : buffer_.size() - PartialSuffix(buffer_, kParameterEnd);
  // The line break in front of the closing tag is not the value's.
  const bool line_break = size > 0 && buffer_[size - 1] == '\n';
  if (line_break) --size;
  if (string_value_) {
    Arguments(EscapeForJson(std::string_view(buffer_).substr(0, size)), deltas);
  } else {
    value_.append(buffer_, 0, size);
  }
  if (!ended) {
    Consume(size);
    return false;
  }
  Consume(close + kParameterEnd.size());
  EndValue(deltas);
  state_ = State::kBody;
  return true;
}

void ToolCallStream::EndValue(ReplyDeltas& deltas) {
  if (string_value_) {
    Arguments("\"", deltas);
    return;
  }
  // Python's words for what JSON spells in lower case.
  const std::string word = Trimmed(value_);
  if (word == "True" || word == "False" || word == "None") {
    Arguments(word == "None" ? "null" : word == "True" ? "true" : "false", deltas);
    return;
  }
  const Json value = ParseOrDiscard(value_);
  Arguments(Dump(value.is_discarded() ? Json(value_) : value), deltas);
}

// --- behind the call -------------------------------------------------------------------------

bool ToolCallStream::ReadEnd() {
  if (!SkipBlanks()) return false;
  if (MayBecome(buffer_, kToolCallEnd)) return false;
  // Without its closing tag the call is as good.
  if (buffer_.starts_with(kToolCallEnd)) Consume(kToolCallEnd.size());
  state_ = State::kDone;
  return false;
}

bool ToolCallStream::ReadMalformed() {
  const std::size_t close = buffer_.find(kToolCallEnd);
  if (close == std::string::npos) return false;
  Consume(close + kToolCallEnd.size());
  state_ = State::kDone;
  return false;
}

}  // namespace server
