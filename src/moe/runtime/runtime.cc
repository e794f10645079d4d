#include "moe/runtime/runtime.h"

#include "base/check.h"

namespace moe {

std::shared_ptr<const ExpertSplitRuntime> ExpertSplitRuntime::Make(const ExpertSplitPlan& plan,
                                                                   std::uint64_t generation) {
  std::shared_ptr<ExpertSplitRuntime> runtime(new ExpertSplitRuntime);
  runtime->num_layers_ = plan.num_layers();
  runtime->num_experts_ = plan.num_experts();
  runtime->num_targets_ = plan.targets().size();
  runtime->plan_fingerprint_ = plan.fingerprint();
  runtime->generation_ = generation;
  runtime->places_.resize(plan.num_units());
  runtime->by_owner_.resize(plan.num_units());
  runtime->begin_.reserve(plan.num_layers() * (plan.targets().size() + 1));

  std::vector<std::uint32_t> num_local(runtime->num_targets_);
  for (std::size_t l = 0; l < runtime->num_layers_; ++l) {
    const LayerId layer(l);
    const std::size_t base = l * runtime->num_experts_;
    num_local.assign(runtime->num_targets_, 0);
    for (std::size_t e = 0; e < runtime->num_experts_; ++e) {
      const TargetId owner = plan.owner(layer, ExpertId(e));
      ES_CHECK(owner.index() < runtime->num_targets_);
      runtime->places_[base + e] = Place{owner, LocalId(num_local[owner.index()]++)};
    }
    const std::size_t first = runtime->begin_.size();
    std::uint32_t begin = 0;
    for (const std::uint32_t count : num_local) {
      runtime->begin_.push_back(begin);
      begin += count;
    }
    runtime->begin_.push_back(begin);
    for (std::size_t e = 0; e < runtime->num_experts_; ++e) {
      const Place& place = runtime->places_[base + e];
      const std::size_t group = runtime->begin_[first + place.owner.index()];
      runtime->by_owner_[base + group + place.local.index()] = ExpertId(e);
    }
  }
  return runtime;
}

std::span<const ExpertId> ExpertSplitRuntime::experts(LayerId layer, TargetId target) const {
  const std::size_t at = layer.index() * (num_targets_ + 1) + target.index();
  const std::size_t base = layer.index() * num_experts_;
  return {by_owner_.data() + base + begin_[at], by_owner_.data() + base + begin_[at + 1]};
}

}  // namespace moe
