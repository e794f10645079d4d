// ExpertLoader: a load in progress, and afterwards what is needed to move units, away from workers
// that are lost or where the traffic wants them; internal to expert_loader.cc (targets of this
// process), worker_placement.cc and placement_mover.cc.
//
// Keeps who owns each unit as things stand; what a target has loaded follows that. One thread: the
// one that loads, later the one that computes. PlacementMover's own thread calls Current and
// Prepare, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "moe/compute/device_compute.h"
#include "moe/compute/expert_loader.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/node_compute.h"
#include "moe/compute/packed_experts.h"
#include "moe/compute/worker_compute.h"
#include "moe/compute/worker_return.h"

namespace moe {

class ExpertLoader {
 public:
  explicit ExpertLoader(ExpertLoadRequest request);

  // `self` is this.
  static base::Result<LoadedExperts> Run(const std::shared_ptr<ExpertLoader>& self);

  // Who owns what at one moment, and the objects of this process that compute it.
  struct Placed {
    std::uint64_t revision = 0;
    std::uint64_t generation = 0;
    std::vector<std::uint8_t> owners;
    std::set<TargetId> unlimited;
    std::set<TargetId> hosts;
    std::set<TargetId> devices;
    std::set<TargetId> workers;  // that are there, without remote devices
    bool packs = false;
    std::map<TargetId, std::shared_ptr<const PackedExperts>> packed;
    std::vector<std::shared_ptr<MoeExpertCompute>> shared;
  };
  // Weights that a device gets in place of others.
  struct Fill {
    TargetId target;
    LayerId layer;
    ExpertId expert;
  };
  // A placement that may follow `Placed`, with everything loaded but `fills`.
  struct Move {
    std::uint64_t revision = 0;
    std::vector<std::uint8_t> owners;
    std::map<TargetId, std::shared_ptr<const PackedExperts>> packed;  // of all hosts, when packing
    std::shared_ptr<const Hotness> hotness;
    std::shared_ptr<const ExpertSplitStateComponents> components;
    std::vector<Fill> fills;
    std::size_t num_filled = 0;
    std::optional<TargetId> worker;  // that gets other units; at most one
    base::Bytes bytes;               // loaded, `fills` included
  };

  const ModelShape& shape() const { return *request_.shape; }
  const ExpertSplitTargetConfig& config() const { return *request_.config; }
  const std::vector<LayerId>& kept_on_primary() const { return kept_; }

  // Any thread.
  Placed Current() const;
  // Loads what hosts gain when `placed.owners` become `owners`, and reads the file's pages of what
  // devices gain. Any thread. Errors: kCapacity, kCancelled, those of ExpertSplitPlan::FromOwners.
  base::Result<Move> Prepare(const Placed& placed, std::vector<std::uint8_t> owners,
                             std::shared_ptr<const Hotness> hotness, const std::stop_token& stop);
  // Between batches, by the thread that computes: one piece of the next fill. Errors: those of
  // DeviceCompute::FillVacancy.
  base::Result<void> FillOne(Move& move);
  // Likewise, after all fills: gives every owner its units; a worker loads those that it has not.
  // False, with nothing changed, when the placement is not any more the one that the move was
  // prepared for, or the worker is lost. The caller then puts `move.components` in force.
  bool Commit(const Move& move);
  // After a move is in force, with the placement before: gives memory back. Any thread.
  void Tidy(const Placed& before, const Move& move) const;

 private:
  std::uint8_t& owner(LayerId layer, std::size_t expert) {
    return owners_[layer.index() * num_experts() + expert];
  }
  std::size_t num_experts() const { return request_.shape->num_experts; }
  std::size_t num_layers() const { return request_.shape->layers.size(); }
  const std::string& name(TargetId target) const { return (*request_.config)[target].name; }
  bool outside(TargetId target) const {
    const TargetPlace place = (*request_.config)[target].place;
    return place == TargetPlace::kWorker || place == TargetPlace::kUnix ||
           place == TargetPlace::kRpc;
  }
  // A CPU, of this process or of a worker.
  bool on_cpu(TargetId target) const {
    const auto worker = workers_.find(target);
    if (worker == workers_.end()) return request_.devices[target.index()].is_cpu();
    return worker->second->welcome().form == ipc::ResultForm::kPairs;
  }

  bool in_host_memory(TargetId target) const {
    const auto worker = workers_.find(target);
    if (worker == workers_.end()) return request_.devices[target.index()].host_memory;
    return worker->second->welcome().shares_host_ram;
  }

  std::vector<std::size_t> Owned(LayerId layer, TargetId target);
  base::Bytes OwnedBytes(TargetId target);
  static std::vector<std::uint8_t> OwnedFlags(std::span<const std::uint8_t> owners,
                                              TargetId target);
  base::Result<std::shared_ptr<const ExpertSplitRuntime>> CurrentRuntime();

