// The devices that ggml offers on this machine, by the names of the target list.
//
// Loading ggml's backends happens once a process, in the first DiscoverDevices; nothing else may
// call ggml before. Call from one thread at a time (the first call changes the environment); a
// Device is a plain value that stays true for the process's life, except its free memory.
//
// The first call also sets GGML_CPU_TILED_MM=0 unless it is set: ggml's tiled CPU kernels, which
// take over at a certain number of rows, would make a token's numbers depend on its batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"

struct ggml_backend_device;

namespace gg {

struct Device {
  std::string name;         // "cuda:0", "hip:0", "vulkan:1", "cpu"
  std::string backend;      // "cuda", "hip", "vulkan", "metal", "sycl", "cann", "opencl", "cpu"
  std::uint32_t index = 0;  // among the devices of this backend
  std::string description;  // for people, as the driver says it
  std::string device_id;    // PCI bus id such as "0000:c1:00.0"; empty when unknown
  base::Bytes memory_total;
  base::Bytes memory_free;  // at the time of discovery; may exceed memory_total
  // A driver that computes on the host's CPU (llvmpipe). Never set for "cpu" itself.
  bool software = false;
  // Its memory is the host's: an integrated GPU, a software driver, or "cpu".
  bool host_memory = false;
  ggml_backend_device* handle = nullptr;  // owned by ggml, never freed

  bool is_cpu() const { return backend == "cpu"; }
};

struct DiscoveryOptions {
  // Where ggml's own messages go, for the rest of the process; the first call's counts.
  base::Log log;
  // Sets GGML_VK_DISABLE_COOPMAT=1 and GGML_VK_DISABLE_F16=1, each unless it is set already, when
  // every visible Vulkan device is a software one: llvmpipe's cooperative-matrix path computes
  // wrong numbers. Only tests of the device check switch this off.
  bool software_vulkan_settings = true;
};

// Every device that can be a target: GPUs in ggml's order, then "cpu". Devices of types BLAS,
// ACCEL, META and RPC, and of backends that the target list has no word for, are left out. Memory
// is asked anew at each call. Errors: kInvalidInput when GGML_VK_VISIBLE_DEVICES names a device
// that does not exist (ggml would drop every Vulkan device); kInternal when ggml has no CPU
// backend.
base::Result<std::vector<Device>> DiscoverDevices(const DiscoveryOptions& options = {});

// Nullptr when absent.
const Device* FindDevice(std::span<const Device> devices, std::string_view name);

// What a device has free now. `device` must come from DiscoverDevices.
base::Bytes FreeMemory(const Device& device);

// "vulkan" for ggml's "Vulkan", "hip" for "ROCm"; empty for a backend that cannot be a target.
std::string_view BackendWord(std::string_view ggml_name);

}  // namespace gg
