// Placement: owners while a policy is still deciding; internal to src/moe/plan.
//
// Keeps, per target, the bytes still free and, per layer, how many units it owns, so that a policy
// cannot exceed a capacity by miscounting. A policy leaves a unit without an owner when no target
// has room for it. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "moe/plan/model_shape.h"
#include "moe/plan/plan.h"
#include "moe/target/ids.h"

namespace moe {

// In an owner array: nobody. Target indices are below it.
inline constexpr std::uint8_t kNoOwner = 255;
inline constexpr std::size_t kMaxTargets = 255;

class Placement {
 public:
  // Nobody owns anything. `shape` outlives the placement.
  Placement(const ModelShape& shape, std::span<const PlanTarget> targets);

  const ModelShape& shape() const { return shape_; }
  std::size_t num_targets() const { return free_.size(); }
  // Bytes of units that `target` can still take; Bytes::Max() when it is unbounded.
  base::Bytes free(TargetId target) const { return free_[target.index()]; }
  bool unbounded(TargetId target) const { return unbounded_[target.index()]; }
  bool Fits(TargetId target, LayerId layer) const {
    return shape_.unit_bytes(layer) <= free(target);
  }
  // Units of `layer` that `target` owns.
  std::uint32_t count(LayerId layer, TargetId target) const {
    return counts_[target.index() * shape_.layers.size() + layer.index()];
  }
  // The fewest units that `target` owns of any layer.
  std::uint32_t min_count(TargetId target) const;
  std::uint8_t owner(LayerId layer, ExpertId expert) const {
    return owners_[layer.index() * shape_.num_experts + expert.index()];
  }

  // Precondition: the unit has no owner and Fits(target, layer).
  void Give(LayerId layer, ExpertId expert, TargetId target);
  // Precondition: the unit has an owner.
  void Take(LayerId layer, ExpertId expert);

  std::size_t num_homeless() const { return num_homeless_; }
  // [num_layers * num_experts], layer major; kNoOwner where homeless.
  std::span<const std::uint8_t> owners() const { return owners_; }

 private:
  const ModelShape& shape_;
  std::vector<base::Bytes> free_;
  std::vector<bool> unbounded_;
  std::vector<std::uint32_t> counts_;  // [num_targets, num_layers]
  std::vector<std::uint8_t> owners_;   // [num_layers, num_experts]
  std::size_t num_homeless_ = 0;
};

}  // namespace moe
