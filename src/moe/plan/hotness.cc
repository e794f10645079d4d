#include "moe/plan/hotness.h"

#include <algorithm>

#include "base/check.h"

namespace moe {

Hotness Hotness::Uniform(const ModelShape& shape) {
  Hotness hotness;
  hotness.num_experts_ = shape.num_experts;
  hotness.shares_.assign(shape.num_units(), 1.0 / static_cast<double>(shape.num_experts));
  return hotness;
}

Hotness Hotness::FromCounts(const ModelShape& shape,
                            const std::vector<std::vector<std::uint64_t>>& counts) {
  ES_CHECK(counts.size() == shape.layers.size());
  Hotness hotness = Uniform(shape);
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    ES_CHECK(counts[layer].size() == shape.num_experts);
    // In floating point, because a sum of counts may exceed 64 bits.
    double sum = 0;
    for (const std::uint64_t count : counts[layer]) sum += static_cast<double>(count);
    if (sum == 0) continue;
    hotness.uniform_ = false;
    std::ranges::transform(
        counts[layer],
        hotness.shares_.begin() + static_cast<std::ptrdiff_t>(layer * shape.num_experts),
        [sum](std::uint64_t count) { return static_cast<double>(count) / sum; });
  }
  return hotness;
}

}  // namespace moe
