#include "gg/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ranges>
#include <string>
#include <string_view>

namespace gg {
namespace {

using base::Bytes;
using std::filesystem::path;

// Files of a control group. Those of one folder include the groups below it.
struct CgroupFiles {
  path mount;  // relative to root
  const char* limit;
  const char* usage;
  // Keys of memory.stat: page cache, which the kernel drops before it refuses memory.
  std::string_view inactive_cache;
  std::string_view active_cache;
};

const CgroupFiles kVersion1 = {.mount = "sys/fs/cgroup/memory",
                               .limit = "memory.limit_in_bytes",
                               .usage = "memory.usage_in_bytes",
                               .inactive_cache = "total_inactive_file",
                               .active_cache = "total_active_file"};
const CgroupFiles kVersion2 = {.mount = "sys/fs/cgroup",
                               .limit = "memory.max",
                               .usage = "memory.current",
                               .inactive_cache = "inactive_file",
                               .active_cache = "active_file"};

std::optional<Bytes> MemAvailable(const path& root) {
  std::ifstream meminfo(root / "proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return Bytes::KiB(kib);
    meminfo.ignore(256, '\n');
  }
  return std::nullopt;
}

// Nullopt when there is no such file or it holds no number ("max").
std::optional<Bytes> ReadBytes(const path& file) {
  std::ifstream stream(file);
  std::uint64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return Bytes(value);
}

Bytes PageCache(const path& folder, const CgroupFiles& files) {
  std::ifstream stat(folder / "memory.stat");
  Bytes cache;
  std::string key;
  std::uint64_t value = 0;
  while (stat >> key >> value) {
    if (key == files.inactive_cache || key == files.active_cache) cache += Bytes(value);
  }
  return cache;
}

// What the group and those above it leave; Bytes::Max() without a limit. Inside a container the
// group's path may be the host's, whose mount shows the container's own group at its top.
Bytes LeftInGroup(const path& root, const CgroupFiles& files, const path& group) {
  const path mount = root / files.mount;
  path folder = mount;
  Bytes left = Bytes::Max();
  const auto bound = [&] {
    const auto limit = ReadBytes(folder / files.limit);
    const auto usage = ReadBytes(folder / files.usage);
    if (!limit || !usage) return;
    left = std::min(left, *limit - (*usage - PageCache(folder, files)));
  };
  bound();
  for (const path& name : group.relative_path()) {
    if (name == "..") break;
    folder /= name;
    bound();
  }
  return left;
}

Bytes LeftByCgroups(const path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  Bytes left = Bytes::Max();
  // "4:memory:/group" for version 1, "0::/group" for version 2.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const path group = line.substr(second + 1);
    if (controllers.empty()) left = std::min(left, LeftInGroup(root, kVersion2, group));
    for (const auto controller : std::views::split(controllers, ',')) {
      if (std::string_view(controller) != "memory") continue;
      left = std::min(left, LeftInGroup(root, kVersion1, group));
    }
  }
  return left;
}

}  // namespace

std::optional<Bytes> AvailableHostMemory(const path& root) {
  const auto available = MemAvailable(root);
  if (!available) return std::nullopt;
  return std::min(*available, LeftByCgroups(root));
}

}  // namespace gg
