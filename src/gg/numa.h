// The NUMA nodes of this machine, through libnuma. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gg {

struct NumaNode {
  std::uint32_t index = 0;
  std::vector<std::uint32_t> cpus;  // of those that this process may use; empty: memory alone
};

// In order of index. Where the kernel knows no nodes, one node 0 with every CPU.
std::vector<NumaNode> NumaNodes();

// Pages of `memory` that are not there yet will be taken from `node` as long as it has any. No
// effect where the kernel knows no nodes.
void PreferNode(std::span<std::byte> memory, std::uint32_t node);

// The calling thread runs on these CPUs alone from now on, and threads that it starts. False when
// the system refuses, and nothing changes.
bool RunOn(std::span<const std::uint32_t> cpus);

}  // namespace gg
