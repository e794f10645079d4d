#include "engine/channel.h"

namespace engine {

void GenerationChannel::Push(GeneratedToken token) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(std::move(token));
  }
  changed_.notify_one();
}

void GenerationChannel::Finish(GenerationSummary summary) {
  {
    const std::lock_guard lock(mutex_);
    summary_ = std::move(summary);
  }
  changed_.notify_one();
}

GenerationChannel::Taken GenerationChannel::Take(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return !tokens_.empty() || summary_.has_value(); });
  return {std::exchange(tokens_, {}), summary_};
}

}  // namespace engine
