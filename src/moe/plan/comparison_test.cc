#include "moe/plan/comparison.h"

#include <gtest/gtest.h>

#include <iterator>
#include <tuple>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;

class ComparisonTest : public ::testing::Test {
 protected:
  PlanRequest Request() const {
    return {.shape = &shape_, .hotness = &hotness_, .targets = targets_, .costs = &costs_};
  }

  const ModelShape shape_ = TestShape({1000, 1000, 1000, 1000}, 4, 1);
  const Hotness hotness_ = Hotness::FromCounts(
      shape_, {{90, 6, 2, 2}, {40, 30, 20, 10}, {70, 20, 9, 1}, {25, 25, 25, 25}});
  std::vector<PlanTarget> targets_ = {{"cpu", std::nullopt}, {"cuda:0", Bytes(8'000)}};
  const CostModel costs_{.speeds = {{1e5, 1e6, 0}, {1e6, 2e7, 1e-5}}, .primary = TargetId(0)};
};

TEST_F(ComparisonTest, EveryPolicyOnTheSameBytes) {
  const auto outcomes = ComparePolicies(Request());
  ASSERT_TRUE(outcomes) << outcomes.error().message;
  ASSERT_EQ(outcomes->size(), std::size(kPlanPolicies));
  for (std::size_t i = 0; i < outcomes->size(); ++i) {
    const PolicyOutcome& outcome = (*outcomes)[i];
    EXPECT_EQ(outcome.policy, kPlanPolicies[i]);
    ASSERT_TRUE(outcome.plan);
    EXPECT_LE(outcome.plan->bytes(TargetId(1)), Bytes(8'000));
    const ExpectedSeconds again = ExpectSeconds(shape_, hotness_, outcome.plan->owners(), costs_);
    EXPECT_EQ(outcome.seconds.decode, again.decode);
    EXPECT_EQ(outcome.seconds.prompt, again.prompt);
  }
  const auto& [ordered, balanced, layers] =
      std::tie((*outcomes)[0], (*outcomes)[1], (*outcomes)[2]);
  // The list begins with the slow target, which takes everything under `ordered` alone.
  EXPECT_EQ(ordered.plan->units(TargetId(0)), 16u);
  EXPECT_EQ(layers.plan->units(TargetId(1)), 8u);
  EXPECT_LT(layers.seconds.decode, 0.7 * ordered.seconds.decode);
  EXPECT_LT(balanced.seconds.decode, 0.8 * layers.seconds.decode);
  EXPECT_GT(balanced.plan->expected_share(TargetId(1)), 0.7);
}

TEST_F(ComparisonTest, WholeLayersMayFitNowhere) {
  targets_ = {{"cpu", Bytes(14'000)}, {"cuda:0", Bytes(3'000)}};
  const auto outcomes = ComparePolicies(Request());
  ASSERT_TRUE(outcomes) << outcomes.error().message;
  EXPECT_TRUE((*outcomes)[1].plan);
  EXPECT_FALSE((*outcomes)[2].plan);
  EXPECT_EQ((*outcomes)[2].seconds.decode, 0);
}

TEST_F(ComparisonTest, TooLittleCapacityIsAnError) {
  targets_ = {{"cpu", Bytes(4'000)}, {"cuda:0", Bytes(3'000)}};
  const auto outcomes = ComparePolicies(Request());
  ASSERT_FALSE(outcomes);
  EXPECT_EQ(outcomes.error().kind, base::ErrorKind::kCapacity);
}

}  // namespace
}  // namespace moe
