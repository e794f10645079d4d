#include "moe/compute/open_workers.h"

#include <format>
#include <optional>
#include <utility>

#include "base/check.h"
#include "moe/ipc/socket_path.h"
#include "moe/ipc/worker_process.h"

namespace moe {
namespace {

// A worker that is there, before its welcome; without a channel it is behind an RPC server.
struct Connected {
  std::shared_ptr<WorkerChild> child;  // nullptr for unix:
  std::optional<ipc::Channel> channel;
};

// "vulkan:0" of "worker(vulkan:0)#2".
std::string HostedTarget(const std::string& name) {
  const std::size_t begin = name.find('(') + 1;
  return name.substr(begin, name.rfind(')') - begin);
}

base::Result<Connected> Connect(const ExpertSplitTarget& target, const WorkerSettings& settings) {
  if (target.place == TargetPlace::kUnix) {
    auto channel = ipc::ConnectTo(target.path, base::Deadline::After(settings.timeouts.welcome));
    if (!channel) return base::Forward(channel);
    return Connected{.child = nullptr, .channel = std::move(*channel)};
  }
  if (target.inner_place == TargetPlace::kRpc) {
    ES_CHECK(settings.remotes != nullptr);
    if (auto started = settings.remotes->Start(target); !started) return base::Forward(started);
    return Connected{};
  }
  ES_CHECK(target.place == TargetPlace::kWorker);
  auto started = ipc::StartWorkerProcess({.program = settings.program,
                                          .model = settings.model,
                                          .targets = {HostedTarget(target.name)}});
  if (!started) return base::Forward(started);
  return Connected{.child = std::make_shared<WorkerChild>(std::move(started->process)),
                   .channel = std::move(started->channels.front())};
}

std::unexpected<base::Error> Interrupted() {
  return base::Fail(base::ErrorKind::kCancelled, "loading was interrupted");
}

// Waits for the welcome.
base::Result<RemoteServers::Opened> Open(const ExpertSplitTarget& target, Connected connected,
                                         const WorkerSettings& settings,
                                         const std::stop_token& stop) {
  if (!connected.channel) return settings.remotes->Open(target, settings.remote_patience, stop);
  const ipc::ShutdownOnStop on_stop(connected.channel->descriptor(), stop);
  auto session =
      ipc::WorkerSession::Open(std::move(*connected.channel), target.name, settings.timeouts);
  if (session) return RemoteServers::Opened{std::move(connected.child), std::move(*session)};
  if (stop.stop_requested()) return Interrupted();
  base::Error error = std::move(session.error());
  if (connected.child != nullptr) {
    const std::string how = connected.child->End();
    if (!how.empty() && error.kind == base::ErrorKind::kWorkerLost) {
      error.message += std::format(" (its process {})", how);
    }
  }
  return std::unexpected(std::move(error));
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
    auto opened = Open(target, std::move(connected[i]), settings, stop);
    if (!opened) return base::Forward(opened);
    workers.push_back(std::make_unique<WorkerCompute>(target.name, std::move(opened->session),
                                                      std::move(opened->child)));
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
