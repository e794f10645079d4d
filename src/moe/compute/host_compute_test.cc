#include "moe/compute/host_compute.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "gg/devices.h"
#include "moe/compute/ggml_node.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

std::unique_ptr<HostCompute> MakeHost(const TestExperts& experts) {
  auto host = HostCompute::Make({.weights = experts.weights()});
  EXPECT_TRUE(host) << host.error().message;
  return std::move(*host);
}

// Uses the file's layout; uses packed experts where types can be packed.
std::vector<std::unique_ptr<HostCompute>> BothLayouts(const TestExperts& experts) {
  const std::vector<std::uint8_t> owned(experts.shape().num_layers * experts.shape().num_experts,
                                        1);
  auto packed = PackedExperts::Make({.weights = experts.weights().get(), .owned = owned});
  EXPECT_TRUE(packed) << packed.error().message;
  auto host = HostCompute::Make({.weights = experts.weights(), .packed = *packed});
  EXPECT_TRUE(host) << host.error().message;
  std::vector<std::unique_ptr<HostCompute>> both;
  both.push_back(MakeHost(experts));
  both.push_back(std::move(*host));
  return both;
}

std::string TypeName(int type) { return ggml_type_name(static_cast<ggml_type>(type)); }

void ExpectSameBits(std::span<const float> a, std::span<const float> b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << what << ", element " << i << ": " << a[i] << " and " << b[i];
  }
}

class HostComputeOfType : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { static_cast<void>(gg::DiscoverDevices()); }  // loads the backends
};

TEST_P(HostComputeOfType, IsAsCloseToDoublePrecisionAsGgmlsOwnOperations) {
  const TestExperts experts(ShapeOfType(GetParam()));
  const TestBatch batch(experts.shape(), 9, 3);
  const std::vector<float> reference = Reference(experts, batch.batch());
  const double ggmls = Nmse(
      GgmlNode(experts.weights()->layers[0], experts.shape().num_experts).Compute(batch.batch()),
      reference);
  for (const auto& host : BothLayouts(experts)) {
    const double ours = Nmse(RunBatch(*host, batch.batch(), 2), reference);
    RecordProperty("nmse", std::to_string(ours));
    EXPECT_LE(ours, 1.2 * ggmls + 1e-13) << "ggml: " << ggmls;
    EXPECT_LE(ours, 5e-3);  // neither of both is nonsense
    EXPECT_EQ(host->num_pairs(0), 27u);
  }
}

