// Between the inference thread and the client of one generation. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace engine {

class GenerationChannel {
 public:
  // The inference thread's side. Nothing is pushed after Finish.
  void Push(GeneratedToken token);
  void Finish(GenerationSummary summary);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // The client's side.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  struct Taken {
    std::vector<GeneratedToken> tokens;
    std::optional<GenerationSummary> summary;  // set when no more will come
  };
  // Waits for tokens or the end.
  Taken Take(std::chrono::milliseconds wait);

 private:
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<GeneratedToken> tokens_;
  std::optional<GenerationSummary> summary_;
};

}  // namespace engine
