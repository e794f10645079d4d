// Starts a worker as a child process: `expert-split worker` on one end of pairs of sockets. One
// thread at a time; move-only values.
#pragma once

#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/result.h"
#include "moe/ipc/channel.h"

namespace moe::ipc {

// The descriptor by which a child finds its end of the first connection; the others follow.
inline constexpr int kWorkerSocket = 3;

struct WorkerProcessOptions {
  std::string program;               // expert-split's own path
  std::string model;                 // path of the model file
  std::vector<std::string> targets;  // what it hosts ("cpu", "vulkan:0"), at least one
  std::vector<std::string> more;     // further arguments
};

struct WorkerProcess {
  base::ChildProcess process;
  std::vector<Channel> channels;  // one a target
};

// Errors: kIo when it cannot be started.
base::Result<WorkerProcess> StartWorkerProcess(const WorkerProcessOptions& options);

}  // namespace moe::ipc
