#include "moe/compute/failover_compute.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "moe/compute/shared_compute.h"

namespace moe {
namespace {

// The object behind a SharedCompute, or the one there is; nullptr when there is none.
const MoeExpertCompute* Owner(const ExpertSplitStateComponents& components, std::size_t target) {
  const MoeExpertCompute* compute = components.compute().compute(TargetId(target));
  const auto* shared = dynamic_cast<const SharedCompute*>(compute);
  return shared != nullptr ? shared->owner() : compute;
}

void Add(ExpertTimes& sum, const ExpertTimes& times, double sign) {
  sum.busy_ms += sign * times.busy_ms;
  sum.wait_ms += sign * times.wait_ms;
}

}  // namespace

FailoverCompute::FailoverCompute(Components first, std::vector<LostWorker> lost, Replace replace,
                                 Replace settle, OnWorkerLoss policy)
    : replace_(std::move(replace)),
      settle_(std::move(settle)),
      policy_(policy),
      components_(std::move(first)),
      past_times_(components_->config().size()),
      lost_(std::move(lost)),
      missing_(lost_),
      routed_(components_->compute().routed()),
      runtime_(components_->runtime().get()),
      target_pairs_(components_->config().size()) {}

FailoverCompute::Components FailoverCompute::components() const {
  const std::lock_guard lock(mutex_);
  return components_;
}

std::vector<LostWorker> FailoverCompute::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::vector<LostWorker> FailoverCompute::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

ExpertTimes FailoverCompute::TargetTimes(TargetId target) const {
  const std::lock_guard lock(mutex_);
  ExpertTimes sum = past_times_[target.index()];
  if (const MoeExpertCompute* owner = Owner(*components_, target.index())) {
    Add(sum, owner->times(), 1);
  }
  return sum;
}

std::uint64_t FailoverCompute::num_pairs(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return TargetPairs(components_->compute().part_targets()[index]);
}

base::Result<void> FailoverCompute::Recover(base::Error failure) {
  auto next = replace_(runtime_->generation());
  if (!next) return base::Forward(next);
  if (next->components == nullptr) return std::unexpected(std::move(failure));
  Take(std::move(*next));
  return {};
}

void FailoverCompute::Take(Replacement next) {
  routed_ = next.components->compute().routed();
  runtime_ = next.components->runtime().get();
  ES_CHECK(routed_ != nullptr);
  const std::lock_guard lock(mutex_);
  for (std::size_t t = 0; t < target_pairs_.size(); ++t) {
    const MoeExpertCompute* before = Owner(*components_, t);
    const MoeExpertCompute* after = Owner(*next.components, t);
    if (before != after) {
      if (before != nullptr) Add(past_times_[t], before->times(), 1);
      if (after != nullptr) Add(past_times_[t], after->times(), -1);
    }
    auto* shared = dynamic_cast<SharedCompute*>(components_->compute().compute(TargetId(t)));
    if (shared != nullptr) shared->LetGo();
  }
  std::swap(components_, next.components);
  lost_.insert(lost_.end(), next.lost.begin(), next.lost.end());
  missing_.insert(missing_.end(), next.lost.begin(), next.lost.end());
  std::erase_if(missing_, [&](const LostWorker& worker) {
    return std::ranges::contains(next.returned, worker.target);
  });
}

void FailoverCompute::Adopt(Components next) {
  ES_CHECK(next->runtime()->generation() == runtime_->generation() + 1);
  Take({.components = std::move(next), .lost = {}, .returned = {}});
}

base::Result<void> FailoverCompute::Settle() {
  if (must_recover_) return {};
  auto next = settle_(runtime_->generation());
  if (!next) {
    must_recover_ = true;
    return base::Forward(next);
  }
  if (next->components != nullptr) Take(std::move(*next));
  return {};
}

base::Result<void> FailoverCompute::Begin(const ExpertBatch& batch) {
  batch_ = batch;
  if (must_recover_) {
    auto next = replace_(runtime_->generation());
    if (!next) return base::Forward(next);
    must_recover_ = false;
    if (next->components != nullptr) Take(std::move(*next));
  }
  for (;;) {
    base::Result<void> begun = routed_->Begin(batch);
    if (begun) return begun;
    if (policy_ == OnWorkerLoss::kFail) {
      must_recover_ = begun.error().kind == base::ErrorKind::kWorkerLost;
      return begun;
    }
    if (auto recovered = Recover(std::move(begun.error())); !recovered) return recovered;
  }
}

base::Result<void> FailoverCompute::ComputeAlone() {
  constexpr TeamThread kAlone{0, 1};
  if (auto begun = routed_->Begin(batch_); !begun) return begun;
  routed_->Prepare(kAlone);
  routed_->Expand(kAlone);
  routed_->Reduce(kAlone);
  return routed_->Finish();
}

base::Result<void> FailoverCompute::Finish() {
  base::Result<void> finished = routed_->Finish();
  while (!finished) {
    if (policy_ == OnWorkerLoss::kFail) {
      must_recover_ = finished.error().kind == base::ErrorKind::kWorkerLost;
      return finished;
    }
    if (auto recovered = Recover(std::move(finished.error())); !recovered) return recovered;
    finished = ComputeAlone();
  }
  CountPairs();
  return {};
}

void FailoverCompute::CountPairs() {
  for (std::size_t pair = 0; pair < batch_.num_rows * batch_.num_used; ++pair) {
    const ExpertId expert(static_cast<std::size_t>(batch_.ids[pair]));
    target_pairs_[runtime_->place(batch_.layer, expert).owner.index()].fetch_add(
        1, std::memory_order_relaxed);
  }
}

}  // namespace moe
