#include "cli/device_targets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/exit_status.h"

namespace cli {
namespace {

gg::Device MakeDevice(std::string name, std::string device_id = "") {
  gg::Device device;
  device.backend = name.substr(0, name.find(':'));
  device.name = std::move(name);
  device.device_id = std::move(device_id);
  return device;
}

moe::ExpertSplitTargetConfig Parse(std::string_view list) {
  auto config = moe::ExpertSplitTargetConfig::Parse(list);
  EXPECT_TRUE(config) << list;
  return *config;
}

TEST(DeviceTargetsTest, DefaultListIsEveryGpuThenCpu) {
  const std::vector<gg::Device> devices = {MakeDevice("vulkan:0"), MakeDevice("vulkan:1"),
                                           MakeDevice("cpu")};
  EXPECT_EQ(TargetsOrDefault("", devices)->Print(), "vulkan:0,vulkan:1,cpu");
  EXPECT_EQ(TargetsOrDefault("cpu=1GiB,vulkan:7", devices)->size(), 2u);
  EXPECT_EQ(TargetsOrDefault(",", devices).error().kind, base::ErrorKind::kInvalidInput);
}

TEST(DeviceTargetsTest, DefaultListTakesAGpuOfTwoBackendsOnce) {
  const std::vector<gg::Device> devices = {
      MakeDevice("cuda:0", "0000:01:00.0"), MakeDevice("vulkan:0", "0000:01:00.0"),
      MakeDevice("vulkan:1", "0000:02:00.0"), MakeDevice("vulkan:2", "0000:02:00.0"),
      MakeDevice("cpu")};
  EXPECT_EQ(TargetsOrDefault("", devices)->Print(), "cuda:0,vulkan:1,vulkan:2,cpu");
}

TEST(DeviceTargetsTest, ResolvesEachTargetOfThisProcess) {
  const std::vector<gg::Device> devices = {MakeDevice("hip:0"), MakeDevice("cpu")};
  const auto resolved = ResolveDevices(Parse("rocm:0=1MiB,worker(hip:0)=1MiB,cpu"), devices);
  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(*resolved, (std::vector<const gg::Device*>{&devices[0], nullptr, &devices[1]}));
}

TEST(DeviceTargetsTest, MissingDeviceIsNamedWithItsPositionAndThePresentOnes) {
  const std::vector<gg::Device> devices = {MakeDevice("vulkan:0"), MakeDevice("cpu")};
  for (const char* list : {"cpu,cuda:3", "cpu,worker(cuda:3)", "cpu:0,cpu:3003"}) {
    const auto resolved = ResolveDevices(Parse(list), devices);
    ASSERT_FALSE(resolved) << list;
    EXPECT_EQ(ExitStatus(resolved.error().kind), kExitCommandLine);
    const std::string& message = resolved.error().message;
    EXPECT_NE(message.find("item 2"), std::string::npos) << message;
    EXPECT_NE(message.find(list + std::string_view(list).find(',') + 1), std::string::npos)
        << message;
    EXPECT_NE(message.find("vulkan:0, cpu"), std::string::npos) << message;
  }
}

TEST(DeviceTargetsTest, ProbeKnowsHostDevicesAndNodes) {
  auto devices = gg::DiscoverDevices();
  ASSERT_TRUE(devices) << devices.error().message;
  DeviceMemoryProbe probe(*devices);
  const moe::HostMemory host = probe.Host();
  EXPECT_GT(host.available, base::Bytes());
  EXPECT_LE(host.available, host.total);
  EXPECT_TRUE(std::ranges::contains(probe.PresentTargets(), "cpu"));
  EXPECT_TRUE(std::ranges::contains(probe.PresentTargets(), "cpu:0"));
  EXPECT_FALSE(probe.Target(Parse("cuda:99,cpu").targets()[0]));
  EXPECT_FALSE(probe.Target(Parse("rpc:10.0.0.7:1,cpu").targets()[0]));
  EXPECT_FALSE(probe.Target(Parse("cpu:9999").targets()[0]));
  if (const auto node = probe.Target(Parse("cpu:0").targets()[0])) {
    EXPECT_GT(node->total, base::Bytes::MiB(1));
    EXPECT_LE(node->total, host.total);
    EXPECT_TRUE(node->shares_host_ram);
  }
}

TEST(ExitStatusTest, EveryKindOfErrorHasItsDocumentedStatus) {
  using base::ErrorKind;
  EXPECT_EQ(ExitStatus(ErrorKind::kInvalidInput), 2);
  EXPECT_EQ(ExitStatus(ErrorKind::kUnsupported), 2);
  EXPECT_EQ(ExitStatus(ErrorKind::kCorruptModel), 3);
  EXPECT_EQ(ExitStatus(ErrorKind::kCapacity), 4);
  for (const ErrorKind kind : {ErrorKind::kIo, ErrorKind::kWorkerLost, ErrorKind::kTimeout,
                               ErrorKind::kDeviceFailure, ErrorKind::kInternal}) {
    EXPECT_EQ(ExitStatus(kind), 5) << base::ErrorKindName(kind);
  }
  EXPECT_EQ(ExitStatus(ErrorKind::kCancelled), 130);
}

}  // namespace
}  // namespace cli
