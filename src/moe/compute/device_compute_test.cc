#include "moe/compute/device_compute.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moe/compute/host_compute.h"
#include "moe/compute/hosted_experts.h"
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

TEST(DeviceCompute, FusedAndScaledWeightsAgreeWithDoublePrecision) {
  for (const bool fused : {false, true}) {
    TestExpertShape shape = SmallShape(GGML_TYPE_F32);
    shape.fused = fused;
    shape.scales = true;
    const TestExperts experts(shape);
    const auto device = MakeDevice(experts, 2, {.max_rows = 8});
    for (const std::size_t num_rows : {1, 5}) {
      const TestBatch batch(shape, num_rows, 2);
      EXPECT_LE(Nmse(RunBatch(*device, batch.batch()), Reference(experts, batch.batch())), 1e-5)
          << (fused ? "fused, " : "") << num_rows << " rows";
    }
  }
}

TEST(DeviceCompute, StacksAndLaunchesAddUpToTheWholeBatch) {
  const TestExperts experts(SmallShape(GGML_TYPE_F32));
  // Six experts in stacks of two, eleven rows in launches of four.
  const auto device = MakeDevice(experts, 3, {.max_rows = 4, .max_stack = 2});
  EXPECT_EQ(device->stacks(LayerId(0)).size(), 3u);
  for (const std::size_t num_rows : {1, 11}) {
    const TestBatch batch(experts.shape(), num_rows, 3);
    EXPECT_LE(Nmse(RunBatch(*device, batch.batch()), Reference(experts, batch.batch())), 1e-5);
  }
  EXPECT_EQ(device->num_pairs(0), 36u);
}

TEST(DeviceCompute, TwoDevicesAndTheCpuComputeEveryPairOnce) {
  TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  shape.num_layers = 2;
  const TestExperts experts(shape);
  const auto runtime = SplitAtRandom(shape, 3);
  const auto first = MakeDevice(experts, 3, {.runtime = runtime, .target = TargetId(0)});
  const auto second =
      MakeDevice(experts, 3, {.device = AnyDevice(1), .runtime = runtime, .target = TargetId(1)});
  auto cpu =
      HostCompute::Make({.weights = experts.weights(), .runtime = runtime, .target = TargetId(2)});
  ASSERT_TRUE(cpu) << cpu.error().message;
  MoeExpertCompute* const owners[] = {first.get(), second.get(), cpu->get()};
  for (const std::size_t num_rows : {1, 9}) {
    const TestBatch batch(shape, num_rows, 3);
    for (const LayerId layer : {LayerId(0), LayerId(1)}) {
      EXPECT_LE(
          Nmse(RunBatch(owners, batch.batch(layer), 2), Reference(experts, batch.batch(layer))),
          1e-5);
    }
  }
  EXPECT_EQ(first->num_pairs(0) + second->num_pairs(0) + (*cpu)->num_pairs(0), 2 * 10 * 3u);
  for (const MoeExpertCompute* owner : owners) EXPECT_GT(owner->num_pairs(0), 0u);
}

