#include "gg/devices.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <format>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "gg/host_memory.h"
#include "gg/vulkan_probe.h"

namespace gg {
namespace {

constexpr const char* kVisibleVariable = "GGML_VK_VISIBLE_DEVICES";

// Which of ggml's Vulkan devices are software, by index. Without the variable ggml shows none.
std::vector<bool>& SoftwareVulkan() {
  static std::vector<bool> software;
  return software;
}

base::Log& GgmlLog() {
  static base::Log log;
  return log;
}

void ForwardGgmlLine(ggml_log_level level, const char* text, void*) {
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (line.empty() || line == ".") return;
  if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) {
    GgmlLog().Warning("{}", line);
  } else {
    GgmlLog().Debug("{}", line);
  }
}

base::Result<void> PrepareVulkan(bool apply_settings) {
  const char* visible = std::getenv(kVisibleVariable);
  if (visible == nullptr) return {};
  auto positions = ParseVisibleDevices(visible);
  if (!positions) return Forward(positions);
  if (positions->empty()) return {};
  const std::vector<VulkanDevice> present = EnumerateVulkanDevices();
  std::vector<bool>& software = SoftwareVulkan();
  software.clear();
  for (const std::size_t position : *positions) {
    if (position >= present.size()) {
      std::string names;
      for (std::size_t i = 0; i < present.size(); ++i) {
        names += std::format("{}{} ({})", i == 0 ? "" : ", ", i, present[i].name);
      }
      return base::Fail(base::ErrorKind::kInvalidInput,
                        "{}='{}': there is no Vulkan device {}; present: {}", kVisibleVariable,
                        visible, position, names.empty() ? "none" : names);
    }
    software.push_back(present[position].software);
  }
  if (apply_settings && std::ranges::all_of(software, std::identity())) {
    ::setenv("GGML_VK_DISABLE_COOPMAT", "1", /*overwrite=*/0);
    ::setenv("GGML_VK_DISABLE_F16", "1", /*overwrite=*/0);
  }
  return {};
}

base::Result<void> LoadBackends(const DiscoveryOptions& options) {
  static bool loaded = false;
  if (loaded) return {};
  if (auto prepared = PrepareVulkan(options.software_vulkan_settings); !prepared) return prepared;
  // The tiled kernels run from a certain number of rows on and add in another order than the dot
  // products of fewer rows: a token's result would depend on its batch.
  ::setenv("GGML_CPU_TILED_MM", "0", /*overwrite=*/0);
  GgmlLog() = options.log;
  ggml_log_set(ForwardGgmlLine, nullptr);
  // A second load would register every device again.
  if (ggml_backend_reg_count() == 0) ggml_backend_load_all();
  loaded = true;
  return {};
}

Device Describe(ggml_backend_dev_t handle, std::string_view word, std::uint32_t index) {
  ggml_backend_dev_props properties = {};
  ggml_backend_dev_get_props(handle, &properties);
  Device device;
  device.backend = word;
  device.index = index;
  device.name = word == "cpu" ? std::string(word) : std::format("{}:{}", word, index);
  if (properties.description != nullptr) device.description = properties.description;
  if (properties.device_id != nullptr) device.device_id = properties.device_id;
  device.memory_total = base::Bytes(properties.memory_total);
  device.memory_free = base::Bytes(properties.memory_free);
  const std::vector<bool>& software = SoftwareVulkan();
  device.software = word == "vulkan" && index < software.size() && software[index];
  device.host_memory =
      word == "cpu" || device.software || properties.type == GGML_BACKEND_DEVICE_TYPE_IGPU;
  // ggml calls all of the host's RAM free; the kernel knows what can really be had.
  if (word == "cpu") device.memory_free = AvailableHostMemory().value_or(device.memory_free);
  device.handle = handle;
  return device;
}

bool CanBeTarget(ggml_backend_dev_t handle, std::string_view word) {
  switch (ggml_backend_dev_type(handle)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
      return word == "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
      return !word.empty() && word != "cpu";
    default:
      return false;
  }
}

}  // namespace

std::string_view BackendWord(std::string_view ggml_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kWords = {{
      {"CPU", "cpu"},
      {"CUDA", "cuda"},
      {"ROCm", "hip"},
      {"Vulkan", "vulkan"},
      {"Metal", "metal"},
      {"MTL", "metal"},
      {"SYCL", "sycl"},
      {"CANN", "cann"},
      {"OpenCL", "opencl"},
  }};
  const auto found = std::ranges::find(kWords, ggml_name, &decltype(kWords)::value_type::first);
  return found == kWords.end() ? std::string_view() : found->second;
}

base::Result<std::vector<Device>> DiscoverDevices(const DiscoveryOptions& options) {
  if (auto loaded = LoadBackends(options); !loaded) return Forward(loaded);
  std::vector<Device> devices;
  std::optional<Device> cpu;
  std::map<std::string_view, std::uint32_t> next_index;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t handle = ggml_backend_dev_get(i);
    const std::string_view word =
        BackendWord(ggml_backend_reg_name(ggml_backend_dev_backend_reg(handle)));
    if (!CanBeTarget(handle, word)) continue;
    Device device = Describe(handle, word, next_index[word]++);
    if (!device.is_cpu()) {
      devices.push_back(std::move(device));
    } else if (!cpu) {
      cpu = std::move(device);
    }
  }
  if (!cpu) {
    return base::Fail(base::ErrorKind::kInternal,
                      "ggml found no CPU backend; install its backend modules (libggml0), or name "
                      "one in GGML_BACKEND_PATH");
  }
  devices.push_back(std::move(*cpu));
  return devices;
}

const Device* FindDevice(std::span<const Device> devices, std::string_view name) {
  const auto found = std::ranges::find(devices, name, &Device::name);
  return found == devices.end() ? nullptr : &*found;
}

base::Bytes FreeMemory(const Device& device) {
  std::size_t free = 0;
  std::size_t total = 0;
  ggml_backend_dev_memory(device.handle, &free, &total);
  return device.is_cpu() ? AvailableHostMemory().value_or(base::Bytes(free)) : base::Bytes(free);
}

}  // namespace gg
