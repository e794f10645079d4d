#include "moe/compute/pair_groups.h"

#include <algorithm>

namespace moe {

void PairGroups::Reserve(std::size_t num_pairs, std::size_t num_experts) {
  groups_.reserve(std::min(num_pairs, num_experts));
  pairs_.reserve(num_pairs);
  next_.reserve(num_experts);
}

void PairGroups::Build(const ExpertBatch& batch, std::span<const std::uint8_t> owned) {
  const std::size_t num_pairs = batch.num_rows * batch.num_used;
  // A negative id becomes a large number.
  const auto is_owned = [&](std::size_t pair) {
    const auto id = static_cast<std::uint32_t>(batch.ids[pair]);
    return id < owned.size() && owned[id] != 0;
  };
  next_.assign(owned.size(), 0);
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    if (is_owned(pair)) ++next_[static_cast<std::uint32_t>(batch.ids[pair])];
  }
  groups_.clear();
  for (std::size_t e = 0; e < owned.size(); ++e) {
    if (next_[e] != 0) groups_.push_back({ExpertId(e), 0, next_[e]});
  }
  std::sort(groups_.begin(), groups_.end(), [](const PairGroup& a, const PairGroup& b) {
    return a.end != b.end ? a.end > b.end : a.expert < b.expert;
  });
  std::size_t total = 0;
  for (PairGroup& group : groups_) {
    group.begin = total;
    total += group.end;
    group.end = total;
    next_[group.expert.index()] = static_cast<std::uint32_t>(group.begin);
  }
  pairs_.resize(total);
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    if (!is_owned(pair)) continue;
    pairs_[next_[static_cast<std::uint32_t>(batch.ids[pair])]++] = static_cast<std::uint32_t>(pair);
  }
}

}  // namespace moe
