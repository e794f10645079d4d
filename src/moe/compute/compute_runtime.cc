#include "moe/compute/compute_runtime.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "moe/compute/hot_cold_compute.h"
#include "moe/compute/multi_compute.h"

namespace moe {
namespace {

std::unique_ptr<MoeExpertCompute> MakeHotCold(const ExpertSplitTargetConfig& config,
                                              std::vector<MultiTargetCompute::Owner> owners) {
  std::vector<std::unique_ptr<MoeExpertCompute>> computes;
  std::optional<std::size_t> elsewhere;
  for (MultiTargetCompute::Owner& owner : owners) {
    if (!config[owner.target].in_process_cpu()) {
      ES_CHECK(!elsewhere);
      elsewhere = computes.size();
    }
    computes.push_back(std::move(owner.compute));
  }
  return std::make_unique<HotColdCompute>(std::move(computes), elsewhere);
}

}  // namespace

ExpertSplitComputeRuntime::ExpertSplitComputeRuntime(
    std::shared_ptr<const ExpertSplitMaterialization> materialization)
    : materialization_(std::move(materialization)) {
  const ExpertSplitRuntime& runtime = materialization_->runtime();
  const std::size_t num_layers = runtime.num_layers();
  const std::size_t num_experts = runtime.num_experts();
  computes_.resize(runtime.num_targets(), nullptr);
  local_ids_.assign(runtime.num_targets() * num_layers * num_experts, kNotOwned);
  for (std::size_t l = 0; l < num_layers; ++l) {
    for (std::size_t e = 0; e < num_experts; ++e) {
      const ExpertSplitRuntime::Place place = runtime.place(LayerId(l), ExpertId(e));
      local_ids_[(place.owner.index() * num_layers + l) * num_experts + e] =
          static_cast<std::int32_t>(place.local.value);
    }
    all_on_primary_.push_back(runtime.num_local(LayerId(l), materialization_->primary()) ==
                              num_experts);
  }
}

std::span<const std::int32_t> ExpertSplitComputeRuntime::local_ids(TargetId target,
                                                                   LayerId layer) const {
  const ExpertSplitRuntime& runtime = materialization_->runtime();
  const std::size_t at = target.index() * runtime.num_layers() + layer.index();
  return std::span(local_ids_).subspan(at * runtime.num_experts(), runtime.num_experts());
}

// Whether the target owns a unit of a layer in which another target owns one too.
bool ExpertSplitComputeRuntime::OwnsSharedLayer(TargetId target) const {
  const ExpertSplitRuntime& runtime = materialization_->runtime();
  for (std::size_t l = 0; l < runtime.num_layers(); ++l) {
    const std::size_t owned = runtime.num_local(LayerId(l), target);
    if (owned != 0 && owned != runtime.num_experts()) return true;
  }
  return false;
}

base::Result<void> ExpertSplitComputeRuntime::MakeComputes(const ExpertSplitTargetConfig& config,
                                                           const ExpertSplitPlan& plan,
                                                           const ExpertComputeFactory& factory) {
  std::vector<MultiTargetCompute::Owner> owners;
  for (std::size_t t = 0; t < config.size(); ++t) {
    const TargetId target(t);
    if (plan.units(target) == 0) continue;
    base::Result<std::unique_ptr<MoeExpertCompute>> made = factory(target, materialization_);
    if (!made) return base::Forward(made);
    if (*made == nullptr) {
      if (target == materialization_->primary() && !OwnsSharedLayer(target)) continue;
      return base::Fail(base::ErrorKind::kInternal,
                        "target {} owns {} units but nothing was made to compute them",
                        config[target].name, plan.units(target));
    }
    computes_[t] = made->get();
    part_targets_.push_back(target);
    owners.push_back({.target = target, .compute = std::move(*made)});
  }
  if (path_ == PlacementPath::kMulti) {
    routed_ =
        std::make_unique<MultiTargetCompute>(materialization_->shared_runtime(), std::move(owners));
  } else if (owners.size() > 1) {
    routed_ = MakeHotCold(config, std::move(owners));
  } else if (!owners.empty()) {
    routed_ = std::move(owners.front().compute);
  }
  return {};
}

base::Result<std::unique_ptr<ExpertSplitComputeRuntime>> ExpertSplitComputeRuntime::Make(
    const ExpertSplitTargetConfig& config, const ExpertSplitPlan& plan,
    std::shared_ptr<const ExpertSplitMaterialization> materialization,
    const ExpertComputeFactory& factory) {
  ES_CHECK(config.size() == plan.targets().size());
  std::unique_ptr<ExpertSplitComputeRuntime> runtime(
      new ExpertSplitComputeRuntime(std::move(materialization)));
  runtime->path_ = PathOf(plan, config);
  if (base::Result<void> made = runtime->MakeComputes(config, plan, factory); !made) {
    return base::Forward(made);
  }
  return runtime;
}

}  // namespace moe
