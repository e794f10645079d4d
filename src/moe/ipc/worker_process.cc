#include "moe/ipc/worker_process.h"

#include <utility>

namespace moe::ipc {

base::Result<WorkerProcess> StartWorkerProcess(const WorkerProcessOptions& options) {
  base::ChildProcessOptions child{
      .program = options.program,
      .arguments = {options.program, "worker", "--model", options.model},
  };
  std::vector<Channel> own;
  std::vector<Channel> theirs;
  for (const std::string& target : options.targets) {
    auto ends = Channel::Pair();
    if (!ends) return base::Forward(ends);
    const int socket = kWorkerSocket + static_cast<int>(own.size());
    child.arguments.insert(child.arguments.end(),
                           {"--target", target, "--socket", std::to_string(socket)});
    child.descriptors.push_back(ends->second.descriptor());
    own.push_back(std::move(ends->first));
    theirs.push_back(std::move(ends->second));
  }
  child.arguments.insert(child.arguments.end(), options.more.begin(), options.more.end());
  auto process = base::ChildProcess::Start(child);
  if (!process) return base::Forward(process);
  return WorkerProcess{.process = std::move(*process), .channels = std::move(own)};
}

}  // namespace moe::ipc
