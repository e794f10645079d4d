// MultiTargetCompute: the experts of one batch, computed by several owners at the same time.
//
// Composed of the compute objects of single targets. Begin starts every owner that has a pair of
// the batch before anything waits; owners on the team compute in Prepare, Expand and Reduce; Finish
// collects all. An owner without a pair of the batch is not called at all. Threads and phases as
// MoeExpertCompute says; owns its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/runtime/runtime.h"
#include "moe/target/ids.h"

namespace moe {

class MultiTargetCompute final : public MoeExpertCompute {
 public:
  struct Owner {
    TargetId target{};
    std::unique_ptr<MoeExpertCompute> compute;  // not nullptr, one part
  };

  // Precondition: `owners` in ascending order of target. A target without an object here must not
  // own an expert of any batch.
  MultiTargetCompute(std::shared_ptr<const ExpertSplitRuntime> runtime, std::vector<Owner> owners);

  // Errors: the first one of an owner's Begin, in target order; all others were asked to begin all
  // the same and have been waited for, so nothing is in flight and the object is ready for another
  // batch. kInternal when a pair's owner has no object here (then nobody was called).
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  // Waits for every owner, also after one has failed. Errors: the first failure in target order;
  // the parts of owners that failed are then empty.
  base::Result<void> Finish() override;

  // In target order; empty for an owner that was not called or failed.
  ExpertPart part(std::size_t index) const override;
  std::size_t num_parts() const override { return owners_.size(); }
  // Pairs of the batches that this owner finished without an error.
  std::uint64_t num_pairs(std::size_t index) const override { return owners_[index].num_pairs; }

  TargetId target(std::size_t index) const { return owners_[index].target; }

 private:
  struct State {
    TargetId target{};
    std::unique_ptr<MoeExpertCompute> compute;
    std::uint64_t batch_pairs = 0;  // of the batch in flight
    bool active = false;            // begun and not failed
    std::uint64_t num_pairs = 0;
  };

  // Sets batch_pairs of each owner.
  base::Result<void> CountPairs(const ExpertBatch& batch);

  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  std::vector<State> owners_;                // ascending by target
  std::vector<std::uint64_t> target_pairs_;  // [num_targets], of the batch in flight
};

}  // namespace moe
