// WorkerCompute: the experts that another process owns.
//
// Begin writes the rows of a batch into memory shared with the worker and rings; Finish waits for
// the results under a deadline and hands out pointers into that memory. A batch without a pair of
// the worker's is not sent. Whatever goes wrong the worker is lost: its process, if it is a child,
// is ended, the connection closed, and every later call gives the same error. A process that other
// workers share lives on when this one had no room for its units.
//
// Threads as MoeExpertCompute says; OrderLoad and WaitLoad between batches, by the thread that
// calls Begin. num_pairs() from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/worker_child.h"
#include "moe/ipc/messages.h"
#include "moe/ipc/worker_session.h"
#include "moe/runtime/runtime.h"

namespace moe {

class WorkerCompute final : public MoeExpertCompute {
 public:
  // `child` is the worker's process when it is a child of this one, or nullptr.
  WorkerCompute(std::string name, ipc::WorkerSession session, std::shared_ptr<WorkerChild> child);

  const ipc::Welcome& welcome() const { return welcome_; }

  // Sends the worker the units of `target` in `runtime`; WaitLoad says how it goes. What the caller
  // fills in of `order` is everything but the units and the fingerprint. Errors, after which it is
  // lost: those of ipc::WorkerSession::OrderLoad.
  base::Result<void> OrderLoad(const ExpertSplitRuntime& runtime, TargetId target,
                               ipc::LoadOrder order);
  // The next progress, or nothing when everything is loaded. Errors, after which it is lost: those
  // of ipc::WorkerSession::WaitLoad.
  base::Result<std::optional<ipc::LoadProgress>> WaitLoad();

  // For ipc::ShutdownOnStop; -1 when it is lost.
  int descriptor() const { return session_ ? session_->descriptor() : -1; }
  // Between batches: whether it is lost, also when it has ended since the last one.
  bool NoticeLoss();
  // Why it cannot be used any more; nothing while it can.
  const std::optional<base::Error>& lost() const { return lost_; }

  // Errors: kWorkerLost; kInternal when the batch does not fit the order.
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread) override {}
  void Expand(TeamThread) override {}
  void Reduce(TeamThread) override {}
  // Errors: kWorkerLost.
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override;
  std::size_t num_parts() const override { return 1; }
  std::uint64_t num_pairs(std::size_t) const override {
    return num_pairs_.load(std::memory_order_relaxed);
  }

 private:
  // Ends everything; returns why.
  std::unexpected<base::Error> Lose(base::Error error);
  // Notes the pairs that the worker owns and where their results will lie.
  std::size_t FindPairs(const ExpertBatch& batch);

  std::string name_;
  ipc::Welcome welcome_;
  std::shared_ptr<WorkerChild> child_;         // until it is lost
  std::optional<ipc::WorkerSession> session_;  // until it is lost
  std::optional<base::Error> lost_;

  std::vector<std::uint8_t> owned_;  // [num_layers, num_experts]
  std::size_t num_experts_ = 0;
  // Of the current batch.
  std::vector<const float*> pairs_;  // [num_rows, num_used] into the shared memory
  std::size_t num_batch_pairs_ = 0;  // 0: it was not sent
  std::atomic<std::uint64_t> num_pairs_ = 0;
};

}  // namespace moe
