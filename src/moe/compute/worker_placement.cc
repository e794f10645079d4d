// Workers while experts are loaded, and moving the units of those that are lost.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "moe/compute/expert_loader_state.h"
#include "moe/compute/measured_compute.h"
#include "moe/compute/open_workers.h"

namespace moe {
namespace {

// Of the wait before a worker that is lost again and again is taken back: up to about a minute.
constexpr unsigned kMostDoublings = 6;
// An RPC server may be in use or stopped for a while, and ends when somebody who waits gives up.
constexpr std::chrono::minutes kReturnPatience(10);

}  // namespace

base::Result<void> ExpertLoader::OpenAllWorkers() {
  std::vector<TargetId> targets;
  for (std::size_t t = 0; t < request_.config->size(); ++t) {
    if (outside(TargetId(t)) && OwnedBytes(TargetId(t)) > base::Bytes()) {
      targets.push_back(TargetId(t));
    }
  }
  auto opened = OpenWorkers(*request_.config, targets, request_.workers, request_.stop);
  if (!opened) return base::Forward(opened);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    workers_[targets[i]] = (*opened)[i].get();
    computes_[targets[i].index()] =
        std::make_unique<MeasuredCompute>(std::move((*opened)[i]), ComputePlace::kElsewhere);
  }
  if (request_.workers.remotes != nullptr) request_.workers.remotes->CloseUnused();
  return {};
}

// By the bytes of units on CPUs, at most half of all threads: the dense part is computed here.
std::size_t ExpertLoader::WorkerThreads(TargetId target) {
  const std::size_t most = request_.pack_threads / 2;
  base::Bytes on_cpus;
  base::Bytes on_workers;
  for (std::size_t t = 0; t < request_.config->size(); ++t) {
    if (!on_cpu(TargetId(t))) continue;
    on_cpus += OwnedBytes(TargetId(t));
    if (outside(TargetId(t))) on_workers += OwnedBytes(TargetId(t));
  }
  if (!on_cpu(target) || on_cpus == base::Bytes()) return 1;
  const auto ratio = [&](base::Bytes of) {
    return static_cast<double>(of.count()) / static_cast<double>(on_cpus.count());
  };
  const double all = std::min(static_cast<double>(most),
                              static_cast<double>(request_.pack_threads) * ratio(on_workers));
  const double share = all * ratio(OwnedBytes(target)) / std::max(ratio(on_workers), 1e-9);
  return std::max<std::size_t>(1, static_cast<std::size_t>(share));
}

// What workers leave of the threads is this process's.
void ExpertLoader::ShareThreads() {
  std::size_t left = request_.pack_threads;
  for (const auto& [target, threads] : worker_threads_) {
    if (on_cpu(target) && !given_up_.contains(target)) left -= std::min(left, threads);
  }
  if (request_.use_threads) request_.use_threads(std::max<std::size_t>(left, 1));
}

ipc::LoadOrder ExpertLoader::OrderFor(TargetId target) {
  worker_threads_[target] = WorkerThreads(target);
  const std::size_t n_embd = request_.weights->layers.front().n_embd();
  return {.model = request_.shape->identity,
          .packed = on_cpu(target) && Packs(TargetId(0)),
          .num_threads = static_cast<std::uint32_t>(worker_threads_[target]),
          .rows = {.max_rows = static_cast<std::uint32_t>(request_.max_rows),
                   .num_used = request_.shape->experts_per_token,
                   .n_embd = static_cast<std::uint32_t>(n_embd)}};
}

base::Result<void> ExpertLoader::OrderLoad(TargetId target) {
  auto runtime = CurrentRuntime();
  if (!runtime) return base::Forward(runtime);
  return workers_[target]->OrderLoad(**runtime, target, OrderFor(target));
}

base::Result<void> ExpertLoader::WaitForWorker(TargetId target) {
  const auto progress = [&](ipc::LoadProgress now) {
    if (request_.progress) request_.progress(target, now.done, now.total);
  };
  return WaitForUnits(*workers_[target], progress, request_.stop);
}

// All at the same time.
base::Result<void> ExpertLoader::LoadWorkers(const std::vector<TargetId>& targets) {
  std::vector<std::pair<TargetId, base::Error>> failed;
  std::vector<TargetId> ordered;
  for (const TargetId target : targets) {
    if (auto sent = OrderLoad(target); sent) {
      ordered.push_back(target);
    } else {
      failed.emplace_back(target, std::move(sent.error()));
    }
  }
  for (const TargetId target : ordered) {
    auto loaded = WaitForWorker(target);
    if (!loaded) failed.emplace_back(target, std::move(loaded.error()));
  }
  for (const auto& [target, error] : failed) {
    if (auto moved = GiveUpWorker(target, error); !moved) return moved;
  }
  return {};
}

