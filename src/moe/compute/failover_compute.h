// FailoverCompute: the experts of a model whose placement may change while it computes.
//
// Drives the routed experts of a placement. When a batch fails because a worker is lost, a new
// placement that gives its units to other targets takes the place of the old one, the batch is
// computed again under it, and whoever drives this object notices nothing but the time. Units may
// also move for the traffic's sake (PlacementMover). A placement is never changed: the one that
// follows has the next generation. Whoever holds an old one can read it, but it has let go of its
// compute objects.
//
// Threads as MoeExpertCompute says; placement changes happen in Begin, Finish, Settle and Adopt,
// while no other thread is in a phase. components(), lost(), TargetPairs and TargetTimes: any
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/state_components.h"
#include "moe/target/ids.h"

namespace moe {

enum class OnWorkerLoss {
  kMove,  // its units move to other targets and the batch is computed all the same
  kFail,  // the batch fails; its units move before the next one
};

struct LostWorker {
  TargetId target{};
  std::string reason;  // what was wrong, naming the worker
};

class FailoverCompute final : public MoeExpertCompute {
 public:
  using Components = std::shared_ptr<const ExpertSplitStateComponents>;
  struct Replacement {
    Components components;  // nullptr: nothing changes
    std::vector<LostWorker> lost;
    std::vector<TargetId> returned;
  };
  // Makes the placement that follows the one of this generation, now that a worker may be lost.
  // Errors: kWorkerLost when nobody can take its units; those of the new owners.
  using Replace = std::function<base::Result<Replacement>(std::uint64_t generation)>;

  // `lost` are workers that were lost before; `settle` is what Settle asks. Precondition: `first`
  // has a compute object, or this is not driven.
  FailoverCompute(Components first, std::vector<LostWorker> lost, Replace replace, Replace settle,
                  OnWorkerLoss policy);

  // The placement in force.
  Components components() const;
  // In the order in which they were lost, also those that came back since.
  std::vector<LostWorker> lost() const;
  // Those that have not come back.
  std::vector<LostWorker> missing() const;
  // Pairs of batches that were computed, by the target that owned them at that time.
  std::uint64_t TargetPairs(TargetId target) const {
    return target_pairs_[target.index()].load(std::memory_order_relaxed);
  }
  // Of all objects that computed for the target.
  ExpertTimes TargetTimes(TargetId target) const;

  // Between batches, by the thread that calls Begin: puts the placement that follows the one in
  // force in its place. Precondition: its generation is the next one, and every owner has its
  // units.
  void Adopt(Components next);

  // Between steps, often, by the thread that calls Begin: notices workers that have ended, and
  // takes those back that can be reached or started again. Errors: as Begin; the next batch tries
  // once more.
  base::Result<void> Settle();

  // Errors: those of the owners for which there is no remedy; kWorkerLost with kFail, or when
  // nobody can take the units.
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override { routed_->Prepare(thread); }
  void Expand(TeamThread thread) override { routed_->Expand(thread); }
  void Reduce(TeamThread thread) override { routed_->Reduce(thread); }
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override { return routed_->part(index); }
  std::size_t num_parts() const override { return routed_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override;

 private:
  // Puts a placement without the lost workers in force. Errors: `failure` when none is lost, or
  // may not be replaced.
  base::Result<void> Recover(base::Error failure);
  // Puts it in force.
  void Take(Replacement next);
  // All phases of the batch on this thread.
  base::Result<void> ComputeAlone();
  void CountPairs();

  Replace replace_;
  Replace settle_;
  OnWorkerLoss policy_;
  mutable std::mutex mutex_;  // guards the next four
  Components components_;     // in force
  // [num_targets]: of owners that are gone, less what owners had computed before they came.
  std::vector<ExpertTimes> past_times_;
  std::vector<LostWorker> lost_;
  std::vector<LostWorker> missing_;
  MoeExpertCompute* routed_ = nullptr;  // of the one in force; changed by thread 0 alone
  const ExpertSplitRuntime* runtime_ = nullptr;
  bool must_recover_ = false;  // before the next batch
  ExpertBatch batch_;
  std::vector<std::atomic<std::uint64_t>> target_pairs_;  // [num_targets]
};

}  // namespace moe
