#include "moe/compute/worker_return.h"

#include <algorithm>
#include <utility>

#include "base/sleep.h"

namespace moe {
namespace {

constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(1);

}  // namespace

WorkerReturn::WorkerReturn(Attempt attempt, std::chrono::milliseconds wait)
    : attempt_(std::move(attempt)),
      thread_([this, wait](const std::stop_token& stop) { Run(stop, wait); }) {}

std::unique_ptr<WorkerCompute> WorkerReturn::Take() {
  const std::lock_guard lock(mutex_);
  return std::move(worker_);
}

void WorkerReturn::Run(const std::stop_token& stop, std::chrono::milliseconds wait) {
  for (; base::SleepUnlessStopped(wait, stop); wait = std::min(2 * wait, kLongestWait)) {
    auto worker = attempt_(stop);
    if (!worker) continue;
    const std::lock_guard lock(mutex_);
    worker_ = std::move(*worker);
    return;
  }
}

}  // namespace moe
