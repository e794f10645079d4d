// Workers of a target list: started as child processes or connected to. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "moe/compute/remote_servers.h"
#include "moe/compute/worker_compute.h"
#include "moe/ipc/worker_session.h"
#include "moe/target/target_config.h"

namespace moe {

struct WorkerSettings {
  std::string program;  // path of expert-split itself: what worker(...) runs
  std::string model;    // path of the model file, for the workers that are started
  ipc::WorkerTimeouts timeouts;
  // Of the same program and model, for targets behind RPC servers; nullptr when there are none.
  std::shared_ptr<RemoteServers> remotes;
  // How long such a server is waited for: one that does not answer as one is waited for in vain,
  // whatever else takes its time.
  std::chrono::milliseconds remote_patience = std::chrono::seconds(20);
  // From the loss of a worker to the first attempt to have it back; twice that after each loss.
  std::chrono::milliseconds return_after = std::chrono::seconds(1);
};

// The worker of each of `targets` (worker(...), unix:, or rpc:, whose server a child process of its
// own talks to), in order, without units. All processes
// are started before the first is waited for. Errors: kIo when a process cannot be started;
// kWorkerLost when a worker cannot be reached, ends or says nothing in time; what it reports;
// kCancelled when `stop` is requested.
base::Result<std::vector<std::unique_ptr<WorkerCompute>>> OpenWorkers(
    const ExpertSplitTargetConfig& config, std::span<const TargetId> targets,
    const WorkerSettings& settings, const std::stop_token& stop);

// Until the worker has loaded what it was ordered to. `progress` may be empty. Errors: those of
// WorkerCompute::WaitLoad; kCancelled when `stop` is requested.
base::Result<void> WaitForUnits(WorkerCompute& worker,
                                const std::function<void(ipc::LoadProgress)>& progress,
                                const std::stop_token& stop);

}  // namespace moe
