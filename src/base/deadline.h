// A point in time after which a wait is over. A value; any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace base {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(Clock::duration span) { return Deadline(Clock::now() + span); }
  static Deadline Never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return !never() && Clock::now() >= end_; }
  bool never() const { return end_ == Clock::time_point::max(); }

  // For poll(2): milliseconds left, rounded up, at least 0; -1 for Never.
  int poll_timeout() const {
    if (never()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
  }

 private:
  explicit Deadline(Clock::time_point end) : end_(end) {}

  Clock::time_point end_;
};

}  // namespace base