// A worker that cannot load its units, by nobody's mistake.
base::Result<void> ExpertLoader::GiveUpWorker(TargetId target, const base::Error& reason) {
  switch (reason.kind) {
    case base::ErrorKind::kWorkerLost:
    case base::ErrorKind::kCapacity:
    case base::ErrorKind::kDeviceFailure:
    case base::ErrorKind::kIo:
      break;
    default:
      return std::unexpected(reason);
  }
  if (request_.on_worker_loss == OnWorkerLoss::kFail) return std::unexpected(reason);
  return MoveFromLost(target, reason);
}

// The hottest units first, each to the next target that has room for it; what no target has room
// for to the CPU, which can use the mapped file.
base::Result<void> ExpertLoader::MoveFromLost(TargetId lost, const base::Error& reason) {
  std::vector<TargetId> later;
  std::vector<base::Bytes> free(request_.config->size(), base::Bytes::Max());
  std::optional<TargetId> last_resort;
  for (std::size_t t = 0; t < request_.config->size(); ++t) {
    const auto& capacity = request_.plan->targets()[t].capacity;
    if (capacity && !unlimited_.contains(TargetId(t))) {
      free[t] = *capacity - OwnedBytes(TargetId(t));
    }
    if (t > lost.index() && !given_up_.contains(TargetId(t))) later.push_back(TargetId(t));
    if ((*request_.config)[TargetId(t)].in_process_cpu()) last_resort = TargetId(t);
  }
  std::vector<std::size_t> units;  // positions in owners_
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == lost.index()) units.push_back(i);
  }
  const auto share = [&](std::size_t i) {
    return -hotness_->share(LayerId(i / num_experts()), ExpertId(i % num_experts()));
  };
  std::ranges::stable_sort(units, {}, share);
  std::vector<std::uint8_t> owners = owners_;
  std::map<std::pair<TargetId, TargetId>, Moves> moves = moves_;
  std::set<TargetId> unlimited = unlimited_;
  for (const std::size_t i : units) {
    const base::Bytes bytes = request_.shape->unit_bytes(LayerId(i / num_experts()));
    auto next = std::ranges::find_if(later, [&](TargetId t) { return free[t.index()] >= bytes; });
    if (next == later.end() && !last_resort) {
      return base::Fail(base::ErrorKind::kWorkerLost,
                        "{}, and no other target has room for its {} units; add cpu to the end of "
                        "--targets",
                        reason.message, units.size());
    }
    const TargetId to = next != later.end() ? *next : *last_resort;
    if (next == later.end()) unlimited.insert(to);
    free[to.index()] -= bytes;
    owners[i] = static_cast<std::uint8_t>(to.index());
    Moves& moved = moves[{lost, to}];
    ++moved.units;
    moved.bytes += bytes;
    moved.reason = reason.message;
    stale_.insert(to);
  }
  owners_ = std::move(owners);
  ++revision_;
  moves_ = std::move(moves);
  unlimited_ = std::move(unlimited);
  stale_.erase(lost);
  given_up_.insert(lost);
  // What it had no room for once it will have no room for again.
  if (reason.kind != base::ErrorKind::kCapacity) ++losses_[lost];
  lost_.push_back({.target = lost, .reason = reason.message});
  return {};
}

base::Result<void> ExpertLoader::Reload(TargetId target) {
  if (OwnedBytes(target) == base::Bytes() && hosts_.erase(target) > 0) {
    packed_.erase(target);
    computes_[target.index()].reset();
    if (!shared_.empty()) shared_[target.index()].reset();
    return {};
  }
  if (workers_.contains(target)) return LoadWorkers({target});
  if (const auto device = devices_.find(target); device != devices_.end()) {
    auto runtime = CurrentRuntime();
    if (!runtime) return base::Forward(runtime);
    device->second->SetRuntime(*runtime);
    device->second->UnloadSurplus();
  }
  return LoadTarget(target);
}

// Until every target has loaded what it owns; loading may move units once more.
base::Result<void> ExpertLoader::ReloadStale() {
  while (!stale_.empty()) {
    const TargetId target = *stale_.begin();
    stale_.erase(target);
    if (auto loaded = Reload(target); !loaded) {
      stale_.insert(target);  // the next attempt begins with it
      return loaded;
    }
  }
  return {};
}

