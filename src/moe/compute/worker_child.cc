#include "moe/compute/worker_child.h"

namespace moe {
namespace {

// A child that closed its connection is about to end, and how says why.
constexpr std::chrono::milliseconds kTimeToEnd(200);

}  // namespace

bool WorkerChild::ended() {
  const std::lock_guard lock(mutex_);
  return process_.WaitForEnd(base::Deadline::After({}));
}

std::string WorkerChild::End() {
  const std::lock_guard lock(mutex_);
  if (!process_.WaitForEnd(base::Deadline::After(kTimeToEnd))) {
    process_.Kill();
    killed_ = true;
  }
  return killed_ ? std::string() : process_.end();
}

}  // namespace moe
