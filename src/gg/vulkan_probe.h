// What Vulkan itself reports, asked before ggml is.
//
// ggml reads its Vulkan settings once, when its backend loads, and does not tell a driver that runs
// on the CPU (Mesa's llvmpipe) from a GPU. So the settings that such drivers need must be decided
// here, from the Vulkan loader alone. Call from one thread, before ggml is loaded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gg {

struct VulkanDevice {
  std::string name;       // as the driver calls it
  bool software = false;  // computed by the host's CPU
};

// Every physical device, in the order by which GGML_VK_VISIBLE_DEVICES counts them; empty when
// there is no Vulkan loader, driver or device. Not filtered by that variable.
std::vector<VulkanDevice> EnumerateVulkanDevices();

// The positions that a GGML_VK_VISIBLE_DEVICES value names: "0,0" is {0, 0}; empty for blank text.
// Errors: kInvalidInput, with the variable's name and value, for anything but numbers separated by
// commas.
base::Result<std::vector<std::size_t>> ParseVisibleDevices(std::string_view text);

}  // namespace gg
