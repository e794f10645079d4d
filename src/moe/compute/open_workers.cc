#include "moe/compute/open_workers.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/child_process.h"
#include "moe/ipc/socket_path.h"
#include "moe/ipc/worker_process.h"

namespace moe {
namespace {

// A child that closed the connection is about to end, and how says why.
constexpr std::chrono::milliseconds kTimeToEnd(200);

struct Connected {
  base::ChildProcess process;  // none for unix:
  ipc::Channel channel;
};

// A server that does not answer as one is waited for in vain, whatever else takes its time.
constexpr std::chrono::milliseconds kRemoteWelcome = std::chrono::seconds(20);

// "vulkan:0" of "worker(vulkan:0)#2"; remote devices are hosted under their own name.
std::string HostedTarget(const std::string& name) {
  if (name.starts_with("rpc:")) return name;
  const std::size_t begin = name.find('(') + 1;
  return name.substr(begin, name.rfind(')') - begin);
}

base::Result<Connected> Connect(const ExpertSplitTarget& target, const WorkerSettings& settings) {
  if (target.place == TargetPlace::kUnix) {
    auto channel = ipc::ConnectTo(target.path, base::Deadline::After(settings.timeouts.welcome));
    if (!channel) return base::Forward(channel);
    return Connected{.process = {}, .channel = std::move(*channel)};
  }
  ES_CHECK(target.place == TargetPlace::kWorker || target.place == TargetPlace::kRpc);
  auto started =
      ipc::StartWorkerProcess(settings.program, settings.model, HostedTarget(target.name));
  if (!started) return base::Forward(started);
  return Connected{.process = std::move(started->process), .channel = std::move(started->channel)};
}

std::unexpected<base::Error> Interrupted() {
  return base::Fail(base::ErrorKind::kCancelled, "loading was interrupted");
}

}  // namespace

base::Result<std::vector<std::unique_ptr<WorkerCompute>>> OpenWorkers(
    const ExpertSplitTargetConfig& config, std::span<const TargetId> targets,
    const WorkerSettings& settings, const std::stop_token& stop) {
  std::vector<Connected> connected;
  for (const TargetId target : targets) {
    if (stop.stop_requested()) return Interrupted();
    auto one = Connect(config[target], settings);
    if (!one) return base::Forward(one);
    connected.push_back(std::move(*one));
  }
  std::vector<std::unique_ptr<WorkerCompute>> workers;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const ExpertSplitTarget& target = config[targets[i]];
    const std::string& name = target.name;
    ipc::WorkerTimeouts timeouts = settings.timeouts;
    if (target.inner_place == TargetPlace::kRpc) {
      timeouts.welcome = std::min(timeouts.welcome, kRemoteWelcome);
    }
    auto& [process, channel] = connected[i];
    const ipc::ShutdownOnStop on_stop(channel.descriptor(), stop);
    auto session = ipc::WorkerSession::Open(std::move(channel), name, timeouts);
    if (!session) {
      if (stop.stop_requested()) return Interrupted();
      base::Error error = std::move(session.error());
      if (process.pid() >= 0 && process.WaitForEnd(base::Deadline::After(kTimeToEnd)) &&
          error.kind == base::ErrorKind::kWorkerLost) {
        error.message += std::format(" (its process {})", process.end());
      }
      return std::unexpected(std::move(error));
    }
    workers.push_back(
        std::make_unique<WorkerCompute>(name, std::move(*session), std::move(process)));
  }
  return workers;
}

base::Result<void> WaitForUnits(WorkerCompute& worker,
                                const std::function<void(ipc::LoadProgress)>& progress,
                                const std::stop_token& stop) {
  const ipc::ShutdownOnStop on_stop(worker.descriptor(), stop);
  for (;;) {
    auto loaded = worker.WaitLoad();
    if (stop.stop_requested()) return Interrupted();
    if (!loaded) return base::Forward(loaded);
    if (!*loaded) return {};
    if (progress) progress(**loaded);
  }
}

}  // namespace moe
