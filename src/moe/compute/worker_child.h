// WorkerChild: the child process of one worker, or of several that share a connection.
//
// Any thread.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "base/child_process.h"

namespace moe {

class WorkerChild {
 public:
  explicit WorkerChild(base::ChildProcess process) : process_(std::move(process)) {}

  // Whether it has ended.
  bool ended();
  // Gives a process that is about to end a moment for that, then kills it. Returns how it ended by
  // itself, as ChildProcess::end() says it; empty when it had to be killed, now or earlier.
  std::string End();

 private:
  std::mutex mutex_;
  base::ChildProcess process_;  // guarded, as is the next
  bool killed_ = false;
};

}  // namespace moe
