#include "server/chat/reply.h"

#include <algorithm>
#include <random>
#include <utility>

namespace server {

std::string RandomId(std::string_view prefix) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[letter(generator)];
  return id;
}

Reply::Reply(ReplyOptions options)
    : options_(std::move(options)), stop_(options_.stop), parser_(std::move(options_.form)) {}

Reply::Update Reply::Feed(const engine::GeneratedToken& token) {
  Update update;
  if (stopped()) return update;
  if (options_.logprobs) held_.push_back({token, text_size_});
  const bool reasoning = parser_.reasoning();
  Take(utf8_.Feed(token.piece), update);
  Keep(update);
  if (reasoning) ++reasoning_tokens_;
  ReleaseTokens(update);
  return update;
}

Reply::Update Reply::Finish(engine::FinishReason reason) {
  Update update;
  if (!stopped()) {
    Take(utf8_.Finish(), update);
    const std::string rest = stop_.Finish();
    shown_size_ += rest.size();
    parser_.Feed(rest, update.deltas);
  }
  parser_.Finish(update.deltas);
  Keep(update);
  ReleaseTokens(update);
  if (stopped()) {
    stop_reason_ = StopReason::kStopString;
  } else if (reason == engine::FinishReason::kLength || reason == engine::FinishReason::kTimeout) {
    stop_reason_ = StopReason::kLength;
  } else if (!calls_.empty()) {
    stop_reason_ = StopReason::kToolCalls;
  }
  return update;
}

void Reply::Take(std::string text, Update& update) {
  text_size_ += text.size();
  const std::string shown = stop_.Feed(text);
  shown_size_ += shown.size();
  parser_.Feed(shown, update.deltas);
}

// Adds what the parser reported to the whole.
void Reply::Keep(const Update& update) {
  for (const ReplyDelta& delta : update.deltas) {
    switch (delta.kind) {
      case ReplyDelta::Kind::kContent:
        content_ += delta.text;
        break;
      case ReplyDelta::Kind::kReasoning:
        reasoning_ += delta.text;
        break;
      case ReplyDelta::Kind::kToolCall:
        calls_.push_back({RandomId("call_"), delta.name, ""});
        break;
      case ReplyDelta::Kind::kToolArguments:
        calls_[delta.call].arguments += delta.text;
        break;
    }
  }
}

void Reply::ReleaseTokens(Update& update) {
  // A token of no bytes of its own, as the middle of a character, goes with the one before it.
  const auto kept = std::ranges::find_if(held_, [this](const HeldToken& held) {
    return held.begin >= shown_size_ && text_size_ > shown_size_;
  });
  for (auto held = held_.begin(); held != kept; ++held) {
    tokens_.push_back(held->token);
    update.tokens.push_back(std::move(held->token));
  }
  held_.erase(held_.begin(), kept);
}

}  // namespace server