TEST(DeviceCompute, NanStaysInItsRow) {
  const TestExperts experts(SmallShape(GGML_TYPE_F32));
  const auto device = MakeDevice(experts, 3, {.max_rows = 16});
  TestBatch batch(experts.shape(), 11, 3);
  const std::vector<float> reference = Reference(experts, batch.batch());
  const std::size_t n_embd = experts.shape().n_embd;
  // Row 0 is the one that padding repeats.
  for (const std::size_t row : {0, 6}) {
    batch.rows[row * n_embd + 1] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<float> out = RunBatch(*device, batch.batch());
  for (std::size_t row = 0; row < 11; ++row) {
    const double nmse =
        Nmse({out.data() + row * n_embd, n_embd}, {reference.data() + row * n_embd, n_embd});
    if (row == 0 || row == 6) {
      EXPECT_TRUE(std::isnan(nmse)) << row;
    } else {
      EXPECT_LE(nmse, 1e-5) << row;
    }
  }
}

TEST(DeviceCompute, RowsWithoutAnOwnedPairAreZero) {
  const TestExperts experts(SmallShape(GGML_TYPE_F32));
  const auto runtime = SplitAs(experts.shape(), {0, 1, 0, 1, 1, 1});
  const auto device = MakeDevice(experts, 2, {.runtime = runtime, .max_rows = 8});
  TestBatch batch(experts.shape(), 4, 2);
  batch.ids = {1, 3, 0, 3, 4, 5, 2, 0};
  const std::vector<float> out = RunBatch(*device, batch.batch());
  const std::size_t n_embd = experts.shape().n_embd;
  for (std::size_t i = 0; i < n_embd; ++i) {
    EXPECT_EQ(out[i], 0.0f);
    EXPECT_EQ(out[2 * n_embd + i], 0.0f);
  }
  EXPECT_NE(out[n_embd], 0.0f);
  EXPECT_EQ(device->num_pairs(0), 3u);
  batch.ids = {1, 3, 1, 3, 4, 5, 3, 1};
  RunBatch(*device, batch.batch());
  EXPECT_EQ(device->part(0).sums, nullptr);
  EXPECT_EQ(device->num_pairs(0), 3u);
}

TEST(DeviceCompute, BuildsAGraphOncePerShapeAndLayer) {
  TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  shape.num_layers = 2;
  const TestExperts experts(shape);
  const auto device = MakeDevice(experts, 2, {.max_rows = 16});
  for (int step = 0; step < 5; ++step) {
    for (const LayerId layer : {LayerId(0), LayerId(1)}) {
      const TestBatch batch(shape, 1, 2, static_cast<std::uint32_t>(step));
      RunBatch(*device, batch.batch(layer));
    }
  }
  EXPECT_EQ(device->num_graphs(), 2u);
  for (std::size_t num_rows = 9; num_rows <= 16; ++num_rows) {
    const TestBatch batch(shape, num_rows, 2);
    const std::vector<float> out = RunBatch(*device, batch.batch());
    EXPECT_LE(Nmse(out, Reference(experts, batch.batch())), 1e-5) << num_rows;
  }
  EXPECT_EQ(device->num_graphs(), 4u);  // 18 to 24 pairs, 26 to 32 pairs
}

TEST(DeviceCompute, ScratchMemoryIsKnownBeforeAnythingIsLoaded) {
  for (const bool fused : {false, true}) {
    TestExpertShape shape = SmallShape(GGML_TYPE_F32);
    shape.fused = fused;
    const TestExperts experts(shape);
    const auto measured = MeasureDeviceScratch(AnyDevice(), *experts.weights(), 2, 24);
    ASSERT_TRUE(measured) << measured.error().message;
    const auto device = MakeDevice(experts, 2, {.max_rows = 24});
    EXPECT_EQ(*measured, device->scratch_bytes());
    EXPECT_GT(*measured, base::Bytes::KiB(48));
    const TestBatch batch(shape, 24, 2);
    RunBatch(*device, batch.batch());
    EXPECT_EQ(*measured, device->scratch_bytes());
  }
}

TEST(DeviceCompute, AnotherPlanReloadsOnlyTheLayersThatChange) {
  TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  shape.num_layers = 2;
  const TestExperts experts(shape);
  const auto device =
      MakeDevice(experts, 2, {.runtime = SplitAs(shape, {0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1})});
  device->SetRuntime(SplitAs(shape, {0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1}));
  EXPECT_FALSE(device->stacks(LayerId(0)).empty());
  EXPECT_TRUE(device->stacks(LayerId(1)).empty());
  TestBatch batch(shape, 2, 2);
  batch.ids = {1, 2, 2, 0};
  const auto begun = device->Begin(batch.batch(LayerId(1)));
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().kind, base::ErrorKind::kInternal);
  ASSERT_TRUE(device->LoadLayer(LayerId(1)));
  RunBatch(*device, batch.batch(LayerId(1)));
  RunBatch(*device, batch.batch(LayerId(0)));
  EXPECT_EQ(device->num_pairs(0), 5u);
}

