// llvmpipe as it comes, without the settings that make it exact: the check must catch it. A program
// of its own, because ggml reads its settings once; slow, because llvmpipe compiles cooperative
// matrix shaders for many seconds.
#include <gtest/gtest.h>

#include "gg/device_check.h"

namespace gg {
namespace {

TEST(SoftwareVulkanTest, CooperativeMatrixFaultIsRefused) {
  auto devices = DiscoverDevices({.log = {}, .software_vulkan_settings = false});
  ASSERT_TRUE(devices) << devices.error().message;
  const Device* device = FindDevice(*devices, "vulkan:0");
  if (device == nullptr || !device->software) GTEST_SKIP() << "the first Vulkan device is a GPU";
  auto checked = CheckDevice(*device);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().kind, base::ErrorKind::kDeviceFailure);
  EXPECT_NE(checked.error().message.find("vulkan:0"), std::string::npos);
}

}  // namespace
}  // namespace gg
