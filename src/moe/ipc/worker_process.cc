#include "moe/ipc/worker_process.h"

#include <utility>

namespace moe::ipc {

base::Result<WorkerProcess> StartWorkerProcess(const std::string& program, const std::string& model,
                                               const std::string& target) {
  auto ends = Channel::Pair();
  if (!ends) return base::Forward(ends);
  auto& [own, child] = *ends;
  auto process =
      base::ChildProcess::Start({.program = program,
                                 .arguments = {program, "worker", "--model", model, "--target",
                                               target, "--socket", std::to_string(kWorkerSocket)},
                                 .descriptors = {child.descriptor()}});
  if (!process) return base::Forward(process);
  return WorkerProcess{.process = std::move(*process), .channel = std::move(own)};
}

}  // namespace moe::ipc
