#include "moe/compute/state_components.h"

#include <string>
#include <utility>

namespace moe {
namespace {

base::Result<void> CheckTargets(const ExpertSplitTargetConfig& config,
                                const ExpertSplitPlan& plan) {
  std::string planned;
  for (const PlanTarget& target : plan.targets()) {
    planned += (planned.empty() ? "" : ",") + target.name;
  }
  std::string listed;
  for (const ExpertSplitTarget& target : config.targets()) {
    listed += (listed.empty() ? "" : ",") + target.name;
  }
  if (planned == listed) return {};
  return base::Fail(base::ErrorKind::kCorruptModel,
                    "the plan is for the targets {} and not for {}; make a new plan", planned,
                    listed);
}

base::Result<void> CheckBytes(const ExpertSplitPlan& plan,
                              const ExpertSplitMaterialization& materialization) {
  for (std::size_t t = 0; t < plan.targets().size(); ++t) {
    const TargetId target(t);
    const base::Bytes loaded = materialization.load(target).bytes;
    if (loaded == plan.bytes(target)) continue;
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "the plan gives target {} {} bytes of experts but the model has {} for it; "
                      "make a new plan",
                      plan.targets()[t].name, plan.bytes(target).count(), loaded.count());
  }
  return {};
}

}  // namespace

ExpertSplitStateComponents::ExpertSplitStateComponents(ExpertSplitTargetConfig config,
                                                       ExpertSplitPlan plan)
    : config_(std::move(config)), plan_(std::move(plan)) {}

base::Result<ExpertSplitStateComponents> ExpertSplitStateComponents::Make(
    ExpertSplitTargetConfig config, ExpertSplitPlan plan, ExpertStacks stacks,
    const ExpertComputeFactory& factory, std::uint64_t generation) {
  if (base::Result<void> checked = CheckTargets(config, plan); !checked) {
    return base::Forward(checked);
  }
  ExpertSplitStateComponents state(std::move(config), std::move(plan));
  state.runtime_ = ExpertSplitRuntime::Make(state.plan_, generation);

  auto materialization =
      ExpertSplitMaterialization::Make(std::move(stacks), state.runtime_, state.config_.primary());
  if (!materialization) return base::Forward(materialization);
  state.materialization_ = std::move(*materialization);
  if (base::Result<void> checked = CheckBytes(state.plan_, *state.materialization_); !checked) {
    return base::Forward(checked);
  }

  auto compute =
      ExpertSplitComputeRuntime::Make(state.config_, state.plan_, state.materialization_, factory);
  if (!compute) return base::Forward(compute);
  state.compute_ = std::move(*compute);
  return state;
}

}  // namespace moe
