#include "moe/compute/measure_speed.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "moe/compute/test_experts.h"
#include "moe/plan/test_shape.h"

namespace moe {
namespace {

class MeasureSpeedTest : public ::testing::Test {
 protected:
  // Of the first `num_used` experts a token.
  base::Result<TargetSpeed> Measure(const TestExperts& experts, std::uint32_t num_used,
                                    const std::string& device, Repack repack = Repack::kAuto) {
    const LayerWeights& layer = experts.weights()->layers[0];
    std::size_t bytes = layer.gate.expert_bytes + layer.down.expert_bytes;
    if (layer.up) bytes += layer.up->expert_bytes;
    const ModelShape shape =
        TestShape({bytes}, static_cast<std::uint32_t>(experts.shape().num_experts), num_used);
    const gg::Device* found = gg::FindDevice(devices_, device);
    if (found == nullptr) found = &devices_.back();
    return MeasureSpeed({.shape = &shape,
                         .weights = experts.weights(),
                         .device = *found,
                         .repack = repack,
                         .num_threads = 2,
                         .prompt_rows = 16});
  }

  static void ExpectSpeed(const base::Result<TargetSpeed>& speed) {
    ASSERT_TRUE(speed) << speed.error().message;
    EXPECT_GT(speed->decode_bytes_per_second, 1e3);
    EXPECT_GT(speed->prompt_bytes_per_second, 1e3);
    EXPECT_LT(speed->decode_bytes_per_second, 1e15);
    EXPECT_LT(speed->prompt_bytes_per_second, 1e15);
    EXPECT_GE(speed->layer_seconds, 0);
    EXPECT_LT(speed->layer_seconds, 10);
  }

  const std::vector<gg::Device> devices_ =
      gg::DiscoverDevices().value_or(std::vector<gg::Device>());
};

TEST_F(MeasureSpeedTest, TheCpuInBothLayouts) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  ExpectSpeed(Measure(experts, 2, "cpu", Repack::kAuto));
  ExpectSpeed(Measure(experts, 2, "cpu", Repack::kOff));
}

TEST_F(MeasureSpeedTest, ADevice) {
  TestExpertShape shape = ShapeOfType(GGML_TYPE_Q8_0);
  shape.n_embd = 256;
  const TestExperts experts(shape);
  ExpectSpeed(Measure(experts, 2, "vulkan:0"));
}

// No expert can lie elsewhere, or none but the one that is selected: nothing tells the fixed cost.
TEST_F(MeasureSpeedTest, ModelsThatUseAllOrOneOfTheirExperts) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_F16));
  for (const std::uint32_t num_used :
       {1U, static_cast<std::uint32_t>(experts.shape().num_experts)}) {
    const auto speed = Measure(experts, num_used, "cpu");
    ExpectSpeed(speed);
    EXPECT_EQ(speed->layer_seconds, 0);
  }
}

TEST_F(MeasureSpeedTest, WeightsThatNothingComputesWithAreNamed) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_F32));
  auto weights = std::make_shared<ExpertWeights>(*experts.weights());
  weights->layers[0].down.type = GGML_TYPE_I32;
  const ModelShape shape = TestShape({100}, 6, 2);
  const auto speed = MeasureSpeed({.shape = &shape, .weights = weights, .device = devices_.back()});
  ASSERT_FALSE(speed);
  EXPECT_EQ(speed.error().kind, base::ErrorKind::kUnsupported);
  EXPECT_NE(speed.error().message.find(weights->layers[0].down.tensor), std::string::npos);
}

}  // namespace
}  // namespace moe
