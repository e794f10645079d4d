// ExpertLoader: a load in progress, and afterwards what is needed to move units away from workers
// that are lost; internal to expert_loader.cc (targets of this process) and worker_placement.cc.
//
// Keeps who owns each unit as things stand; what a target has loaded follows that. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  std::vector<std::uint8_t> OwnedFlags(TargetId target) const;
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
                                                          const PackedExperts* present) const;
  void ReleasePages(TargetId target, LayerId layer);
  void ReleaseExperts(LayerId layer, std::size_t first, std::size_t count) const;
  void ReportMoves();
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
  base::Result<FailoverCompute::Replacement> Settle(std::uint64_t generation);
  base::Result<FailoverCompute::Replacement> Renew(std::uint64_t generation);
  std::vector<std::size_t> PlannedUnits(TargetId target) const;
  void StartReturn(TargetId target);
  void TakeBack(TargetId target, std::unique_ptr<WorkerCompute> worker);

  ExpertLoadRequest request_;
  std::vector<std::uint8_t> owners_;  // [num_layers, num_experts], as things stand
  std::vector<std::unique_ptr<MoeExpertCompute>> computes_;  // [targets]
  std::map<TargetId, DeviceCompute*> devices_;               // into computes_
  std::map<TargetId, HostCompute*> hosts_;                   // into computes_
  std::map<TargetId, std::size_t> node_positions_;           // of NUMA nodes, in teams_
  std::shared_ptr<const NodeTeams> teams_;                   // nullptr without such targets
  std::map<TargetId, WorkerCompute*> workers_;               // into computes_ or shared_
  // With workers: the objects of the placement in force, which may belong to several of them.
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
