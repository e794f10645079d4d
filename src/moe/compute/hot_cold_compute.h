// HotColdCompute: one batch computed by one owner elsewhere and this process's CPU.
//
// The two-tier layout's own simple path (`gpu,cpu`; also `worker(cpu),cpu`, and the nodes of a NUMA
// machine): at most one owner has anything to be waited for, so there is nothing to look up and
// nothing to collect in order. Every owner is called for every batch, also when it has no pair of
// it. Threads and phases as MoeExpertCompute says; owns its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moe/compute/expert_compute.h"

namespace moe {

class HotColdCompute final : public MoeExpertCompute {
 public:
  // `owners` in target order, none nullptr, one part each. `elsewhere` is the index of the one that
  // is not computed by this process's CPU threads, if there is one: it begins last, so that an
  // error leaves nothing running.
  HotColdCompute(std::vector<std::unique_ptr<MoeExpertCompute>> owners,
                 std::optional<std::size_t> elsewhere);

  // Errors: that of the owner that could not begin; nothing is in flight then.
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  // Errors: the first owner's that failed; the others have finished all the same.
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override { return owners_[index]->part(0); }
  std::size_t num_parts() const override { return owners_.size(); }
  std::uint64_t num_pairs(std::size_t index) const override { return owners_[index]->num_pairs(0); }

 private:
  std::vector<std::unique_ptr<MoeExpertCompute>> owners_;
  std::vector<std::size_t> begin_order_;  // indices into owners_
};

}  // namespace moe