TEST_P(HostComputeOfType, GivesTheSameBitsForOneRowOrManyOnAnyNumberOfThreads) {
  const TestExperts experts(ShapeOfType(GetParam()));
  // 120 pairs: threads take parts of experts; a row alone is shared row by row.
  const TestBatch batch(experts.shape(), 40, 3);
  for (const auto& host : BothLayouts(experts)) {
    const std::vector<float> expected = RunBatch(*host, batch.batch(), 1);
    for (const std::size_t threads : {2, 3, 5}) {
      ExpectSameBits(RunBatch(*host, batch.batch(), threads), expected,
                     std::to_string(threads) + " threads");
    }
    const std::size_t n_embd = experts.shape().n_embd;
    for (std::size_t row = 0; row < batch.num_rows(); row += 13) {
      const std::span<const float> of_row(expected.data() + row * n_embd, n_embd);
      for (const std::size_t threads : {1, 3}) {
        ExpectSameBits(RunBatch(*host, batch.One(row), threads), of_row,
                       "row " + std::to_string(row) + " alone");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, HostComputeOfType,
                         testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                         GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                                         GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K,
                                         GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                         GGML_TYPE_Q6_K, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ4_XS,
                                         GGML_TYPE_IQ4_NL, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S,
                                         GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_MXFP4),
                         [](const auto& of) { return TypeName(of.param); });

// Every part of the layer in another form: mixed types, one tensor for gate and up, factors.
class HostComputeOfLayer : public testing::TestWithParam<TestExpertShape> {};

TEST_P(HostComputeOfLayer, AgreesWithDoublePrecisionAndKeepsTheBitRule) {
  const TestExperts experts(GetParam());
  const TestBatch batch(experts.shape(), 30, 4);
  for (const auto& host : BothLayouts(experts)) {
    const std::vector<float> expected = RunBatch(*host, batch.batch(), 1);
    EXPECT_LE(Nmse(expected, Reference(experts, batch.batch())), 1e-3);
    ExpectSameBits(RunBatch(*host, batch.batch(), 3), expected, "3 threads");
    const std::span<const float> row(expected.data() + 7 * experts.shape().n_embd,
                                     experts.shape().n_embd);
    ExpectSameBits(RunBatch(*host, batch.One(7), 2), row, "row 7 alone");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, HostComputeOfLayer,
    testing::Values(TestExpertShape{.gate_type = GGML_TYPE_Q4_K,
                                    .up_type = GGML_TYPE_Q8_0,
                                    .down_type = GGML_TYPE_F16},
                    TestExpertShape{.n_ff = 160,
                                    .gate_type = GGML_TYPE_F32,
                                    .up_type = GGML_TYPE_Q6_K,
                                    .down_type = GGML_TYPE_MXFP4},
                    TestExpertShape{.fused = true,
                                    .scales = true,
                                    .gate_type = GGML_TYPE_Q4_K,
                                    .down_type = GGML_TYPE_Q6_K},
                    TestExpertShape{.scales = true,
                                    .gate_type = GGML_TYPE_Q8_0,
                                    .up_type = GGML_TYPE_Q8_0,
                                    .down_type = GGML_TYPE_Q8_0},
                    // Packed: gate and up take rows in two forms; no whole number of strips.
                    TestExpertShape{.n_embd = 512,
                                    .n_ff = 96,
                                    .gate_type = GGML_TYPE_Q4_K,
                                    .up_type = GGML_TYPE_Q8_0,
                                    .down_type = GGML_TYPE_MXFP4},
                    TestExpertShape{.n_embd = 288,
                                    .n_ff = 160,
                                    .scales = true,
                                    .gate_type = GGML_TYPE_Q8_0,
                                    .up_type = GGML_TYPE_Q4_0,
                                    .down_type = GGML_TYPE_IQ4_NL},
                    // Neither width is a whole number of cache lines or of blocks of rows.
                    TestExpertShape{.n_embd = 100,
                                    .n_ff = 37,
                                    .gate_type = GGML_TYPE_F32,
                                    .up_type = GGML_TYPE_F16,
                                    .down_type = GGML_TYPE_BF16}));

TEST(HostCompute, TwoOwnersGiveTheBitsOfOne) {
  for (const int type : {GGML_TYPE_Q4_K, GGML_TYPE_F16}) {
    TestExpertShape shape = ShapeOfType(type);
    shape.num_layers = 2;
    const TestExperts experts(shape);
    const auto runtime = SplitAtRandom(shape, 2);
    const auto whole = MakeHost(experts);
    std::vector<std::unique_ptr<HostCompute>> halves;
    std::vector<MoeExpertCompute*> owners;
    for (std::size_t t = 0; t < 2; ++t) {
      auto half = HostCompute::Make({.name = "cpu:" + std::to_string(t),
                                     .weights = experts.weights(),
                                     .runtime = runtime,
                                     .target = TargetId(t)});
      ASSERT_TRUE(half) << half.error().message;
      halves.push_back(std::move(*half));
      owners.push_back(halves.back().get());
    }
    for (const std::size_t num_rows : {1, 50}) {
      const TestBatch batch(shape, num_rows, 3);
      for (const LayerId layer : {LayerId(0), LayerId(1)}) {
        ExpectSameBits(RunBatch(owners, batch.batch(layer), 3),
                       RunBatch(*whole, batch.batch(layer), 2), TypeName(type));
      }
    }
    EXPECT_EQ(halves[0]->num_pairs(0) + halves[1]->num_pairs(0), 2 * 51 * 3u);
    EXPECT_GT(halves[0]->num_pairs(0), 0u);
    EXPECT_GT(halves[1]->num_pairs(0), 0u);
  }
}

// One owner has packed its experts, the other uses the file.
TEST(HostCompute, TwoOwnersGiveTheBitsOfOneWhereverTheirWeightsAre) {
  TestExpertShape shape = ShapeOfType(GGML_TYPE_Q4_K);
  shape.num_layers = 2;
  shape.down_type = GGML_TYPE_F16;
  const TestExperts experts(shape);
  const auto runtime = SplitAtRandom(shape, 2);
  std::vector<std::uint8_t> owned(2 * shape.num_experts);
  for (std::size_t l = 0; l < 2; ++l) {
    for (const ExpertId e : runtime->experts(LayerId(l), TargetId(0))) {
      owned[l * shape.num_experts + e.index()] = 1;
    }
  }
  auto packed = PackedExperts::Make({.weights = experts.weights().get(), .owned = owned});
  ASSERT_TRUE(packed) << packed.error().message;
  auto first = HostCompute::Make(
      {.weights = experts.weights(), .runtime = runtime, .target = TargetId(0), .packed = *packed});
  auto second =
      HostCompute::Make({.weights = experts.weights(), .runtime = runtime, .target = TargetId(1)});
  ASSERT_TRUE(first && second);
  const auto whole = BothLayouts(experts);
  MoeExpertCompute* const owners[] = {first->get(), second->get()};
  for (const std::size_t num_rows : {1, 4, 50}) {
    const TestBatch batch(shape, num_rows, 3);
    for (const LayerId layer : {LayerId(0), LayerId(1)}) {
      const std::vector<float> expected = RunBatch(*whole[0], batch.batch(layer), 2);
      ExpectSameBits(RunBatch(*whole[1], batch.batch(layer), 2), expected, "packed");
      ExpectSameBits(RunBatch(owners, batch.batch(layer), 3), expected, "two owners");
      EXPECT_LE(Nmse(expected, Reference(experts, batch.batch(layer))), 1e-3);
    }
  }
}

TEST(HostCompute, AnotherPlanTakesEffectBetweenBatches) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_F32));
  auto host = HostCompute::Make(
      {.weights = experts.weights(), .runtime = SplitAs(experts.shape(), {1, 1, 1, 1, 1, 0})});
  ASSERT_TRUE(host) << host.error().message;
  TestBatch batch(experts.shape(), 1, 2);
  batch.ids = {2, 5};
  RunBatch(**host, batch.batch());
  EXPECT_EQ((*host)->part(0).pairs[0], nullptr);
  EXPECT_NE((*host)->part(0).pairs[1], nullptr);
  (*host)->SetRuntime(SplitAs(experts.shape(), {1, 1, 0, 1, 1, 1}));
  RunBatch(**host, batch.batch());
  EXPECT_NE((*host)->part(0).pairs[0], nullptr);
  EXPECT_EQ((*host)->part(0).pairs[1], nullptr);
  EXPECT_EQ((*host)->num_pairs(0), 2u);
}

