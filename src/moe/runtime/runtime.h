// ExpertSplitRuntime: the plan as constant-time lookup.
//
// Immutable and shared by const pointer: whatever changes owners makes a new one, with the next
// generation, and swaps it between steps; nothing mutates a map that a graph may be reading. Any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moe/plan/plan.h"
#include "moe/target/ids.h"

namespace moe {

// Index of an expert inside its owner's stack of that layer: 0 to num_local(layer, target) - 1, in
// ascending order of ExpertId.
using LocalId = Id<struct LocalTag>;

class ExpertSplitRuntime {
 public:
  struct Place {
    TargetId owner;
    LocalId local;
    friend bool operator==(const Place&, const Place&) = default;
  };

  static std::shared_ptr<const ExpertSplitRuntime> Make(const ExpertSplitPlan& plan,
                                                        std::uint64_t generation = 0);

  // Precondition of all: ids within the plan's ranges.
  Place place(LayerId layer, ExpertId expert) const {
    return places_[layer.index() * num_experts_ + expert.index()];
  }
  // The experts of `layer` that `target` owns, ascending; the position is the LocalId.
  std::span<const ExpertId> experts(LayerId layer, TargetId target) const;
  std::size_t num_local(LayerId layer, TargetId target) const {
    return experts(layer, target).size();
  }

  std::size_t num_layers() const { return num_layers_; }
  std::size_t num_experts() const { return num_experts_; }
  std::size_t num_targets() const { return num_targets_; }
  std::uint64_t plan_fingerprint() const { return plan_fingerprint_; }
  std::uint64_t generation() const { return generation_; }

 private:
  ExpertSplitRuntime() = default;

  std::size_t num_layers_ = 0;
  std::size_t num_experts_ = 0;
  std::size_t num_targets_ = 0;
  std::uint64_t plan_fingerprint_ = 0;
  std::uint64_t generation_ = 0;
  std::vector<Place> places_;         // [num_layers, num_experts]
  std::vector<ExpertId> by_owner_;    // [num_layers, num_experts], grouped by owner
  std::vector<std::uint32_t> begin_;  // [num_layers, num_targets + 1] into a layer's group
};

}  // namespace moe
