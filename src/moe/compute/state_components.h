// ExpertSplitStateComponents: everything about a placement that a model backend holds.
//
// Targets, plan, lookup, load lists and compute objects, each made from the ones before, so that
// they always belong together. Move-only; the views are immutable (any thread), the compute objects
// are driven as MoeExpertCompute says. Another placement is another bundle.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "moe/compute/compute_runtime.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/materialize/materialization.h"
#include "moe/plan/plan.h"
#include "moe/runtime/runtime.h"
#include "moe/target/target_config.h"

namespace moe {

class ExpertSplitStateComponents {
 public:
  // `generation` is that of the runtime (ExpertSplitRuntime::Make). Errors: kCorruptModel when the
  // plan is for other targets than `config` or for experts of other sizes than `stacks`, naming
  // both; those of ExpertSplitMaterialization::Make, ExpertSplitComputeRuntime::Make and `factory`.
  static base::Result<ExpertSplitStateComponents> Make(ExpertSplitTargetConfig config,
                                                       ExpertSplitPlan plan, ExpertStacks stacks,
                                                       const ExpertComputeFactory& factory,
                                                       std::uint64_t generation = 0);

  const ExpertSplitTargetConfig& config() const { return config_; }
  const ExpertSplitPlan& plan() const { return plan_; }
  const std::shared_ptr<const ExpertSplitRuntime>& runtime() const { return runtime_; }
  const std::shared_ptr<const ExpertSplitMaterialization>& materialization() const {
    return materialization_;
  }
  const ExpertSplitComputeRuntime& compute() const { return *compute_; }

 private:
  ExpertSplitStateComponents(ExpertSplitTargetConfig config, ExpertSplitPlan plan);

  ExpertSplitTargetConfig config_;
  ExpertSplitPlan plan_;
  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  std::shared_ptr<const ExpertSplitMaterialization> materialization_;
  std::unique_ptr<ExpertSplitComputeRuntime> compute_;
};

}  // namespace moe