TEST(HostCompute, NanAndInfinityStayInTheirRows) {
  for (const int type : {GGML_TYPE_Q4_K, GGML_TYPE_Q8_0, GGML_TYPE_F32, GGML_TYPE_F16}) {
    const TestExperts experts(ShapeOfType(type));
    for (const auto& host : BothLayouts(experts)) {
      TestBatch batch(experts.shape(), 40, 3);
      const std::vector<float> expected = RunBatch(*host, batch.batch(), 2);
      const std::size_t n_embd = experts.shape().n_embd;
      std::fill_n(batch.rows.begin() + 5 * 512, n_embd, NAN);
      batch.rows[17 * n_embd + 3] = INFINITY;
      const std::vector<float> out = RunBatch(*host, batch.batch(), 2);
      for (std::size_t row = 0; row < batch.num_rows(); ++row) {
        if (row == 5 || row == 17) continue;
        ExpectSameBits({out.data() + row * n_embd, n_embd},
                       {expected.data() + row * n_embd, n_embd},
                       TypeName(type) + " row " + std::to_string(row));
      }
      if (type == GGML_TYPE_F32) {
        EXPECT_TRUE(std::isnan(out[5 * n_embd]));
      }
    }
  }
}

TEST(HostCompute, OneExpertTakesEveryPairOfABatch) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q4_K));
  TestBatch batch(experts.shape(), 512, 1);
  std::ranges::fill(batch.ids, 4);
  for (const auto& host : BothLayouts(experts)) {
    const std::vector<float> out = RunBatch(*host, batch.batch(), 3);
    const std::size_t n_embd = experts.shape().n_embd;
    for (const std::size_t row : {0, 31, 32, 95, 96, 511}) {
      ExpectSameBits(RunBatch(*host, batch.One(row), 2), {out.data() + row * n_embd, n_embd},
                     "row " + std::to_string(row));
    }
  }
}

