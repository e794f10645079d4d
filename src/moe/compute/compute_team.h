// ComputeTeam: threads that run batches of one compute object, for a process whose graph lives
// elsewhere. Made once, it keeps its threads; one caller's thread at a time.
#pragma once

#include <barrier>
#include <cstddef>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "moe/compute/expert_compute.h"

namespace moe {

class ComputeTeam {
 public:
  // The caller's thread is one of the `num_threads`, at least 1; fewer when the system has no more.
  explicit ComputeTeam(std::size_t num_threads);
  ComputeTeam(const ComputeTeam&) = delete;
  ComputeTeam& operator=(const ComputeTeam&) = delete;
  ~ComputeTeam();

  std::size_t num_threads() const { return threads_.size() + 1; }

  // Begin to Finish of one batch; its parts are valid then. Errors: those of Begin and Finish.
  base::Result<void> Run(MoeExpertCompute& compute, const ExpertBatch& batch);

 private:
  void Serve(std::size_t index);
  void RunPhases(TeamThread thread);

  std::latch complete_{1};  // all threads that there will be have been started
  std::optional<std::barrier<>> barrier_;
  MoeExpertCompute* compute_ = nullptr;  // of the batch in progress; nullptr ends the threads
  std::vector<std::jthread> threads_;
};

}  // namespace moe
