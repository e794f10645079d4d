#include "gg/device_check.h"

#include <gtest/gtest.h>

#include <limits>

namespace gg {
namespace {

std::vector<Device> Discover() {
  auto devices = DiscoverDevices();
  EXPECT_TRUE(devices) << devices.error().message;
  return devices ? *devices : std::vector<Device>();
}

// The CPU's right numbers, with one element of one operation changed.
CheckCompute Spoiled(std::string_view op, std::size_t index, float value) {
  return [=](const Device& device, const CheckProblem& problem) {
    auto result = ComputeOnDevice(device, problem);
    if (result && problem.op == op) result->at(index) = value;
    return result;
  };
}

TEST(DeviceCheckTest, EveryDeviceOfThisMachinePasses) {
  const std::vector<Device> devices = Discover();
  ASSERT_FALSE(devices.empty());
  for (const Device& device : devices) {
    if (device.name == "vulkan:1") continue;  // the same driver again
    auto checked = CheckDevice(device);
    EXPECT_TRUE(checked) << checked.error().message;
  }
}

TEST(DeviceCheckTest, OneWrongNumberRefusesTheDeviceByName) {
  const std::vector<Device> devices = Discover();
  Device device = devices.back();
  device.name = "cuda:7";
  for (const char* op : {"mul_mat", "mul_mat_id"}) {
    for (const float wrong : {0.0F, 1e9F, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      auto checked = CheckDevice(device, Spoiled(op, 64 + 65 * 99, wrong));
      ASSERT_FALSE(checked) << op << " " << wrong;
      EXPECT_EQ(checked.error().kind, base::ErrorKind::kDeviceFailure);
      EXPECT_NE(checked.error().message.find("cuda:7"), std::string::npos);
      EXPECT_NE(checked.error().message.find(op), std::string::npos) << checked.error().message;
    }
  }
}

TEST(DeviceCheckTest, MissingNumbersAndFailuresAreRefused) {
  const Device cpu = Discover().back();
  auto none = CheckDevice(cpu, [](const Device&, const CheckProblem&) {
    return base::Result<std::vector<float>>(std::vector<float>());
  });
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, base::ErrorKind::kDeviceFailure);
  auto failed =
      CheckDevice(cpu, [](const Device&, const CheckProblem&) -> base::Result<std::vector<float>> {
        return base::Fail(base::ErrorKind::kUnsupported, "no such operation");
      });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().kind, base::ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace gg
