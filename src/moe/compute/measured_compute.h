// MeasuredCompute: an owner that also says how long it computes and how long it is waited for.
//
// Forwards every call to the owner it holds. Threads as MoeExpertCompute says; the times may be
// read from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "moe/compute/expert_compute.h"

namespace moe {

// Where an owner computes.
enum class ComputePlace { kOnTeam, kElsewhere };

class MeasuredCompute final : public MoeExpertCompute {
 public:
  // Precondition: `owner` is not nullptr.
  MeasuredCompute(std::unique_ptr<MoeExpertCompute> owner, ComputePlace place)
      : owner_(std::move(owner)), place_(place) {}

  ExpertTimes times() const override;
  const MoeExpertCompute& owner() const { return *owner_; }

  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override { return owner_->part(index); }
  std::size_t num_parts() const override { return owner_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override { return owner_->num_pairs(index); }

 private:
  std::unique_ptr<MoeExpertCompute> owner_;
  ComputePlace place_;
  std::int64_t begun_ns_ = 0;  // thread 0 alone, as are the writes of the other two
  std::atomic<std::int64_t> busy_ns_ = 0;
  std::atomic<std::int64_t> wait_ns_ = 0;
};

}  // namespace moe
