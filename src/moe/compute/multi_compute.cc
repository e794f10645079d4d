#include "moe/compute/multi_compute.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace moe {

MultiTargetCompute::MultiTargetCompute(std::shared_ptr<const ExpertSplitRuntime> runtime,
                                       std::vector<Owner> owners)
    : runtime_(std::move(runtime)), target_pairs_(runtime_->num_targets()) {
  ES_CHECK(std::ranges::adjacent_find(owners, std::ranges::greater_equal{}, &Owner::target) ==
           owners.end());
  owners_.reserve(owners.size());
  for (Owner& owner : owners) {
    ES_CHECK(owner.target.index() < runtime_->num_targets());
    ES_CHECK(owner.compute != nullptr && owner.compute->num_parts() == 1);
    owners_.push_back({.target = owner.target, .compute = std::move(owner.compute)});
  }
}

base::Result<void> MultiTargetCompute::CountPairs(const ExpertBatch& batch) {
  std::ranges::fill(target_pairs_, 0);
  const std::size_t num_pairs = batch.num_rows * batch.num_used;
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    const ExpertId expert(static_cast<std::size_t>(batch.ids[pair]));
    ++target_pairs_[runtime_->place(batch.layer, expert).owner.index()];
  }
  std::uint64_t covered = 0;
  for (State& owner : owners_) {
    owner.batch_pairs = target_pairs_[owner.target.index()];
    owner.active = false;
    covered += owner.batch_pairs;
  }
  if (covered != num_pairs) {
    return base::Fail(base::ErrorKind::kInternal,
                      "{} of {} expert rows of layer {} belong to a target that computes none",
                      num_pairs - covered, num_pairs, batch.layer.value);
  }
  return {};
}

base::Result<void> MultiTargetCompute::Begin(const ExpertBatch& batch) {
  if (base::Result<void> counted = CountPairs(batch); !counted) return counted;
  base::Result<void> first;
  for (State& owner : owners_) {
    if (owner.batch_pairs == 0) continue;
    base::Result<void> begun = owner.compute->Begin(batch);
    owner.active = begun.has_value();
    if (!begun && first) first = std::move(begun);
  }
  if (first) return {};
  for (State& owner : owners_) {
    // The batch is lost already; a second error would only hide the first.
    if (owner.active) static_cast<void>(owner.compute->Finish());
    owner.active = false;
  }
  return first;
}

void MultiTargetCompute::Prepare(TeamThread thread) {
  for (State& owner : owners_) {
    if (owner.active) owner.compute->Prepare(thread);
  }
}

void MultiTargetCompute::Expand(TeamThread thread) {
  for (State& owner : owners_) {
    if (owner.active) owner.compute->Expand(thread);
  }
}

void MultiTargetCompute::Reduce(TeamThread thread) {
  for (State& owner : owners_) {
    if (owner.active) owner.compute->Reduce(thread);
  }
}

base::Result<void> MultiTargetCompute::Finish() {
  base::Result<void> first;
  for (State& owner : owners_) {
    if (!owner.active) continue;
    base::Result<void> finished = owner.compute->Finish();
    if (finished) {
      owner.num_pairs += owner.batch_pairs;
    } else {
      owner.active = false;
      if (first) first = std::move(finished);
    }
  }
  return first;
}

ExpertPart MultiTargetCompute::part(std::size_t index) const {
  const State& owner = owners_[index];
  return owner.active ? owner.compute->part(0) : ExpertPart{};
}

}  // namespace moe
