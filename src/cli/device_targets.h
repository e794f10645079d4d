// Between the target list, which knows no devices, and the devices of this machine. One thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gg/devices.h"
#include "moe/compute/remote_servers.h"
#include "moe/target/capacity.h"
#include "moe/target/target_config.h"

namespace cli {

// Parses `list`; empty means every GPU of `devices`, then cpu. A GPU that two backends offer (equal
// device_id) is taken from the first. Errors: as ExpertSplitTargetConfig::Parse.
base::Result<moe::ExpertSplitTargetConfig> TargetsOrDefault(std::string_view list,
                                                            std::span<const gg::Device> devices);

// The device that computes each target's units, [config.size()], pointing into `devices`: its own,
// or "cpu" for `cpu` and `cpu:NODE`; nullptr for targets outside this process. Errors:
// kInvalidInput when a device, or the one that a worker shall host, is not there, naming the item,
// its position and the present targets.
base::Result<std::vector<const gg::Device*>> ResolveDevices(
    const moe::ExpertSplitTargetConfig& config, std::span<const gg::Device> devices);

// Memory of the discovered devices, of NUMA nodes and of the host. Workers that listen on a path
// and remote devices are asked, for a bounded time; remote ones not when their capacity is given,
// and by `remotes`, which keeps their connections. `devices` and `remotes` outlive it; the former
// must end with "cpu", as DiscoverDevices returns it.
class DeviceMemoryProbe final : public moe::MemoryProbe {
 public:
  explicit DeviceMemoryProbe(std::span<const gg::Device> devices,
                             moe::RemoteServers* remotes = nullptr)
      : devices_(devices), remotes_(remotes) {}

  std::optional<moe::TargetMemory> Target(const moe::ExpertSplitTarget& target) override;
  moe::HostMemory Host() override;
  std::vector<std::string> PresentTargets() override;

 private:
  std::span<const gg::Device> devices_;
  moe::RemoteServers* remotes_;  // nullptr: remote devices are not asked
};

}  // namespace cli
