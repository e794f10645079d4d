#include "gg/vulkan_probe.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace gg {
namespace {

// The few entry points and layouts of the Vulkan 1.0 ABI that counting devices takes, so that
// building needs no Vulkan headers.
using Handle = void*;
using VoidFunction = void (*)();
using GetInstanceProcAddr = VoidFunction (*)(Handle instance, const char* name);

struct InstanceCreateInfo {
  std::int32_t type = 1;  // VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
  const void* next = nullptr;
  std::uint32_t flags = 0;
  const void* application = nullptr;
  std::uint32_t layer_count = 0;
  const char* const* layers = nullptr;
  std::uint32_t extension_count = 0;
  const char* const* extensions = nullptr;
};

// VkPhysicalDeviceProperties is 824 bytes; only its head matters.
struct alignas(8) DeviceProperties {
  std::uint32_t api_version;
  std::uint32_t driver_version;
  std::uint32_t vendor_id;
  std::uint32_t device_id;
  std::int32_t type;
  std::array<char, 256> name;
  std::array<char, 2048> rest;
};
constexpr std::int32_t kDeviceTypeCpu = 4;
constexpr std::int32_t kIncomplete = 5;

using CreateInstance = std::int32_t (*)(const InstanceCreateInfo*, const void*, Handle*);
using DestroyInstance = void (*)(Handle, const void*);
using EnumeratePhysicalDevices = std::int32_t (*)(Handle, std::uint32_t*, Handle*);
using GetPhysicalDeviceProperties = void (*)(Handle, DeviceProperties*);

template <class Function>
Function Find(GetInstanceProcAddr get, Handle instance, const char* name) {
  return reinterpret_cast<Function>(get(instance, name));
}

std::vector<VulkanDevice> DevicesOf(GetInstanceProcAddr get, Handle instance) {
  auto* enumerate = Find<EnumeratePhysicalDevices>(get, instance, "vkEnumeratePhysicalDevices");
  auto* describe =
      Find<GetPhysicalDeviceProperties>(get, instance, "vkGetPhysicalDeviceProperties");
  std::uint32_t count = 0;
  if (enumerate == nullptr || describe == nullptr || enumerate(instance, &count, nullptr) != 0) {
    return {};
  }
  std::vector<Handle> handles(count);
  const std::int32_t status = enumerate(instance, &count, handles.data());
  if (status != 0 && status != kIncomplete) return {};
  std::vector<VulkanDevice> devices;
  for (std::uint32_t i = 0; i < count; ++i) {
    DeviceProperties properties = {};
    describe(handles[i], &properties);
    const std::size_t length = ::strnlen(properties.name.data(), properties.name.size());
    devices.push_back({.name = std::string(properties.name.data(), length),
                       .software = properties.type == kDeviceTypeCpu});
  }
  return devices;
}

}  // namespace

std::vector<VulkanDevice> EnumerateVulkanDevices() {
  // Stays loaded: ggml's Vulkan backend is about to load it again.
  void* library = ::dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  auto get = reinterpret_cast<GetInstanceProcAddr>(::dlsym(library, "vkGetInstanceProcAddr"));
  if (get == nullptr) return {};
  auto* create = Find<CreateInstance>(get, nullptr, "vkCreateInstance");
  const InstanceCreateInfo info;
  Handle instance = nullptr;
  if (create == nullptr || create(&info, nullptr, &instance) != 0) return {};
  std::vector<VulkanDevice> devices = DevicesOf(get, instance);
  auto* destroy = Find<DestroyInstance>(get, instance, "vkDestroyInstance");
  if (destroy != nullptr) destroy(instance, nullptr);
  return devices;
}

base::Result<std::vector<std::size_t>> ParseVisibleDevices(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::vector<std::size_t> positions;
  if (text.find_first_not_of(kBlank) == std::string_view::npos) return positions;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view item = text.substr(begin, end - begin);
    item.remove_prefix(std::min(item.find_first_not_of(kBlank), item.size()));
    item = item.substr(0, item.find_last_not_of(kBlank) + 1);
    std::uint32_t position = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), position);
    if (item.empty() || error != std::errc() || stop != item.data() + item.size()) {
      return base::Fail(base::ErrorKind::kInvalidInput,
                        "GGML_VK_VISIBLE_DEVICES='{}': '{}' is not a device number; give numbers "
                        "separated by commas, or unset it",
                        text, item);
    }
    positions.push_back(position);
    begin = end + 1;
  }
  return positions;
}

}  // namespace gg
