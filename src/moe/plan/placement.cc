#include "moe/plan/placement.h"

#include <algorithm>

#include "base/check.h"

namespace moe {

Placement::Placement(const ModelShape& shape, std::span<const PlanTarget> targets)
    : shape_(shape),
      counts_(targets.size() * shape.layers.size(), 0),
      owners_(shape.num_units(), kNoOwner),
      num_homeless_(shape.num_units()) {
  for (const PlanTarget& target : targets) {
    free_.push_back(target.capacity.value_or(base::Bytes::Max()));
    unbounded_.push_back(!target.capacity.has_value());
  }
}

std::uint32_t Placement::min_count(TargetId target) const {
  const auto begin =
      counts_.begin() + static_cast<std::ptrdiff_t>(target.index() * shape_.layers.size());
  return *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(shape_.layers.size()));
}

void Placement::Give(LayerId layer, ExpertId expert, TargetId target) {
  std::uint8_t& owner = owners_[layer.index() * shape_.num_experts + expert.index()];
  ES_CHECK(owner == kNoOwner && Fits(target, layer));
  owner = static_cast<std::uint8_t>(target.index());
  if (!unbounded(target)) free_[target.index()] -= shape_.unit_bytes(layer);
  ++counts_[target.index() * shape_.layers.size() + layer.index()];
  --num_homeless_;
}

void Placement::Take(LayerId layer, ExpertId expert) {
  std::uint8_t& owner = owners_[layer.index() * shape_.num_experts + expert.index()];
  ES_CHECK(owner != kNoOwner);
  const TargetId target(owner);
  owner = kNoOwner;
  if (!unbounded(target)) free_[target.index()] += shape_.unit_bytes(layer);
  --counts_[target.index() * shape_.layers.size() + layer.index()];
  ++num_homeless_;
}

}  // namespace moe
