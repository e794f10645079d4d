// Memory before placement: how many bytes of units each target of a list may own.
//
// Everything that is not an expert is counted first: the dense part, caches and buffers of the
// primary, the buffers of the other owners, a safety margin. What targets share is handed out once:
// all targets on one piece of silicon draw on one budget, and devices that use the host's RAM draw
// on the budget of `cpu` too. Sums saturate, so that a device which reports more bytes free than in
// total, or fewer than the dense part needs, gives zero and never a huge number.
//
// Pure values; the machine is seen through MemoryProbe. Any thread that may call the probe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

// What a target reports. Nothing is assumed of the numbers: free may exceed total.
struct TargetMemory {
  base::Bytes free;
  base::Bytes total;
  // Equal for two targets exactly when they are the same silicon of one machine, whichever backend
  // names it: for example the PCI address. Empty when unknown: the target stands for itself.
  std::string device_id;
  // The device has no memory of its own. A device of this machine whose total equals the host's RAM
  // is taken for one without this flag too.
  bool shares_host_ram = false;
};

struct HostMemory {
  base::Bytes available;  // without swapping, page cache included
  base::Bytes total;
};

// The seam to the machine. A probe that asks a remote or a worker must bound the time that takes.
class MemoryProbe {
 public:
  virtual ~MemoryProbe() = default;

  // The memory that units of `target` would use: the device's, the node's, or that of what a worker
  // hosts. Nullopt when this machine has no such target or it does not answer. Not asked for `cpu`
  // and `worker(cpu)`, which are the host.
  virtual std::optional<TargetMemory> Target(const ExpertSplitTarget& target) = 0;
  virtual HostMemory Host() = 0;
  // Names of the targets that are there, for messages: "vulkan:0", "cpu".
  virtual std::vector<std::string> PresentTargets() = 0;
};

// What the primary holds besides units.
struct DensePartBytes {
  base::Bytes weights;
  base::Bytes kv_cache;         // full-attention layers only, in the cache's real type, all slots
  base::Bytes recurrent_state;  // recurrent and convolution state of every slot
  base::Bytes compute_buffers;

  base::Bytes total() const { return weights + kv_cache + recurrent_state + compute_buffers; }
};

enum class CpuUnits {
  kMapped,  // used where the file is mapped: `cpu` is unbounded, dense weights on it cost nothing
  kCopied,  // --no-mmap or repacked: bounded by free RAM
};

struct CapacityRequest {
  const ExpertSplitTargetConfig* config = nullptr;
  base::Bytes unit_bytes;  // of the whole model: what a PERCENT is of
  DensePartBytes dense;
  // What each target other than the primary needs to compute its experts.
  base::Bytes owner_buffers;
  CpuUnits cpu_units = CpuUnits::kMapped;
  // Left free in every budget: drivers allocate behind our back, other programs grow.
  base::Bytes safety_margin = base::Bytes::MiB(512);
};

// The capacity of each target, in list order, [config->size()]; nullopt is unbounded.
//   SIZE     as it stands, whether or not the target is there
//   PERCENT  of unit_bytes, rounded down; the target must be there
//   auto     what its budgets hold after the dense part (primary only), buffers, safety margin, the
//            fixed capacities of the same budgets and the `auto` targets before it; never more than
//            unit_bytes. `cpu` and `worker(cpu)` are unbounded while their units are mapped;
//            `cpu:NODE` is bounded by its node either way
// Errors: kInvalidInput when a target without a SIZE is not there, naming it and the present ones;
// kCapacity when the dense part does not fit on the primary, with need, have and remedy. The dense
// part on a primary that is not there is not checked.
base::Result<std::vector<std::optional<base::Bytes>>> ResolveCapacities(
    const CapacityRequest& request, MemoryProbe& probe);

}  // namespace moe
