// ExpertSplitComputeRuntime: who computes what, and through which object.
//
// The execution-facing view of a placement: for each target its map from the router's expert ids to
// its own local ids, and its compute object; and the one object through which a layer's expert node
// drives them all. Which kind that is follows from the placement path: a single owner is driven
// directly, the two-tier layout by HotColdCompute, and only the multi path by MultiTargetCompute.
//
// The maps are immutable (any thread); the compute objects are driven as MoeExpertCompute says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "moe/compute/expert_compute.h"
#include "moe/materialize/materialization.h"
#include "moe/plan/placement_path.h"
#include "moe/plan/plan.h"
#include "moe/runtime/runtime.h"
#include "moe/target/ids.h"
#include "moe/target/target_config.h"

namespace moe {

// Makes the compute object of one target that owns at least one unit, loading what the
// materialization lists for it. Nullptr is allowed for a primary whose layers are all wholly its
// own (its graph computes them).
using ExpertComputeFactory = std::function<base::Result<std::unique_ptr<MoeExpertCompute>>(
    TargetId target, const std::shared_ptr<const ExpertSplitMaterialization>& materialization)>;

class ExpertSplitComputeRuntime {
 public:
  // Value of local_ids() for an expert that the target does not own.
  static constexpr std::int32_t kNotOwned = -1;

  // Calls `factory` once for each target that owns a unit, in list order. Precondition: `plan` is
  // for the targets of `config`, and `materialization` was made from it. Errors: the factory's (no
  // later target is asked); kInternal, naming the target, when it makes nothing where it must.
  static base::Result<std::unique_ptr<ExpertSplitComputeRuntime>> Make(
      const ExpertSplitTargetConfig& config, const ExpertSplitPlan& plan,
      std::shared_ptr<const ExpertSplitMaterialization> materialization,
      const ExpertComputeFactory& factory);

  PlacementPath path() const { return path_; }

  // What a layer's expert node drives, owned by this; nullptr when the primary's graph computes
  // every layer. A layer that is all_on_primary() needs no node where the primary is a device.
  MoeExpertCompute* routed() const { return routed_.get(); }
  // The target of each of routed()'s parts, in order.
  std::span<const TargetId> part_targets() const { return part_targets_; }
  // The target's own object, as the factory made it; nullptr when it made none. Owned by this.
  MoeExpertCompute* compute(TargetId target) const { return computes_[target.index()]; }

  // [num_experts]: index in `target`'s stack of `layer`, or kNotOwned. The inverse is
  // ExpertSplitRuntime::experts. Precondition: ids within the plan's ranges.
  std::span<const std::int32_t> local_ids(TargetId target, LayerId layer) const;
  // Every expert of the layer belongs to the primary.
  bool all_on_primary(LayerId layer) const { return all_on_primary_[layer.index()]; }

 private:
  explicit ExpertSplitComputeRuntime(
      std::shared_ptr<const ExpertSplitMaterialization> materialization);

  bool OwnsSharedLayer(TargetId target) const;
  base::Result<void> MakeComputes(const ExpertSplitTargetConfig& config,
                                  const ExpertSplitPlan& plan, const ExpertComputeFactory& factory);

  std::shared_ptr<const ExpertSplitMaterialization> materialization_;
  std::vector<std::int32_t> local_ids_;  // [num_targets, num_layers, num_experts]
  std::vector<bool> all_on_primary_;     // [num_layers]
  PlacementPath path_ = PlacementPath::kSingle;
  std::unique_ptr<MoeExpertCompute> routed_;
  std::vector<MoeExpertCompute*> computes_;  // [num_targets], into routed_
  std::vector<TargetId> part_targets_;       // [routed_->num_parts()]
};

}  // namespace moe
