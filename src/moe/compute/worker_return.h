// WorkerReturn: the way back of a worker that was lost.
//
// A thread of its own tries to start or reach the worker and to load its units there, and waits
// longer after each attempt that failed. Made, asked and destroyed by one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "base/result.h"
#include "moe/compute/worker_compute.h"

namespace moe {

class WorkerReturn {
 public:
  // Opens the worker and loads its units; called on the thread. Soon after `stop` it returns.
  using Attempt =
      std::function<base::Result<std::unique_ptr<WorkerCompute>>(const std::stop_token& stop)>;

  // The first attempt begins after `wait`; each wait is twice the one before, up to a minute.
  WorkerReturn(Attempt attempt, std::chrono::milliseconds wait);
  WorkerReturn(const WorkerReturn&) = delete;
  WorkerReturn& operator=(const WorkerReturn&) = delete;
  // Ends the attempt in progress.
  ~WorkerReturn() = default;

  // The worker with its units, once; nullptr as long as it is not back.
  std::unique_ptr<WorkerCompute> Take();

 private:
  void Run(const std::stop_token& stop, std::chrono::milliseconds wait);

  Attempt attempt_;
  std::mutex mutex_;
  std::unique_ptr<WorkerCompute> worker_;  // guarded
  std::jthread thread_;                    // last: it uses everything above
};

}  // namespace moe
