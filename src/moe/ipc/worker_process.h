// Starts a worker as a child process: `expert-split worker` on one end of a pair of sockets. One
// thread at a time; move-only values.
#pragma once

#include <string>

#include "base/child_process.h"
#include "base/result.h"
#include "moe/ipc/channel.h"

namespace moe::ipc {

// The descriptor by which a child finds its end of the connection.
inline constexpr int kWorkerSocket = 3;

struct WorkerProcess {
  base::ChildProcess process;
  Channel channel;
};

// `program` is expert-split's own path; `target` what the worker hosts ("cpu", "vulkan:0"). Errors:
// kIo when it cannot be started.
base::Result<WorkerProcess> StartWorkerProcess(const std::string& program, const std::string& model,
                                               const std::string& target);

}  // namespace moe::ipc