TEST(HostCompute, ComputesNothingOfABatchWithoutRowsOrOwnedPairs) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  auto host = HostCompute::Make(
      {.weights = experts.weights(), .runtime = SplitAs(experts.shape(), {1, 1, 1, 1, 1, 0})});
  ASSERT_TRUE(host) << host.error().message;
  const TestBatch none(experts.shape(), 0, 3);
  EXPECT_TRUE(RunBatch(**host, none.batch(), 2).empty());
  TestBatch others(experts.shape(), 4, 2);
  for (std::size_t i = 0; i < others.ids.size(); ++i) others.ids[i] = static_cast<int>(i % 5);
  for (const float value : RunBatch(**host, others.batch(), 2)) EXPECT_EQ(value, 0.0f);
  EXPECT_EQ((*host)->num_pairs(0), 0u);
}

TEST(HostCompute, RefusesABatchThatDoesNotFitTheModel) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_F32));
  const auto host = MakeHost(experts);
  const TestBatch batch(experts.shape(), 1, 1);
  ExpertBatch narrow = batch.batch();
  narrow.n_embd = 256;
  for (const ExpertBatch& wrong : {narrow, batch.batch(LayerId(1))}) {
    const auto begun = host->Begin(wrong);
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().kind, base::ErrorKind::kInternal);
  }
}

TEST(HostCompute, RefusesWeightsThatItCannotMultiply) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  const auto refusal = [&](const auto& change) {
    auto weights = std::make_shared<ExpertWeights>(*experts.weights());
    change(weights->layers[0]);
    const auto host = HostCompute::Make({.weights = weights});
    return host ? base::Error{} : host.error();
  };
  const base::Error type = refusal([](LayerWeights& l) { l.down.type = GGML_TYPE_I32; });
  EXPECT_EQ(type.kind, base::ErrorKind::kUnsupported);
  EXPECT_NE(type.message.find("blk.0.down"), std::string::npos) << type.message;
  // Blocks of 256 do not divide rows of 320.
  const base::Error blocks = refusal([](LayerWeights& l) {
    l.gate.num_rows = l.up->num_rows = l.down.row_width = 320;
    l.down.type = GGML_TYPE_Q4_K;
  });
  EXPECT_EQ(blocks.kind, base::ErrorKind::kUnsupported);
  EXPECT_NE(blocks.message.find("320"), std::string::npos) << blocks.message;
  const base::Error rows = refusal([](LayerWeights& l) { l.up->num_rows = 255; });
  EXPECT_EQ(rows.kind, base::ErrorKind::kCorruptModel);
  EXPECT_NE(rows.message.find("blk.0.up"), std::string::npos) << rows.message;
  const base::Error scales = refusal([](LayerWeights& l) { l.gate.scales = {1, 2}; });
  EXPECT_EQ(scales.kind, base::ErrorKind::kCorruptModel);
  EXPECT_NE(scales.message.find("2 scales"), std::string::npos) << scales.message;
}

}  // namespace
}  // namespace moe