  base::Result<void> LoadTarget(TargetId target);
  base::Result<void> LoadDeviceLayer(TargetId target, LayerId layer);
  base::Result<bool> TryKeepOnPrimary(TargetId target, LayerId layer);
  base::Result<DeviceCompute*> DeviceOwner(TargetId target);
  base::Result<void> MoveColdest(TargetId target, LayerId layer, std::size_t count,
                                 const base::Error& reason);
  std::optional<TargetId> NextWithRoom(TargetId target, LayerId layer);
  base::Result<void> MakeHostOwner(TargetId target);
  base::Result<void> UseTheFile(const base::Error& reason);
  base::Bytes HostBuffers() const;
  bool Packs(TargetId first);
  bool PackedUnitsFit(TargetId first) const;
  base::Result<std::shared_ptr<const PackedExperts>> Pack(TargetId target,
                                                          std::span<const std::uint8_t> owners,
                                                          const PackedExperts* present,
                                                          std::size_t num_threads,
                                                          std::stop_token stop) const;
  base::Result<std::shared_ptr<const PackedExperts>> PackGains(const Placed& placed,
                                                               std::span<const std::uint8_t> owners,
                                                               TargetId host,
                                                               const std::stop_token& stop) const;
  void ReadPages(LayerId layer, ExpertId expert) const;
  void ReleasePages(TargetId target, LayerId layer);
  void ReleaseExperts(LayerId layer, std::size_t first, std::size_t count) const;
  void ReportMoves();
  base::Result<ExpertSplitPlan> PlanOf(std::vector<std::uint8_t> owners,
                                       const std::set<TargetId>& unlimited,
                                       const Hotness& hotness) const;
  base::Result<ExpertSplitPlan> PlanInForce() const;
  base::Result<std::shared_ptr<const ExpertSplitStateComponents>> Assemble(
      std::uint64_t generation);

  std::size_t WorkerThreads(TargetId target);
  void ShareThreads();
  base::Result<void> OpenAllWorkers();
  ipc::LoadOrder OrderFor(TargetId target);
  base::Result<void> OrderLoad(TargetId target);
  base::Result<void> LoadWorkers(const std::vector<TargetId>& targets);
  base::Result<void> WaitForWorker(TargetId target);
  base::Result<void> GiveUpWorker(TargetId target, const base::Error& reason);
  base::Result<void> MoveFromLost(TargetId target, const base::Error& reason);
  base::Result<void> Reload(TargetId target);
  base::Result<void> ReloadStale();
  base::Result<FailoverCompute::Replacement> Replace(std::uint64_t generation);
  base::Result<FailoverCompute::Replacement> ReplaceLost(std::uint64_t generation);
  base::Result<FailoverCompute::Replacement> Settle(std::uint64_t generation);
  base::Result<FailoverCompute::Replacement> Renew(std::uint64_t generation);
  std::vector<std::size_t> PlannedUnits(TargetId target) const;
  void StartReturn(TargetId target);
  void TakeBack(TargetId target, std::unique_ptr<WorkerCompute> worker);

  ExpertLoadRequest request_;
  // Held by the thread that computes while it changes what Current copies; the mover's thread only
  // reads that, under it.
  mutable std::mutex mutex_;
  std::uint64_t revision_ = 0;    // of the owners
  std::uint64_t generation_ = 0;  // of the placement that was made last
  std::shared_ptr<const Hotness> hotness_;
  std::vector<std::uint8_t> owners_;  // [num_layers, num_experts], as things stand
  std::vector<std::unique_ptr<MoeExpertCompute>> computes_;  // [targets]
  std::map<TargetId, DeviceCompute*> devices_;               // into computes_
  std::map<TargetId, HostCompute*> hosts_;                   // into computes_
  std::map<TargetId, std::size_t> node_positions_;           // of NUMA nodes, in teams_
  std::shared_ptr<const NodeTeams> teams_;                   // nullptr without such targets
  std::map<TargetId, WorkerCompute*> workers_;               // into computes_ or shared_
  // With workers or movable units: the objects of the placement in force, which may belong to
  // several of them.
  std::vector<std::shared_ptr<MoeExpertCompute>> shared_;            // [targets]
  std::map<TargetId, std::shared_ptr<const PackedExperts>> packed_;  // of CPUs of this process
  std::map<TargetId, std::size_t> worker_threads_;  // what each worker on the CPU computes with
  std::set<TargetId> stale_;                        // own other units than they have loaded
  std::set<TargetId> unlimited_;         // own more than their capacity, in place of a lost worker
  std::vector<LostWorker> lost_;         // in this load or replacement
  std::set<TargetId> given_up_;          // workers whose units have moved
  std::map<TargetId, unsigned> losses_;  // of workers that may come back
  std::vector<TargetId> returned_;       // workers taken back in this replacement
  std::vector<LayerId> kept_;
  std::optional<bool> packs_;  // decided once, when the first CPU owner is made
  struct Moves {
    std::size_t units = 0;
    base::Bytes bytes;
    std::string reason;
  };
  std::map<std::pair<TargetId, TargetId>, Moves> moves_;
  struct Returning {
    std::unique_ptr<WorkerReturn> attempt;
    bool packed = false;  // the units that it loads
  };
  std::map<TargetId, Returning> returning_;  // last: their threads use what is above
};

}  // namespace moe
