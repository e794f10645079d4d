#include "gg/numa.h"

#include <numa.h>
#include <sched.h>

#include <memory>

namespace gg {
namespace {

struct FreeMask {
  void operator()(bitmask* mask) const { numa_bitmask_free(mask); }
};
using CpuMask = std::unique_ptr<bitmask, FreeMask>;

bool HasNodes() { return numa_available() >= 0; }

std::vector<std::uint32_t> AllowedCpus() {
  std::vector<std::uint32_t> cpus;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<NumaNode> NumaNodes() {
  const std::vector<std::uint32_t> allowed = AllowedCpus();
  if (!HasNodes()) return {{.index = 0, .cpus = allowed}};
  std::vector<NumaNode> nodes;
  const CpuMask mask(numa_allocate_cpumask());
  for (int node = 0; node <= numa_max_node(); ++node) {
    if (!numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node))) continue;
    NumaNode& found = nodes.emplace_back(NumaNode{.index = static_cast<std::uint32_t>(node)});
    if (numa_node_to_cpus(node, mask.get()) != 0) continue;
    for (const std::uint32_t cpu : allowed) {
      if (numa_bitmask_isbitset(mask.get(), cpu)) found.cpus.push_back(cpu);
    }
  }
  return nodes;
}

void PreferNode(std::span<std::byte> memory, std::uint32_t node) {
  if (HasNodes() && !memory.empty() && static_cast<int>(node) <= numa_max_node()) {
    numa_tonode_memory(memory.data(), memory.size(), static_cast<int>(node));
  }
}

bool RunOn(std::span<const std::uint32_t> cpus) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const std::uint32_t cpu : cpus) CPU_SET(cpu, &wanted);
  return ::sched_setaffinity(0, sizeof wanted, &wanted) == 0;
}

}  // namespace gg
