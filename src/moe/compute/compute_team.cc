#include "moe/compute/compute_team.h"

#include <system_error>

namespace moe {

ComputeTeam::ComputeTeam(std::size_t num_threads) {
  try {
    for (std::size_t i = 1; i < num_threads; ++i) {
      threads_.emplace_back([this, i] { Serve(i); });
    }
  } catch (const std::system_error&) {  // those that started, and the caller's, do the work
  }
  barrier_.emplace(static_cast<std::ptrdiff_t>(this->num_threads()));
  complete_.count_down();
}

ComputeTeam::~ComputeTeam() {
  compute_ = nullptr;
  barrier_->arrive_and_wait();
}

void ComputeTeam::Serve(std::size_t index) {
  // The wait is the library's, which ThreadSanitizer does not see into; it does see try_wait.
  while (!complete_.try_wait()) complete_.wait();
  for (;;) {
    barrier_->arrive_and_wait();
    if (compute_ == nullptr) return;
    RunPhases({index, num_threads()});
  }
}

base::Result<void> ComputeTeam::Run(MoeExpertCompute& compute, const ExpertBatch& batch) {
  if (auto begun = compute.Begin(batch); !begun) return begun;
  compute_ = &compute;
  barrier_->arrive_and_wait();
  RunPhases({0, num_threads()});
  return compute.Finish();
}

// A barrier behind each phase; the one behind the last tells the caller that everybody is done.
void ComputeTeam::RunPhases(TeamThread thread) {
  MoeExpertCompute& compute = *compute_;
  compute.Prepare(thread);
  barrier_->arrive_and_wait();
  compute.Expand(thread);
  barrier_->arrive_and_wait();
  compute.Reduce(thread);
  barrier_->arrive_and_wait();
}

}  // namespace moe
