#include "moe/compute/device_compute.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moe/compute/host_compute.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

std::string TypeName(int type) { return ggml_type_name(static_cast<ggml_type>(type)); }

// A Vulkan device (llvmpipe where there is no GPU), or the CPU's backend where there is no driver.
const gg::Device& AnyDevice(std::size_t index = 0) {
  static const std::vector<gg::Device> devices =
      gg::DiscoverDevices().value_or(std::vector<gg::Device>());
  const gg::Device* device = gg::FindDevice(devices, "vulkan:" + std::to_string(index));
  return device != nullptr ? *device : devices.back();
}

std::unique_ptr<DeviceCompute> MakeDevice(const TestExperts& experts, std::size_t num_used,
                                          DeviceComputeOptions options = {}) {
  options.name = "vulkan:0";
  if (options.device.handle == nullptr) options.device = AnyDevice();
  options.weights = experts.weights();
  options.num_used = num_used;
  auto device = DeviceCompute::Make(std::move(options));
  EXPECT_TRUE(device) << device.error().message;
  for (std::size_t l = 0; l < experts.shape().num_layers; ++l) {
    auto loaded = (*device)->LoadLayer(LayerId(l));
    EXPECT_TRUE(loaded) << loaded.error().message;
  }
  return std::move(*device);
}

TestExpertShape SmallShape(int type) {
  TestExpertShape shape = ShapeOfType(type);
  shape.n_embd = 256;
  return shape;
}

class DeviceComputeOfType : public testing::TestWithParam<int> {};

// Devices round activations to eight bits or not, as they like. What the CPU's eight-bit rows
// differ by from exact ones is the tolerance for quantised types: the NMSE of a 256-wide row of
// Q8_K is about 1e-5, and the node multiplies three times.
TEST_P(DeviceComputeOfType, AgreesWithDoublePrecision) {
  const TestExperts experts(SmallShape(GetParam()));
  const auto device = MakeDevice(experts, 3, {.max_rows = 16});
  const bool quantised = ggml_is_quantized(static_cast<ggml_type>(GetParam()));
  for (const std::size_t num_rows : {1, 11}) {
    const TestBatch batch(experts.shape(), num_rows, 3);
    const std::vector<float> out = RunBatch(*device, batch.batch());
    EXPECT_LE(Nmse(out, Reference(experts, batch.batch())), quantised ? 1e-3 : 1e-5)
        << num_rows << " rows";
  }
  EXPECT_EQ(device->num_pairs(0), 36u);
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceComputeOfType,
                         testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_K,
                                         GGML_TYPE_Q8_0),
                         [](const auto& of) { return TypeName(of.param); });

}  // namespace
}  // namespace moe
