// What this process may still use of the host's RAM. Any thread.
#pragma once

#include <filesystem>
#include <optional>

#include "base/bytes.h"

namespace gg {

// The kernel's estimate of what can be had without swapping, page cache included, and no more than
// the memory limits of the control groups (version 1 and 2) that hold this process leave: a
// container's limit counts even where the machine has more. Nullopt when the kernel does not say.
// `root` is where /proc and /sys are found.
std::optional<base::Bytes> AvailableHostMemory(const std::filesystem::path& root = "/");

}  // namespace gg