base::Result<FailoverCompute::Replacement> ExpertLoader::Replace(std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  return ReplaceLost(generation);
}

base::Result<FailoverCompute::Replacement> ExpertLoader::ReplaceLost(std::uint64_t generation) {
  for (const auto& [target, worker] : workers_) {
    if (!worker->lost() || given_up_.contains(target)) continue;
    if (auto moved = MoveFromLost(target, *worker->lost()); !moved) return base::Forward(moved);
  }
  if (lost_.empty() && stale_.empty()) return FailoverCompute::Replacement{};
  return Renew(generation);
}

base::Result<FailoverCompute::Replacement> ExpertLoader::Renew(std::uint64_t generation) {
  ++revision_;
  if (auto loaded = ReloadStale(); !loaded) return base::Forward(loaded);
  ReportMoves();
  ShareThreads();
  auto components = Assemble(generation + 1);
  if (!components) return base::Forward(components);
  return FailoverCompute::Replacement{.components = std::move(*components),
                                      .lost = std::exchange(lost_, {}),
                                      .returned = std::exchange(returned_, {})};
}

std::vector<std::size_t> ExpertLoader::PlannedUnits(TargetId target) const {
  std::vector<std::size_t> units;
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    if (request_.plan->owners()[i] == target.index()) units.push_back(i);
  }
  return units;
}

// On a thread of its own a worker that was lost gets the units that it had at first.
void ExpertLoader::StartReturn(TargetId target) {
  const std::vector<std::uint8_t> owners = owners_;
  for (const std::size_t i : PlannedUnits(target)) {
    owners_[i] = static_cast<std::uint8_t>(target.index());
  }
  auto runtime = CurrentRuntime();
  const ipc::LoadOrder order = OrderFor(target);
  owners_ = owners;
  if (!runtime) return;
  const auto attempt =
      [this, target, order, runtime = *runtime](
          const std::stop_token& stop) -> base::Result<std::unique_ptr<WorkerCompute>> {
    WorkerSettings settings = request_.workers;
    settings.remote_patience = kReturnPatience;
    auto opened = OpenWorkers(*request_.config, std::span(&target, 1), settings, stop);
    if (!opened) return base::Forward(opened);
    std::unique_ptr<WorkerCompute> worker = std::move(opened->front());
    if (auto sent = worker->OrderLoad(*runtime, target, order); !sent) return base::Forward(sent);
    if (auto loaded = WaitForUnits(*worker, {}, stop); !loaded) return base::Forward(loaded);
    return worker;
  };
  const unsigned doublings = std::min(losses_[target] - 1, kMostDoublings);
  returning_[target] = {.attempt = std::make_unique<WorkerReturn>(
                            attempt, request_.workers.return_after * (1 << doublings)),
                        .packed = order.packed};
}

void ExpertLoader::TakeBack(TargetId target, std::unique_ptr<WorkerCompute> worker) {
  for (const std::size_t i : PlannedUnits(target)) {
    const TargetId before(owners_[i]);
    stale_.insert(before);
    owners_[i] = static_cast<std::uint8_t>(target.index());
  }
  workers_[target] = worker.get();
  computes_[target.index()] =
      std::make_unique<MeasuredCompute>(std::move(worker), ComputePlace::kElsewhere);
  given_up_.erase(target);
  returned_.push_back(target);
  if (returning_[target].packed != (on_cpu(target) && Packs(TargetId(0)))) stale_.insert(target);
  std::erase_if(unlimited_, [&](TargetId other) {
    const auto& capacity = request_.plan->targets()[other.index()].capacity;
    return !capacity || OwnedBytes(other) <= *capacity;
  });
  request_.log.Info("{} is back and has its {} units again", name(target),
                    PlannedUnits(target).size());
}

base::Result<FailoverCompute::Replacement> ExpertLoader::Settle(std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  for (const auto& [target, worker] : workers_) {
    if (!given_up_.contains(target) && worker->NoticeLoss()) return ReplaceLost(generation);
  }
  for (const TargetId target : given_up_) {
    if (losses_.contains(target) && !returning_.contains(target)) StartReturn(target);
  }
  for (auto next = returning_.begin(); next != returning_.end();) {
    const auto current = next++;
    if (auto worker = current->second.attempt->Take()) {
      TakeBack(current->first, std::move(worker));
      returning_.erase(current);
    }
  }
  if (returned_.empty()) return FailoverCompute::Replacement{};
  return Renew(generation);
}

}  // namespace moe
