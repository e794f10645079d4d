// PairGroups: the owned pairs of a batch, grouped by expert.
//
// So that each expert's weights are read once a batch. One writer (Build), then any number of
// readers; the caller puts a barrier between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/compute/expert_compute.h"

namespace moe {

struct PairGroup {
  ExpertId expert;
  std::size_t begin = 0;  // its pairs: positions [begin, end) of PairGroups::pairs()
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
};

class PairGroups {
 public:
  // Room for a batch of this many pairs over `num_experts` experts, so that Build does not
  // allocate. Throws std::bad_alloc.
  void Reserve(std::size_t num_pairs, std::size_t num_experts);

  // `owned` is [num_experts]: 0 for experts whose pairs are left out; an id outside of it is left
  // out as well. Precondition: Reserve for at least this many.
  void Build(const ExpertBatch& batch, std::span<const std::uint8_t> owned);

  // Most pairs first, equal ones by ExpertId. No group is empty.
  std::span<const PairGroup> groups() const { return groups_; }
  // Owned pairs, group after group, ascending within a group: row * num_used + slot.
  std::span<const std::uint32_t> pairs() const { return pairs_; }

 private:
  std::vector<PairGroup> groups_;
  std::vector<std::uint32_t> pairs_;
  std::vector<std::uint32_t> next_;  // [num_experts]: count, then where its next pair goes
};

}  // namespace moe
