// Brings a plan's experts to their owners and says which plan is then in force.
//
// Each target's compute object is made and filled in list order. A CPU uses the mapped file or
// packs what it owns into a layout of its own; a device gets copies. The file's pages of what was
// packed or copied are given back: no unit is in memory twice. Units that a device has no room for,
// though the plan thought so, move to the next target of the list that has room, with a warning;
// the plan is made anew from what really happened. When the system refuses memory for packed units,
// CPUs use the mapped file, with a warning. Workers load at the same time, before the targets of
// this process. One that is lost while loading or later (FailoverCompute) gives its units to the
// next targets of the list that have room, in the end to `cpu`. Units may also exchange their
// owners later (PlacementMover). Call from one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "gg/numa.h"
#include "moe/compute/device_experts.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/failover_compute.h"
#include "moe/compute/open_workers.h"
#include "moe/compute/placement_mover.h"
#include "moe/compute/repack.h"
#include "moe/compute/state_components.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/plan/plan.h"
#include "moe/target/target_config.h"

namespace moe {

// Bytes of units that `target` has by now, of those it shall have.
using LoadProgress = std::function<void(TargetId target, base::Bytes done, base::Bytes total)>;

struct ExpertLoadRequest {
  const ExpertSplitTargetConfig* config = nullptr;
  const ModelShape* shape = nullptr;
  const Hotness* hotness = nullptr;
  const ExpertSplitPlan* plan = nullptr;  // what is wanted
  const ExpertStacks* stacks = nullptr;
  const gg::GgufFile* file = nullptr;            // for giving pages back; may be nullptr
  std::shared_ptr<const ExpertWeights> weights;  // in the mapping, which outlives the owners
  // The device that computes each target's units, [config->size()]; empty for workers.
  std::vector<gg::Device> devices;
  std::size_t max_rows = 512;  // of a batch
  // Whether CPU owners pack their units (packed_experts.h): all of them or none.
  Repack repack = Repack::kAuto;
  // Threads to pack with, and to compute with in this process and in workers on the CPU together.
  std::size_t pack_threads = 1;
  // Told how many of them are this process's from the next step on; of those there are fewer while
  // workers compute on the same cores. Called by LoadExperts and when a worker is lost. May be
  // empty; otherwise it must stay valid as long as LoadedExperts::failover.
  std::function<void(std::size_t)> use_threads;
  WorkerSettings workers;
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kMove;
  // Whether units shall be able to change owners later (LoadedExperts::mover).
  bool movable = false;
  // Asked for each layer that belongs wholly to a primary that is a device: loads the layer into
  // the primary's own graph; false when it has no room or refuses. Empty: never.
  std::function<base::Result<bool>(LayerId)> keep_on_primary;
  AllocateBuffer allocate = gg::Buffer::ForContext;  // seam: memory of devices
  // This machine's, for targets such as cpu:1. One that is not there has no CPUs and any memory.
  std::vector<gg::NumaNode> numa_nodes = gg::NumaNodes();
  // Host memory that the caller will take but has not touched yet: packing leaves it free.
  base::Bytes untouched_bytes;
  PackingMemory packing_memory;  // seam
  base::Log log;
  LoadProgress progress;  // may be empty
  std::stop_token stop;
};

struct LoadedExperts {
  // Drives the experts in place of components->compute().routed() when there are workers or units
  // are movable; holds the plan in force from then on. Refers to everything that the request points
  // to, but not to its callbacks.
  std::shared_ptr<FailoverCompute> failover;
  // With ExpertLoadRequest::movable, unless the primary's graph computes every layer. Refers to the
  // same as `failover`.
  std::shared_ptr<PlacementMover> mover;
  // Holds the plan in force.
  std::shared_ptr<const ExpertSplitStateComponents> components;
  // Layers that keep_on_primary took; the expert node need not compute them.
  std::vector<LayerId> kept_on_primary;
};

// Errors: kCapacity, naming target and bytes, when units that a device has no room for fit on no
// later target; kUnsupported naming a weight type that an owner cannot compute with;
// kDeviceFailure; kCancelled; those of keep_on_primary, OpenWorkers and, for a worker with another
// model, ipc::WorkerSession::OrderLoad; kWorkerLost when a worker is lost and nobody can take its
// units. After an error nothing stays loaded but
// what keep_on_primary took.
base::Result<LoadedExperts> LoadExperts(ExpertLoadRequest request);

}  // namespace moe
