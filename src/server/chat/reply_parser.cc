#include "server/chat/reply_parser.h"

#include <algorithm>
#include <utility>

#include "server/chat/stop_strings.h"

namespace server {
namespace {

constexpr std::string_view kThinkStart = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// Bytes of `text` in front of blank space at its end.
std::size_t WithoutTrailingBlanks(std::string_view text) {
  return text.find_last_not_of(kBlanks) + 1;
}

}  // namespace

ReplyParser::ReplyParser(ReplyForm form) : form_(std::move(form)) {
  if (!form_.separate_reasoning) {
    state_ = State::kContent;
  } else if (form_.starts_in_reasoning) {
    state_ = State::kReasoning;
    skip_blanks_ = true;
  }
}

void ReplyParser::Feed(std::string_view text, ReplyDeltas& deltas) {
  buffer_ += text;
  while (Step(deltas)) {
  }
}

void ReplyParser::Finish(ReplyDeltas& deltas) {
  if (state_ == State::kCall) {
    call_->Finish(deltas);
    EndCall(deltas);
  } else {
    const auto kind =
        state_ == State::kReasoning ? ReplyDelta::Kind::kReasoning : ReplyDelta::Kind::kContent;
    // Reasoning that was cut off and content keep what they have.
    Show(kind, buffer_.size(), deltas);
  }
  buffer_.clear();
}

// False when more text is needed.
bool ReplyParser::Step(ReplyDeltas& deltas) {
  if (skip_blanks_) {
    buffer_.erase(0, std::min(buffer_.find_first_not_of(kBlanks), buffer_.size()));
    if (buffer_.empty()) return false;
    skip_blanks_ = false;
  }
  switch (state_) {
    case State::kStart:
      return ReadStart();
    case State::kReasoning:
      return ReadReasoning(deltas);
    case State::kContent:
      return ReadContent(deltas);
    case State::kCall:
      return ReadCall(deltas);
  }
  return false;
}

void ReplyParser::Show(ReplyDelta::Kind kind, std::size_t size, ReplyDeltas& deltas) {
  if (size == 0) return;
  deltas.push_back({kind, buffer_.substr(0, size), 0, ""});
  buffer_.erase(0, size);
}

bool ReplyParser::ReadStart() {
  const std::size_t first = buffer_.find_first_not_of(kBlanks);
  if (first == std::string::npos) return false;
  const std::string_view text = std::string_view(buffer_).substr(first);
  if (text.starts_with(kThinkStart)) {
    buffer_.erase(0, first + kThinkStart.size());
    state_ = State::kReasoning;
    skip_blanks_ = true;
    return true;
  }
  if (text.size() < kThinkStart.size() && kThinkStart.starts_with(text)) return false;
  state_ = State::kContent;
  return true;
}

bool ReplyParser::ReadReasoning(ReplyDeltas& deltas) {
  // A model that repeats the tag which the prompt ended with.
  if (buffer_.starts_with(kThinkStart)) {
    buffer_.erase(0, kThinkStart.size());
    skip_blanks_ = true;
    return true;
  }
  const std::size_t end = buffer_.find(kThinkEnd);
  const std::string_view text = std::string_view(buffer_).substr(0, end);
  if (end != std::string::npos) {
    const std::size_t shown = WithoutTrailingBlanks(text);
    const std::size_t behind = end + kThinkEnd.size() - shown;
    Show(ReplyDelta::Kind::kReasoning, shown, deltas);
    buffer_.erase(0, behind);
    state_ = State::kContent;
    skip_blanks_ = true;
    return true;
  }
  const std::size_t whole = text.size() - PartialSuffix(text, kThinkEnd);
  Show(ReplyDelta::Kind::kReasoning, WithoutTrailingBlanks(text.substr(0, whole)), deltas);
  return false;
}

bool ReplyParser::ReadContent(ReplyDeltas& deltas) {
  if (!form_.tool_calls) {
    Show(ReplyDelta::Kind::kContent, buffer_.size(), deltas);
    return false;
  }
  const std::size_t start = buffer_.find(kToolCallStart);
  const std::string_view text = std::string_view(buffer_).substr(0, start);
  if (start != std::string::npos) {
    const std::size_t shown = WithoutTrailingBlanks(text);
    const std::size_t behind = start + kToolCallStart.size() - shown;
    Show(ReplyDelta::Kind::kContent, shown, deltas);
    buffer_.erase(0, behind);
    call_.emplace(num_calls_, form_.tools);
    state_ = State::kCall;
    return true;
  }
  const std::size_t whole = text.size() - PartialSuffix(text, kToolCallStart);
  Show(ReplyDelta::Kind::kContent, WithoutTrailingBlanks(text.substr(0, whole)), deltas);
  return false;
}

bool ReplyParser::ReadCall(ReplyDeltas& deltas) {
  call_->Feed(std::exchange(buffer_, {}), deltas);
  if (!call_->done()) return false;
  EndCall(deltas);
  return true;
}

void ReplyParser::EndCall(ReplyDeltas& deltas) {
  buffer_ = call_->rest();
  if (call_->begun()) {
    ++num_calls_;
    skip_blanks_ = true;
  } else {
    deltas.push_back(
        {ReplyDelta::Kind::kContent, std::string(kToolCallStart) + call_->raw(), 0, ""});
  }
  call_.reset();
  state_ = State::kContent;
}

}  // namespace server
