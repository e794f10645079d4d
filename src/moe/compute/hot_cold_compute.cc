#include "moe/compute/hot_cold_compute.h"

#include <utility>

#include "base/check.h"

namespace moe {

HotColdCompute::HotColdCompute(std::vector<std::unique_ptr<MoeExpertCompute>> owners,
                               std::optional<std::size_t> elsewhere)
    : owners_(std::move(owners)) {
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    ES_CHECK(owners_[i] != nullptr && owners_[i]->num_parts() == 1);
    if (i != elsewhere) begin_order_.push_back(i);
  }
  if (elsewhere) begin_order_.push_back(*elsewhere);
  ES_CHECK(begin_order_.size() == owners_.size());
}

base::Result<void> HotColdCompute::Begin(const ExpertBatch& batch) {
  for (const std::size_t i : begin_order_) {
    if (base::Result<void> begun = owners_[i]->Begin(batch); !begun) return begun;
  }
  return {};
}

void HotColdCompute::Prepare(TeamThread thread) {
  for (const auto& owner : owners_) owner->Prepare(thread);
}

void HotColdCompute::Expand(TeamThread thread) {
  for (const auto& owner : owners_) owner->Expand(thread);
}

void HotColdCompute::Reduce(TeamThread thread) {
  for (const auto& owner : owners_) owner->Reduce(thread);
}

base::Result<void> HotColdCompute::Finish() {
  base::Result<void> first;
  for (const auto& owner : owners_) {
    base::Result<void> finished = owner->Finish();
    if (!finished && first) first = std::move(finished);
  }
  return first;
}

}  // namespace moe
