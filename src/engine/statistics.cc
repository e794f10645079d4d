#include "engine/statistics.h"

#include <algorithm>

namespace engine {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kTimeout:
      return "timeout";
    case FinishReason::kFailed:
      return "failed";
  }
  return "failed";
}

void DurationHistogram::Add(double seconds) {
  const auto bucket = std::ranges::lower_bound(kBounds, seconds);
  ++counts_[static_cast<std::size_t>(bucket - kBounds.begin())];
  ++count_;
  sum_seconds_ += seconds;
}

}  // namespace engine
