#include "moe/compute/remote_servers.h"

#include <format>
#include <optional>
#include <utility>

#include "base/check.h"
#include "moe/ipc/worker_process.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

std::string Endpoint(const ExpertSplitTarget& target) {
  return std::format("{}:{}", target.host, target.port);
}

// What the process is told to host; worker(rpc:...) is the same device.
std::string HostedName(const ExpertSplitTarget& target) {
  return std::format("rpc:{}/{}", Endpoint(target), target.index);
}

bool OwnsNothing(const ExpertSplitTarget& target) {
  return target.capacity.policy == CapacityPolicy::kBytes && target.capacity.bytes == base::Bytes();
}

}  // namespace

RemoteServers::RemoteServers(const ExpertSplitTargetConfig& config, RemoteServersOptions options)
    : options_(std::move(options)) {
  for (const ExpertSplitTarget& target : config.targets()) {
    if (target.inner_place == TargetPlace::kRpc && !OwnsNothing(target)) targets_.push_back(target);
  }
}

base::Result<void> RemoteServers::Start(const ExpertSplitTarget& target) {
  const std::lock_guard lock(mutex_);
  return StartLocked(target);
}

base::Result<void> RemoteServers::StartLocked(const ExpertSplitTarget& target) {
  Server& server = servers_[Endpoint(target)];
  if (const auto child = server.child.lock(); child != nullptr && !child->ended()) {
    if (server.unused.contains(target.name)) return {};
    return Fail(ErrorKind::kWorkerLost, "{}: the connection to {} is in use", target.name,
                Endpoint(target));
  }
  server.unused.clear();
  std::vector<const ExpertSplitTarget*> hosted;
  ipc::WorkerProcessOptions start{.program = options_.program, .model = options_.model};
  for (const ExpertSplitTarget& other : targets_) {
    if (Endpoint(other) != Endpoint(target)) continue;
    hosted.push_back(&other);
    start.targets.push_back(HostedName(other));
  }
  if (options_.use_cache) start.more.emplace_back("--rpc-cache");
  auto started = ipc::StartWorkerProcess(start);
  if (!started) return base::Forward(started);
  const auto child = std::make_shared<WorkerChild>(std::move(started->process));
  server.child = child;
  server.num_targets = hosted.size();
  for (std::size_t i = 0; i < hosted.size(); ++i) {
    server.unused.emplace(hosted[i]->name, Unused{child, std::move(started->channels[i])});
  }
  ES_CHECK(server.unused.contains(target.name));
  return {};
}

base::Result<RemoteServers::Opened> RemoteServers::Open(const ExpertSplitTarget& target,
                                                        std::chrono::milliseconds patience,
                                                        const std::stop_token& stop) {
  std::optional<Unused> taken;
  {
    const std::lock_guard lock(mutex_);
    if (auto started = StartLocked(target); !started) return base::Forward(started);
    auto node = servers_[Endpoint(target)].unused.extract(target.name);
    taken = std::move(node.mapped());
  }
  if (auto* session = std::get_if<ipc::WorkerSession>(&taken->connection)) {
    return Opened{std::move(taken->child), std::move(*session)};
  }
  ipc::WorkerTimeouts timeouts = options_.timeouts;
  timeouts.welcome = patience;
  auto& channel = std::get<ipc::Channel>(taken->connection);
  const ipc::ShutdownOnStop on_stop(channel.descriptor(), stop);
  auto session = ipc::WorkerSession::Open(std::move(channel), target.name, timeouts);
  if (session) return Opened{std::move(taken->child), std::move(*session)};
  base::Error error = std::move(session.error());
  const std::string how = taken->child->End();
  if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "loading was interrupted");
  if (!how.empty() && error.kind == ErrorKind::kWorkerLost) {
    error.message += std::format(" (its process {})", how);
  }
  return std::unexpected(std::move(error));
}

base::Result<ipc::Welcome> RemoteServers::Ask(const ExpertSplitTarget& target,
                                              std::chrono::milliseconds patience) {
  auto opened = Open(target, patience, {});
  if (!opened) return base::Forward(opened);
  ipc::Welcome welcome = opened->session.welcome();
  const std::lock_guard lock(mutex_);
  servers_[Endpoint(target)].unused.emplace(
      target.name, Unused{std::move(opened->child), std::move(opened->session)});
  return welcome;
}

void RemoteServers::CloseUnused() {
  const std::lock_guard lock(mutex_);
  for (auto& [endpoint, server] : servers_) {
    if (server.unused.size() == server.num_targets) server.unused.clear();
  }
}

}  // namespace moe
