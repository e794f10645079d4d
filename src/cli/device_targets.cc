#include "cli/device_targets.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <format>
#include <fstream>

#include "base/check.h"
#include "base/quote.h"
#include "gg/numa.h"
#include "moe/ipc/socket_path.h"
#include "moe/ipc/worker_session.h"

namespace cli {
namespace {

std::string Join(std::span<const std::string> names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

// The device that `target` is or that its worker hosts; nullptr when this machine lacks it.
const gg::Device* InnerDevice(const moe::ExpertSplitTarget& target,
                              std::span<const gg::Device> devices) {
  switch (target.inner_place) {
    case moe::TargetPlace::kNuma:
      if (!std::ranges::contains(gg::NumaNodes(), target.index, &gg::NumaNode::index)) {
        return nullptr;
      }
      [[fallthrough]];
    case moe::TargetPlace::kCpu:
      return gg::FindDevice(devices, "cpu");
    case moe::TargetPlace::kDevice:
      return gg::FindDevice(devices,
                            std::format("{}:{}", moe::BackendKindName(target.kind), target.index));
    default:
      return nullptr;
  }
}

// Lines of the kernel's file: "Node 0 MemFree:  123 kB".
std::optional<moe::TargetMemory> NodeMemory(std::uint32_t node) {
  std::ifstream meminfo(std::format("/sys/devices/system/node/node{}/meminfo", node));
  if (!meminfo) return std::nullopt;
  moe::TargetMemory memory;
  memory.shares_host_ram = true;
  std::string word, number, key;
  std::uint64_t kib = 0;
  while (meminfo >> word >> number >> key >> kib) {
    if (key == "MemTotal:") memory.total = base::Bytes::KiB(kib);
    // Page cache counts as free: mapped model pages are dropped for anything else.
    if (key == "MemFree:" || key == "FilePages:") memory.free += base::Bytes::KiB(kib);
    std::getline(meminfo, word);
  }
  memory.free = std::min(memory.free, memory.total);
  return memory;
}

moe::TargetMemory MemoryOf(const moe::ipc::Welcome& welcome) {
  return {.free = welcome.memory_free,
          .total = welcome.memory_total,
          .device_id = welcome.device_id,
          .shares_host_ram = welcome.shares_host_ram};
}

// As a worker tells whoever connects.
std::optional<moe::TargetMemory> WorkerMemory(const moe::ExpertSplitTarget& target) {
  constexpr std::chrono::seconds kPatience(5);
  auto channel = moe::ipc::ConnectTo(target.path, base::Deadline::After(kPatience));
  if (!channel) return std::nullopt;
  auto session =
      moe::ipc::WorkerSession::Open(std::move(*channel), target.name, {.welcome = kPatience});
  if (!session) return std::nullopt;
  return MemoryOf(session->welcome());
}

// A server that is in use is not asked without need: it ends when somebody in its queue gives up.
std::optional<moe::TargetMemory> RemoteMemory(const moe::ExpertSplitTarget& target,
                                              moe::RemoteServers* remotes) {
  constexpr std::chrono::seconds kPatience(20);
  if (target.capacity.policy == moe::CapacityPolicy::kBytes || remotes == nullptr) {
    return std::nullopt;
  }
  auto welcome = remotes->Ask(target, kPatience);
  if (!welcome) return std::nullopt;
  return MemoryOf(*welcome);
}

}  // namespace

base::Result<moe::ExpertSplitTargetConfig> TargetsOrDefault(std::string_view list,
                                                            std::span<const gg::Device> devices) {
  if (!list.empty()) return moe::ExpertSplitTargetConfig::Parse(list);
  std::string text;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const bool seen = std::ranges::any_of(devices.first(i), [&](const gg::Device& other) {
      return !other.device_id.empty() && other.device_id == devices[i].device_id &&
             other.backend != devices[i].backend;
    });
    if (!seen) text += (text.empty() ? "" : ",") + devices[i].name;
  }
  return moe::ExpertSplitTargetConfig::Parse(text);
}

base::Result<std::vector<const gg::Device*>> ResolveDevices(
    const moe::ExpertSplitTargetConfig& config, std::span<const gg::Device> devices) {
  std::vector<const gg::Device*> resolved;
  for (const moe::ExpertSplitTarget& target : config.targets()) {
    const gg::Device* device = InnerDevice(target, devices);
    if (device == nullptr && (target.inner_place == moe::TargetPlace::kDevice ||
                              target.inner_place == moe::TargetPlace::kNuma)) {
      return base::Fail(base::ErrorKind::kInvalidInput,
                        "target list item {} {}: missing device; present are {}",
                        resolved.size() + 1, base::Quote(target.name),
                        Join(DeviceMemoryProbe(devices).PresentTargets()));
    }
    const bool in_process = target.in_process_cpu() || target.place == moe::TargetPlace::kDevice;
    resolved.push_back(in_process ? device : nullptr);
  }
  return resolved;
}

std::optional<moe::TargetMemory> DeviceMemoryProbe::Target(const moe::ExpertSplitTarget& target) {
  if (target.place == moe::TargetPlace::kUnix) return WorkerMemory(target);
  if (target.inner_place == moe::TargetPlace::kRpc) return RemoteMemory(target, remotes_);
  if (target.inner_place == moe::TargetPlace::kNuma) return NodeMemory(target.index);
  const gg::Device* device = InnerDevice(target, devices_);
  if (device == nullptr) return std::nullopt;
  return moe::TargetMemory{.free = gg::FreeMemory(*device),
                           .total = device->memory_total,
                           .device_id = device->device_id,
                           .shares_host_ram = device->host_memory};
}

moe::HostMemory DeviceMemoryProbe::Host() {
  const gg::Device* cpu = gg::FindDevice(devices_, "cpu");
  ES_CHECK(cpu != nullptr);
  return {.available = gg::FreeMemory(*cpu), .total = cpu->memory_total};
}

std::vector<std::string> DeviceMemoryProbe::PresentTargets() {
  std::vector<std::string> names;
  for (const gg::Device& device : devices_) names.push_back(device.name);
  for (const gg::NumaNode& node : gg::NumaNodes())
    names.push_back(std::format("cpu:{}", node.index));
  return names;
}

}  // namespace cli
