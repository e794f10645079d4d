// What an engine has done since it was started, for metrics and status pages. Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace engine {

// How a generation ended.
enum class FinishReason {
  kEnd,        // the model ended it
  kLength,     // max_tokens were generated
  kCancelled,  // by the client, or because the engine was shut down
  kTimeout,    // the request's own time had passed
  kFailed,     // the backend failed
};
inline constexpr std::size_t kNumFinishReasons = 5;

// "end", "length", "cancelled", "timeout", "failed".
std::string_view FinishReasonName(FinishReason reason);

// Durations, counted by size.
class DurationHistogram {
 public:
  // Upper bounds of the buckets in seconds, inclusive; a last bucket takes the rest.
  static constexpr std::array<double, 14> kBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                     2.5,  5,     10,   25,  50,   100, 250};

  void Add(double seconds);

  // [kBounds.size() + 1]: durations in each bucket, not accumulated.
  const std::array<std::uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  std::uint64_t count() const { return count_; }
  double sum_seconds() const { return sum_seconds_; }

 private:
  std::array<std::uint64_t, kBounds.size() + 1> counts_{};
  std::uint64_t count_ = 0;
  double sum_seconds_ = 0;
};

struct EngineStatistics {
  // Now.
  std::size_t slots = 0;
  std::size_t running = 0;  // requests that have a slot
  std::size_t queued = 0;
  std::size_t last_batch_rows = 0;
  std::size_t checkpoints = 0;
  std::uint64_t checkpoint_bytes = 0;

  // Since the start.
  std::array<std::uint64_t, kNumFinishReasons> finished{};  // by FinishReason
  std::uint64_t refused = 0;                                // kBusy and kUnavailable
  std::uint64_t prompt_tokens = 0;  // computed; without those that were reused
  std::uint64_t cached_tokens = 0;  // of prompts, reused
  std::uint64_t prefix_hits = 0;    // requests that reused at least one token
  std::uint64_t prefix_misses = 0;  // requests that reused none
  std::uint64_t generated_tokens = 0;
  std::uint64_t steps = 0;
  std::uint64_t step_rows = 0;  // of all steps together
  // Time of steps that had prompt rows, and of those that had generating rows only.
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::uint64_t decode_step_tokens = 0;  // rows of the latter: tokens behind decode_seconds
  DurationHistogram time_to_first_token;
  DurationHistogram queue_time;
};

}  // namespace engine
