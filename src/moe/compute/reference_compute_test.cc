#include "moe/compute/reference_compute.h"

#include <gtest/gtest.h>

#include <cmath>

#include "moe/compute/fake_family.h"

namespace moe {
namespace {

// One layer, two experts, n_embd 2, n_ff 1, small enough to compute by hand.
class TwoExperts final : public FloatExpertWeights {
 public:
  std::size_t n_ff() const override { return 1; }
  std::span<const float> Gate(LayerId, ExpertId e) const override { return gate_[e.index()]; }
  std::span<const float> Up(LayerId, ExpertId e) const override { return up_[e.index()]; }
  std::span<const float> Down(LayerId, ExpertId e) const override { return down_[e.index()]; }

 private:
  std::vector<float> gate_[2] = {{1, 0}, {0, -1}};
  std::vector<float> up_[2] = {{1, 1}, {2, 0}};
  std::vector<float> down_[2] = {{1, 10}, {-1, 3}};
};

std::shared_ptr<const ExpertSplitRuntime> RuntimeOf(std::vector<std::uint8_t> owners) {
  ModelShape shape;
  shape.identity = {
      .architecture = "fake", .name = "", .quantisation = "", .num_layers = 1, .num_experts = 2};
  shape.num_experts = 2;
  shape.experts_per_token = 2;
  shape.layers = {{.unit = {.gate = base::Bytes(1), .up = {}, .down = {}}}};
  const auto plan = ExpertSplitPlan::FromOwners(
      shape, Hotness::Uniform(shape),
      {{.name = "a", .capacity = std::nullopt}, {.name = "b", .capacity = std::nullopt}},
      std::move(owners));
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  return ExpertSplitRuntime::Make(*plan);
}

constexpr float kRow[] = {2, 3};
constexpr std::int32_t kIds[] = {1, 0};
constexpr float kWeights[] = {0.25f, 0.5f};

ExpertBatch HandBatch() {
  return {
      .num_rows = 1, .num_used = 2, .n_embd = 2, .rows = kRow, .ids = kIds, .weights = kWeights};
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(ReferenceCompute, ComputesTheFormulaOfTheContract) {
  ReferenceCompute compute(std::make_shared<TwoExperts>(), RuntimeOf({0, 0}), TargetId(0));
  ASSERT_TRUE(compute.Begin(HandBatch()).has_value());
  compute.Reduce({});
  ASSERT_TRUE(compute.Finish().has_value());
  const float* const* pairs = compute.part(0).pairs;
  ASSERT_NE(pairs, nullptr);
  // Slot 0 is expert 1: gate -3, up 4; slot 1 is expert 0: gate 2, up 5.
  EXPECT_FLOAT_EQ(pairs[0][0], static_cast<float>(Silu(-3) * 4 * -1));
  EXPECT_FLOAT_EQ(pairs[0][1], static_cast<float>(Silu(-3) * 4 * 3));
  EXPECT_FLOAT_EQ(pairs[1][0], static_cast<float>(Silu(2) * 5));
  EXPECT_FLOAT_EQ(pairs[1][1], static_cast<float>(Silu(2) * 5 * 10));
}

TEST(ReferenceCompute, LeavesPairsOfOtherOwnersAlone) {
  ReferenceCompute compute(std::make_shared<TwoExperts>(), RuntimeOf({1, 0}), TargetId(0));
  ASSERT_TRUE(compute.Begin(HandBatch()).has_value());
  compute.Reduce({});
  ASSERT_TRUE(compute.Finish().has_value());
  EXPECT_NE(compute.part(0).pairs[0], nullptr);
  EXPECT_EQ(compute.part(0).pairs[1], nullptr);
  EXPECT_EQ(compute.num_pairs(0), 1u);
}

TEST(ReferenceCompute, ReturnsAnEmptyPartWhenItOwnsNoPair) {
  for (const PartForm form : {PartForm::kPairs, PartForm::kSums}) {
    ReferenceCompute compute(std::make_shared<TwoExperts>(), RuntimeOf({1, 1}), TargetId(0), form);
    ASSERT_TRUE(compute.Begin(HandBatch()).has_value());
    compute.Reduce({});
    ASSERT_TRUE(compute.Finish().has_value());
    EXPECT_EQ(compute.part(0).form, form);
    EXPECT_EQ(compute.part(0).pairs, nullptr);
    EXPECT_EQ(compute.part(0).sums, nullptr);
  }
}

TEST(ReferenceCompute, ReturnsWeightedSumsOfItsOwnPairs) {
  ReferenceCompute compute(std::make_shared<TwoExperts>(), RuntimeOf({0, 0}), TargetId(0),
                           PartForm::kSums);
  ASSERT_TRUE(compute.Begin(HandBatch()).has_value());
  compute.Reduce({});
  ASSERT_TRUE(compute.Finish().has_value());
  const float* sums = compute.part(0).sums;
  ASSERT_NE(sums, nullptr);
  EXPECT_FLOAT_EQ(sums[0], static_cast<float>(0.25 * Silu(-3) * -4 + 0.5 * Silu(2) * 5));
  EXPECT_FLOAT_EQ(sums[1], static_cast<float>(0.25 * Silu(-3) * 12 + 0.5 * Silu(2) * 50));
}

TEST(ReferenceCompute, DoesNotDependOnTheTeamSizeOrTheOtherRows) {
  const FakeFamily family(3);
  const auto weights = std::shared_ptr<const FloatExpertWeights>(std::shared_ptr<void>(), &family);
  const auto config = ConfigOf("cpu");
  const auto runtime = ExpertSplitRuntime::Make(
      PlanOf(family, config, std::vector<std::uint8_t>(kFakeLayers * kFakeExperts, 0)));
  const FakeBatch batch(LayerId(2), 11, 4);
  ReferenceCompute compute(weights, runtime, TargetId(0));
  const std::vector<float> all = *batch.Run(compute, 1);
  EXPECT_EQ(*batch.Run(compute, 5), all);

  ExpertBatch last = batch.batch();
  last.rows += 10 * kFakeEmbd;
  last.ids += 10 * kFakeUsed;
  last.weights += 10 * kFakeUsed;
  last.num_rows = 1;
  ASSERT_TRUE(compute.Begin(last).has_value());
  compute.Reduce({});
  std::vector<float> out(kFakeEmbd);
  const ExpertPart part = compute.part(0);
  CombineParts(last, {&part, 1}, {}, out.data());
  EXPECT_EQ(out, std::vector<float>(all.end() - kFakeEmbd, all.end()));
}

}  // namespace
}  // namespace moe
