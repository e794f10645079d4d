#include "moe/compute/measured_compute.h"

#include <chrono>

namespace moe {
namespace {

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Milliseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Runs `phase` and adds what it takes to `sum` when `counts`.
template <class Phase>
void Timed(bool counts, std::atomic<std::int64_t>& sum, const Phase& phase) {
  const std::int64_t start = counts ? NowNs() : 0;
  phase();
  if (counts) sum.fetch_add(NowNs() - start, std::memory_order_relaxed);
}

}  // namespace

ExpertTimes MeasuredCompute::times() const {
  return {.busy_ms = Milliseconds(busy_ns_.load(std::memory_order_relaxed)),
          .wait_ms = Milliseconds(wait_ns_.load(std::memory_order_relaxed))};
}

base::Result<void> MeasuredCompute::Begin(const ExpertBatch& batch) {
  begun_ns_ = NowNs();
  return owner_->Begin(batch);
}

void MeasuredCompute::Prepare(TeamThread thread) {
  Timed(place_ == ComputePlace::kOnTeam && thread.index == 0, busy_ns_,
        [&] { owner_->Prepare(thread); });
}

void MeasuredCompute::Expand(TeamThread thread) {
  Timed(place_ == ComputePlace::kOnTeam && thread.index == 0, busy_ns_,
        [&] { owner_->Expand(thread); });
}

void MeasuredCompute::Reduce(TeamThread thread) {
  Timed(place_ == ComputePlace::kOnTeam && thread.index == 0, busy_ns_,
        [&] { owner_->Reduce(thread); });
}

base::Result<void> MeasuredCompute::Finish() {
  if (place_ == ComputePlace::kOnTeam) return owner_->Finish();
  const std::int64_t start = NowNs();
  auto finished = owner_->Finish();
  const std::int64_t end = NowNs();
  wait_ns_.fetch_add(end - start, std::memory_order_relaxed);
  busy_ns_.fetch_add(end - begun_ns_, std::memory_order_relaxed);
  return finished;
}

}  // namespace moe
