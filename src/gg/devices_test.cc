// Runs with GGML_VK_VISIBLE_DEVICES=0,0 (see CMakeLists.txt): on a machine whose first Vulkan
// driver is llvmpipe that gives two software devices; elsewhere the same GPU twice.
#include "gg/devices.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "gg/handles.h"
#include "gg/vulkan_probe.h"

namespace gg {
namespace {

TEST(BackendWordTest, MapsGgmlNamesToTargetKinds) {
  EXPECT_EQ(BackendWord("CUDA"), "cuda");
  EXPECT_EQ(BackendWord("ROCm"), "hip");
  EXPECT_EQ(BackendWord("Vulkan"), "vulkan");
  EXPECT_EQ(BackendWord("MTL"), "metal");
  EXPECT_EQ(BackendWord("SYCL"), "sycl");
  EXPECT_EQ(BackendWord("CANN"), "cann");
  EXPECT_EQ(BackendWord("OpenCL"), "opencl");
  EXPECT_EQ(BackendWord("CPU"), "cpu");
  for (const char* other : {"BLAS", "RPC", "WebGPU", "MUSA", ""}) EXPECT_EQ(BackendWord(other), "");
}

TEST(VisibleDevicesTest, ParsesNumbersAndNamesWhatIsNone) {
  EXPECT_EQ(ParseVisibleDevices("0, 0,12").value(), (std::vector<std::size_t>{0, 0, 12}));
  EXPECT_TRUE(ParseVisibleDevices(" ").value().empty());
  for (const char* bad : {"a", "0,", "0,,1", "-1", "0 1", "1x", "99999999999"}) {
    auto parsed = ParseVisibleDevices(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().kind, base::ErrorKind::kInvalidInput);
    EXPECT_NE(parsed.error().message.find(bad), std::string::npos) << parsed.error().message;
  }
}

class DevicesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto found = DiscoverDevices();
    ASSERT_TRUE(found) << found.error().message;
    devices_ = std::move(*found);
  }
  static inline std::vector<Device> devices_;
};

TEST_F(DevicesTest, EndsWithTheCpuWhichHasMemory) {
  ASSERT_FALSE(devices_.empty());
  const Device& cpu = devices_.back();
  EXPECT_EQ(cpu.name, "cpu");
  EXPECT_TRUE(cpu.is_cpu());
  EXPECT_TRUE(cpu.host_memory);
  EXPECT_FALSE(cpu.software);
  EXPECT_GT(cpu.memory_total, base::Bytes::MiB(64));
  EXPECT_GT(FreeMemory(cpu), base::Bytes());
  EXPECT_LE(FreeMemory(cpu), cpu.memory_total);
  EXPECT_EQ(FindDevice(devices_, "cpu"), &cpu);
  EXPECT_EQ(FindDevice(devices_, "cuda:99"), nullptr);
}

TEST_F(DevicesTest, SecondDiscoveryFindsTheSameDevices) {
  auto again = DiscoverDevices();
  ASSERT_TRUE(again);
  ASSERT_EQ(again->size(), devices_.size());
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    EXPECT_EQ((*again)[i].name, devices_[i].name);
    EXPECT_EQ((*again)[i].handle, devices_[i].handle);
  }
}

TEST_F(DevicesTest, TwiceVisibleVulkanDeviceIsTwoTargets) {
  const std::vector<VulkanDevice> present = EnumerateVulkanDevices();
  ASSERT_FALSE(present.empty()) << "no Vulkan driver; mesa-vulkan-drivers brings llvmpipe";
  const Device* first = FindDevice(devices_, "vulkan:0");
  const Device* second = FindDevice(devices_, "vulkan:1");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first->handle, second->handle);
  EXPECT_EQ(first->backend, "vulkan");
  EXPECT_EQ(second->index, 1u);
  EXPECT_EQ(first->software, present[0].software);
  EXPECT_NE(first->description.find(present[0].name.substr(0, 8)), std::string::npos);
}

TEST_F(DevicesTest, SoftwareVulkanAloneGetsTheSettingsThatMakeItExact) {
  const Device* first = FindDevice(devices_, "vulkan:0");
  ASSERT_NE(first, nullptr);
  const char* coopmat = std::getenv("GGML_VK_DISABLE_COOPMAT");
  const char* f16 = std::getenv("GGML_VK_DISABLE_F16");
  EXPECT_EQ(coopmat != nullptr, first->software);
  EXPECT_EQ(f16 != nullptr, first->software);
}

TEST_F(DevicesTest, BuffersThatCannotBeHadAreAnErrorNamingDeviceAndSize) {
  const Device& cpu = devices_.back();
  auto buffer =
      Buffer::Allocate(ggml_backend_dev_buffer_type(cpu.handle), base::Bytes::GiB(1U << 30U));
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().kind, base::ErrorKind::kCapacity);
  EXPECT_NE(buffer.error().message.find("EiB"), std::string::npos) << buffer.error().message;
}

TEST_F(DevicesTest, HandlesMoveAndFreeOnce) {
  auto backend = Backend::Open(devices_.back());
  ASSERT_TRUE(backend);
  backend->SetThreads(2);
  Backend moved = std::move(*backend);
  auto other = Backend::Open(devices_.back());
  ASSERT_TRUE(other);
  moved = std::move(*other);
  ggml_backend_t list[] = {moved.get()};
  auto scheduler = Scheduler::Make(list, 64);
  ASSERT_TRUE(scheduler);
  auto context = Context::Make(2);
  ASSERT_TRUE(context);
  auto empty = Buffer::ForContext(*context, ggml_backend_get_default_buffer_type(moved.get()));
  EXPECT_FALSE(empty);
  ggml_new_tensor_1d(context->get(), GGML_TYPE_F32, 100);
  auto buffer = Buffer::ForContext(*context, ggml_backend_get_default_buffer_type(moved.get()));
  ASSERT_TRUE(buffer);
  EXPECT_GE(buffer->size(), base::Bytes(400));
}

}  // namespace
}  // namespace gg