// The weights of an expert that left are replaced where they lie, in a stack of its own.
TEST(DeviceCompute, AnExpertTakesThePlaceOfOneThatLeft) {
  const TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  const TestExperts experts(shape);
  const auto device =
      MakeDevice(experts, 2, {.runtime = SplitAs(shape, {0, 0, 0, 1, 1, 1}), .max_stack = 2});
  const base::Bytes before = device->weight_bytes();
  EXPECT_FALSE(device->FillVacancy(LayerId(0), ExpertId(4))) << "no place is vacant";
  device->SetRuntime(SplitAs(shape, {1, 0, 0, 1, 1, 1}));
  TestBatch batch(shape, 2, 2);
  batch.ids = {1, 2, 0, 2};
  RunBatch(*device, batch.batch());
  EXPECT_EQ(device->num_pairs(0), 3u);
  int pieces = 0;
  for (;; ++pieces) {
    const auto complete = device->FillVacancy(LayerId(0), ExpertId(4));
    ASSERT_TRUE(complete) << complete.error().message;
    if (*complete) break;
    RunBatch(*device, batch.batch());  // between the pieces
  }
  EXPECT_EQ(pieces, 2);
  device->SetRuntime(SplitAs(shape, {1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(device->weight_bytes(), before);
  batch.ids = {4, 2, 1, 4};
  const ExpertBatch of_it = batch.batch();
  EXPECT_LT(Nmse(RunBatch(*device, of_it), Reference(experts, of_it)), 1e-6);
}

TEST(DeviceCompute, AnExpertThatComesBackInTimeIsStillThere) {
  const TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  const TestExperts experts(shape);
  const auto device = MakeDevice(experts, 2, {.runtime = SplitAs(shape, {0, 0, 1, 1, 1, 1})});
  device->SetRuntime(SplitAs(shape, {1, 0, 1, 1, 1, 1}));
  const auto there = device->FillVacancy(LayerId(0), ExpertId(0));
  ASSERT_TRUE(there) << there.error().message;
  EXPECT_TRUE(*there);
  device->UnloadSurplus();
  EXPECT_TRUE(device->stacks(LayerId(0)).empty()) << "it had more than it owns";
  ASSERT_TRUE(device->LoadLayer(LayerId(0)));
  TestBatch batch(shape, 1, 2);
  batch.ids = {1, 1};
  EXPECT_LT(Nmse(RunBatch(*device, batch.batch()), Reference(experts, batch.batch())), 1e-6);
}

TEST(DeviceCompute, AWorkersNextOrderKeepsWhatItHas) {
  if (AnyDevice().is_cpu()) GTEST_SKIP() << "needs a Vulkan driver";
  TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  shape.num_layers = 2;
  const TestModel model(shape, 2);
  HostedExperts hosted({.target = "vulkan:0",
                        .device = AnyDevice(),
                        .shape = &model.shape,
                        .stacks = &model.stacks,
                        .weights = model.experts->weights()});
  ipc::LoadOrder order{.model = model.shape.identity,
                       .rows = {.max_rows = 8,
                                .num_used = 2,
                                .n_embd = static_cast<std::uint32_t>(shape.n_embd),
                                .form = ipc::ResultForm::kSums}};
  const auto shared = ipc::SharedRows::Create(order.rows);
  ASSERT_TRUE(shared);
  TestBatch batch(shape, 5, 2);
  std::ranges::copy(batch.rows, shared->rows());
  std::ranges::copy(batch.ids, shared->ids());
  std::ranges::copy(batch.weights, shared->weights());
  const std::vector<float> weights = batch.weights;
  // Loaded; exchanged in one layer; more in one and none in the other.
  for (const std::vector<std::uint8_t>& owned :
       std::vector<std::vector<std::uint8_t>>{{1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1},
                                              {1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1},
                                              {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}}) {
    order.owned = owned;
    const auto loaded = hosted.Load(order, [](ipc::LoadProgress) {}, {});
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (std::size_t l = 0; l < 2; ++l) {
      std::size_t num_owned = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const bool is_owned = owned[l * 6 + static_cast<std::size_t>(batch.ids[i])] != 0;
        num_owned += is_owned ? 1 : 0;
        batch.weights[i] = is_owned ? weights[i] : 0.0f;
      }
      const auto pairs = hosted.Compute(
          {.number = 1, .layer = static_cast<std::uint32_t>(l), .num_rows = 5}, *shared);
      ASSERT_TRUE(pairs) << pairs.error().message;
      EXPECT_EQ(*pairs, num_owned);
      if (num_owned == 0) continue;
      EXPECT_LT(Nmse({shared->results(), 5 * shape.n_embd},
                     Reference(*model.experts, batch.batch(LayerId(l)))),
                1e-6)
          << "layer " << l;
    }
  }
}

TEST(DeviceCompute, ALayerThatFindsNoRoomLeavesTheOthersUsable) {
  TestExpertShape shape = SmallShape(GGML_TYPE_F32);
  shape.num_layers = 3;
  const TestExperts experts(shape);
  int calls = 0;
  const auto allocate = [&](const gg::Context& context, ggml_backend_buffer_type_t type) {
    if (++calls == 2) {
      return base::Result<gg::Buffer>(
          base::Fail(base::ErrorKind::kCapacity, "the device has no room"));
    }
    return gg::Buffer::ForContext(context, type);
  };
  auto device = DeviceCompute::Make({.name = "vulkan:7",
                                     .device = AnyDevice(),
                                     .weights = experts.weights(),
                                     .num_used = 2,
                                     .max_rows = 4,
                                     .allocate = allocate});
  ASSERT_TRUE(device) << device.error().message;
  ASSERT_TRUE((*device)->LoadLayer(LayerId(0)));
  const base::Bytes before = (*device)->weight_bytes();
  const auto refused = (*device)->LoadLayer(LayerId(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, base::ErrorKind::kCapacity);
  for (const char* part : {"vulkan:7", "layer 1", "4.5 MiB"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ((*device)->weight_bytes(), before);
  ASSERT_TRUE((*device)->LoadLayer(LayerId(2)));
  for (const LayerId layer : {LayerId(0), LayerId(2)}) {
    const TestBatch batch(shape, 3, 2);
    EXPECT_LE(Nmse(RunBatch(**device, batch.batch(layer)), Reference(experts, batch.batch(layer))),
              1e-5);
  }
}

}  // namespace
}  // namespace moe
