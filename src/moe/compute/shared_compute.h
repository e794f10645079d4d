// SharedCompute: an owner that outlives a placement.
//
// A bundle of state components owns its compute objects. When a placement follows another one
// (FailoverCompute), owners that have not changed belong to both: each bundle gets a SharedCompute
// of its own over the same object. Forwards every call; threads as MoeExpertCompute says, and only
// the bundle that is in force is driven. A bundle that no longer is lets go of its owners, so that
// whoever still looks at it does not keep them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "moe/compute/expert_compute.h"

namespace moe {

class SharedCompute final : public MoeExpertCompute {
 public:
  // Precondition: not nullptr.
  explicit SharedCompute(std::shared_ptr<MoeExpertCompute> owner) : owner_(std::move(owner)) {}

  const MoeExpertCompute* owner() const { return owner_.get(); }
  // When the placement is no longer in force. After that nothing of it may be called.
  void LetGo() { owner_.reset(); }

  base::Result<void> Begin(const ExpertBatch& batch) override { return owner_->Begin(batch); }
  void Prepare(TeamThread thread) override { owner_->Prepare(thread); }
  void Expand(TeamThread thread) override { owner_->Expand(thread); }
  void Reduce(TeamThread thread) override { owner_->Reduce(thread); }
  base::Result<void> Finish() override { return owner_->Finish(); }
  ExpertPart part(std::size_t index) const override { return owner_->part(index); }
  std::size_t num_parts() const override { return owner_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override { return owner_->num_pairs(index); }
  ExpertTimes times() const override { return owner_->times(); }

 private:
  std::shared_ptr<MoeExpertCompute> owner_;
};

}  // namespace moe
