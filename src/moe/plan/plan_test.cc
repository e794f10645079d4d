#include "moe/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;
using base::ErrorKind;
using ::testing::HasSubstr;

PlanRequest Request(const ModelShape& shape, const Hotness& hotness,
                    std::vector<PlanTarget> targets) {
  return {.shape = &shape, .hotness = &hotness, .targets = std::move(targets)};
}

TEST(PlanTest, CountsUnitsBytesAndShareOfEachTarget) {
  const ModelShape shape = TestShape({10, 20}, 4);
  const Hotness hotness = Hotness::FromCounts(shape, {{7, 1, 1, 1}, {0, 0, 0, 0}});
  const auto plan = ExpertSplitPlan::Make(
      Request(shape, hotness, {{"cuda:0", Bytes(30)}, {"hip:0", Bytes(0)}, {"cpu", {}}}));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->Summary(), "cuda:0=2|hip:0=0|cpu=6");
  EXPECT_EQ(plan->owner(LayerId(0), ExpertId(0)), TargetId(0));
  EXPECT_EQ(plan->owner(LayerId(1), ExpertId(0)), TargetId(0));
  EXPECT_EQ(plan->bytes(TargetId(0)), Bytes(30));
  EXPECT_EQ(plan->bytes(TargetId(1)), Bytes(0));
  EXPECT_EQ(plan->bytes(TargetId(2)), Bytes(90));
  EXPECT_DOUBLE_EQ(plan->expected_share(TargetId(0)), (0.7 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(plan->expected_share(TargetId(1)), 0);
  EXPECT_DOUBLE_EQ(plan->expected_share(TargetId(2)), (0.3 + 0.75) / 2);
}

TEST(PlanTest, FingerprintIsTheSameInEveryProcess) {
  const ModelShape shape = TestShape({10, 20, 10}, 5);
  const Hotness uniform = Hotness::Uniform(shape);
  const auto plan = ExpertSplitPlan::Make(
      Request(shape, uniform, {{"cuda:0", Bytes(70)}, {"vulkan:1", Bytes(55)}, {"cpu", {}}}));
  ASSERT_TRUE(plan) << plan.error().message;
  // Recorded once; a change means that plans of earlier versions are no longer recognised.
  EXPECT_EQ(plan->FingerprintText(), "2144c2d54944a32c");
}

TEST(PlanTest, FingerprintDependsOnModelTargetNamesAndOwnersAlone) {
  const ModelShape shape = TestShape({10, 10}, 2);
  const Hotness uniform = Hotness::Uniform(shape);
  const auto fingerprint = [&](const ModelShape& of, std::vector<PlanTarget> targets,
                               std::vector<std::uint8_t> owners) {
    auto plan = ExpertSplitPlan::FromOwners(of, uniform, std::move(targets), std::move(owners));
    EXPECT_TRUE(plan);
    return plan->fingerprint();
  };
  const auto first = fingerprint(shape, {{"a", {}}, {"b", {}}}, {0, 1, 0, 1});
  EXPECT_EQ(first, fingerprint(shape, {{"a", Bytes(99)}, {"b", {}}}, {0, 1, 0, 1}));
  EXPECT_NE(first, fingerprint(shape, {{"a", {}}, {"c", {}}}, {0, 1, 0, 1}));
  EXPECT_NE(first, fingerprint(shape, {{"a", {}}, {"b", {}}}, {0, 1, 1, 0}));
  ModelShape other = shape;
  other.identity.directory_hash += 1;
  EXPECT_NE(first, fingerprint(other, {{"a", {}}, {"b", {}}}, {0, 1, 0, 1}));
}

TEST(PlanTest, TooLittleCapacitySaysWhoTakesHowMuchAndWhatIsMissing) {
  const ModelShape shape = TestShape({100}, 10);
  const Hotness uniform = Hotness::Uniform(shape);
  const auto plan = ExpertSplitPlan::Make(
      Request(shape, uniform, {{"cuda:0", Bytes(450)}, {"cuda:1", Bytes(0)}, {"cpu", Bytes(300)}}));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, ErrorKind::kCapacity);
  EXPECT_EQ(plan.error().message,
            "not enough capacity for 1000 bytes of experts: cuda:0 would take 400 bytes (capacity "
            "450), cuda:1 would take 0 bytes (capacity 0), cpu would take 300 bytes (capacity "
            "300); 300 bytes (300 B) are missing: raise a capacity or add a target such as cpu");
}

TEST(PlanTest, RefusesOwnersThatTheVerifierRefuses) {
  const ModelShape shape = TestShape({10}, 2);
  const auto plan =
      ExpertSplitPlan::FromOwners(shape, Hotness::Uniform(shape), {{"cpu", Bytes(10)}}, {0, 0});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, ErrorKind::kCorruptModel);
}

TEST(PlanTest, RefusesNoTargetTooManyTargetsAndShapesWithoutUnits) {
  const ModelShape shape = TestShape({10}, 2);
  const Hotness uniform = Hotness::Uniform(shape);
  EXPECT_FALSE(ExpertSplitPlan::Make(Request(shape, uniform, {})));
  std::vector<PlanTarget> targets(256, {"x", Bytes(0)});
  EXPECT_FALSE(ExpertSplitPlan::Make(Request(shape, uniform, targets)));
  targets.pop_back();
  targets.back() = {"cpu", {}};
  const auto plan = ExpertSplitPlan::Make(Request(shape, uniform, targets));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->units(TargetId(254)), 2u);
  const ModelShape empty = TestShape({}, 2);
  const auto nothing = ExpertSplitPlan::Make(Request(empty, uniform, {{"cpu", {}}}));
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().kind, ErrorKind::kCorruptModel);
}

TEST(PlanTest, PolicyNamesRoundTrip) {
  for (const PlanPolicy policy : kPlanPolicies) {
    const auto parsed = ParsePlanPolicy(PlanPolicyName(policy));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, policy);
  }
  const auto unknown = ParsePlanPolicy("fastest");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(unknown.error().message, HasSubstr("'fastest'"));
  EXPECT_THAT(unknown.error().message, HasSubstr("use ordered, balanced or layers"));
}

TEST(HotnessTest, SharesOfALayerSumToOneAndUnseenLayersAreUniform) {
  const ModelShape shape = TestShape({10, 10}, 4);
  const Hotness hotness = Hotness::FromCounts(shape, {{6, 0, 3, 1}, {0, 0, 0, 0}});
  EXPECT_FALSE(hotness.uniform());
  EXPECT_DOUBLE_EQ(hotness.share(LayerId(0), ExpertId(0)), 0.6);
  EXPECT_DOUBLE_EQ(hotness.share(LayerId(0), ExpertId(1)), 0.0);
  EXPECT_DOUBLE_EQ(hotness.share(LayerId(1), ExpertId(3)), 0.25);
  EXPECT_TRUE(Hotness::FromCounts(shape, {{0, 0, 0, 0}, {0, 0, 0, 0}}).uniform());
}

TEST(HotnessTest, HugeCountsDoNotWrap) {
  const ModelShape shape = TestShape({10}, 2);
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  EXPECT_DOUBLE_EQ(Hotness::FromCounts(shape, {{huge, huge}}).share(LayerId(0), ExpertId(1)), 0.5);
}

}  // namespace
}  // namespace moe
