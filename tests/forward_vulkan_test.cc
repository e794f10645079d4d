// The forward pass of qwen35moe with a device as primary, against its run on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "forward_fixture.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace {

using test::Experts;
using test::ForwardModel;

struct Case {
  const char* model;
  Experts experts;
};

class ForwardVulkanTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto devices = gg::DiscoverDevices();
    ASSERT_TRUE(devices) << devices.error().message;
    if (gg::FindDevice(*devices, "vulkan:0") == nullptr) GTEST_SKIP() << "no Vulkan device";
  }
};

TEST_P(ForwardVulkanTest, AgreesWithTheCpu) {
  const std::string path = test::ModelPath(GetParam().model);
  auto cpu = ForwardModel::Load(path);
  ASSERT_NE(cpu, nullptr);
  const std::vector<std::int32_t> tokens = cpu->Tokens(48);
  const std::vector<float> reference = cpu->Logits(tokens);
  auto device = ForwardModel::Load(
      path, {.primary = "vulkan:0", .experts = GetParam().experts, .num_slots = 3});
  ASSERT_NE(device, nullptr);
  constexpr test::LogitsTolerance kTolerance = {.median_nmse = 1e-5, .row_nmse = 1e-4};
  const std::size_t width = device->vocab_size();
  EXPECT_TRUE(test::LogitsAgree(reference, device->Logits(tokens, 40), width, kTolerance));

  // In small steps, and half of them in a copy of the slot.
  const std::vector<std::int32_t> start(tokens.begin(), tokens.begin() + 30);
  const std::vector<std::int32_t> end(tokens.begin() + 30, tokens.end());
  std::vector<float> steps = device->Logits(start, 3, 1);
  ASSERT_TRUE(device->backend().CopySlot(1, 2));
  device->backend().ClearSlot(1);
  const std::vector<float> rest = device->Logits(end, 3, 2);
  steps.insert(steps.end(), rest.begin(), rest.end());
  EXPECT_TRUE(test::LogitsAgree(reference, steps, width, kTolerance));
}

class DenseLoadTest : public ForwardVulkanTest {
 protected:
  // Loads the case's model with vulkan:0 as primary.
  base::Result<std::unique_ptr<model::qwen35moe::Qwen35MoeBackend>> Load(
      const model::LoadControl& control) {
    auto devices = gg::DiscoverDevices();
    if (!devices) return base::Forward(devices);
    auto file = gg::GgufFile::Open(test::ModelPath(GetParam().model));
    if (!file) return base::Forward(file);
    file_ = std::make_unique<gg::GgufFile>(*std::move(file));
    return model::qwen35moe::Qwen35MoeBackend::Load(
        *file_, gg::FindDevice(*devices, "vulkan:0")->handle,
        gg::FindDevice(*devices, "cpu")->handle, {.context_length = 128}, {}, control);
  }

  std::unique_ptr<gg::GgufFile> file_;
};

TEST_P(DenseLoadTest, ReportsEveryByteOnce) {
  base::Bytes last;
  base::Bytes whole;
  auto backend = Load({.progress = [&](base::Bytes done, base::Bytes total) {
    EXPECT_GT(done, last);
    last = done;
    whole = total;
  }});
  ASSERT_TRUE(backend) << backend.error().message;
  EXPECT_GT(whole, base::Bytes());
  EXPECT_EQ(last, whole);
}

TEST_P(DenseLoadTest, EndsSoonAfterAnInterruption) {
  std::stop_source stop;
  std::size_t reports = 0;
  auto backend = Load({.progress =
                           [&](base::Bytes, base::Bytes) {
                             ++reports;
                             stop.request_stop();
                           },
                       .stop = stop.get_token()});
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().kind, base::ErrorKind::kCancelled);
  EXPECT_EQ(reports, 1u);
}

INSTANTIATE_TEST_SUITE_P(Dense, DenseLoadTest, testing::Values(Case{"tiny-f16", Experts::kHost}),
                         [](const auto&) { return "tiny"; });

INSTANTIATE_TEST_SUITE_P(Layouts, ForwardVulkanTest,
                         testing::Values(Case{"forward-f32-fused-tied-2", Experts::kOnPrimary},
                                         Case{"tiny-f16", Experts::kHost}),
                         [](const auto& param) {
                           return param.param.experts == Experts::kHost ? "ExpertsOnTheHost"
                                                                        : "ExpertsOnThePrimary";
                         });

// Run with a limit on the size of a buffer (tests/CMakeLists.txt), which the device reads when it
// is opened for the first time.
TEST(ForwardSmallBuffersTest, WeightsTheDeviceCannotHoldStayOnTheCpu) {
  if (std::getenv("GGML_VK_FORCE_MAX_BUFFER_SIZE") == nullptr) GTEST_SKIP() << "no limit is set";
  const std::string path = test::ModelPath("forward-f32-fused-tied-2");
  auto cpu = ForwardModel::Load(path);
  ASSERT_NE(cpu, nullptr);
  const std::vector<std::int32_t> tokens = cpu->Tokens(24);
  std::vector<std::string> warnings;
  auto device = ForwardModel::Load(
      path,
      {.primary = "vulkan:0", .log = base::Log([&](base::LogLevel level, std::string_view message) {
                                if (level == base::LogLevel::kWarning)
                                  warnings.emplace_back(message);
                              })});
  ASSERT_NE(device, nullptr);
  EXPECT_THAT(warnings, testing::Contains(testing::HasSubstr("blk.0.attn_qkv.weight")));
  EXPECT_THAT(warnings, testing::Not(testing::Contains(testing::HasSubstr("attn_k.weight"))));
  auto kept = device->backend().KeepOnPrimary(moe::LayerId(0));
  ASSERT_TRUE(kept);
  EXPECT_FALSE(*kept) << "its stacks are larger still";
  EXPECT_TRUE(test::LogitsAgree(cpu->Logits(tokens), device->Logits(tokens), cpu->vocab_size(),
                                {.median_nmse = 1e-5, .row_nmse = 1e-4}));
}

}  // namespace
