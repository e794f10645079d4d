#include "moe/runtime/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace moe {
namespace {

ExpertSplitPlan RandomPlan(std::size_t num_layers, std::size_t num_experts, std::size_t num_targets,
                           std::mt19937& random) {
  ModelShape shape;
  shape.identity = {.architecture = "fake",
                    .name = "",
                    .quantisation = "",
                    .num_layers = static_cast<std::uint32_t>(num_layers),
                    .num_experts = static_cast<std::uint32_t>(num_experts)};
  shape.num_experts = static_cast<std::uint32_t>(num_experts);
  shape.experts_per_token = 1;
  shape.layers.assign(num_layers, {.unit = {.gate = base::Bytes(3), .up = {}, .down = {}}});
  std::vector<PlanTarget> targets;
  for (std::size_t t = 0; t < num_targets; ++t) {
    targets.push_back({.name = "t" + std::to_string(t), .capacity = std::nullopt});
  }
  std::vector<std::uint8_t> owners(num_layers * num_experts);
  for (std::uint8_t& owner : owners) owner = static_cast<std::uint8_t>(random() % num_targets);
  auto plan = ExpertSplitPlan::FromOwners(shape, Hotness::Uniform(shape), targets, owners);
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  return *plan;
}

// Both directions for every unit of one plan.
void ExpectRoundTrips(const ExpertSplitPlan& plan) {
  const auto runtime = ExpertSplitRuntime::Make(plan);
  ASSERT_EQ(runtime->num_layers(), plan.num_layers());
  ASSERT_EQ(runtime->num_experts(), plan.num_experts());
  ASSERT_EQ(runtime->num_targets(), plan.targets().size());
  std::vector<std::size_t> units(plan.targets().size());
  for (std::size_t l = 0; l < plan.num_layers(); ++l) {
    const LayerId layer(l);
    for (std::size_t e = 0; e < plan.num_experts(); ++e) {
      const ExpertSplitRuntime::Place place = runtime->place(layer, ExpertId(e));
      ASSERT_EQ(place.owner, plan.owner(layer, ExpertId(e)));
      const auto experts = runtime->experts(layer, place.owner);
      ASSERT_LT(place.local.index(), experts.size());
      ASSERT_EQ(experts[place.local.index()], ExpertId(e));
    }
    for (std::size_t t = 0; t < plan.targets().size(); ++t) {
      const auto experts = runtime->experts(layer, TargetId(t));
      ASSERT_EQ(experts.size(), runtime->num_local(layer, TargetId(t)));
      ASSERT_TRUE(std::ranges::is_sorted(experts));
      for (std::size_t i = 0; i < experts.size(); ++i) {
        ASSERT_EQ(runtime->place(layer, experts[i]),
                  (ExpertSplitRuntime::Place{TargetId(t), LocalId(i)}));
      }
      units[t] += experts.size();
    }
  }
  for (std::size_t t = 0; t < units.size(); ++t) EXPECT_EQ(units[t], plan.units(TargetId(t)));
}

TEST(ExpertSplitRuntime, GlobalAndLocalIdsRoundTripForRandomPlans) {
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    const std::size_t num_layers = 1 + random() % 20;
    const std::size_t num_experts = 1 + random() % 64;
    const std::size_t num_targets = 1 + random() % 9;
    SCOPED_TRACE(testing::Message() << num_layers << " layers, " << num_experts << " experts, "
                                    << num_targets << " targets");
    ASSERT_NO_FATAL_FAILURE(
        ExpectRoundTrips(RandomPlan(num_layers, num_experts, num_targets, random)));
  }
}

TEST(ExpertSplitRuntime, GlobalAndLocalIdsRoundTripForTheLargestPlan) {
  std::mt19937 random(2);
  ExpectRoundTrips(RandomPlan(100, 512, 255, random));
}

TEST(ExpertSplitRuntime, CarriesThePlansFingerprintAndItsGeneration) {
  std::mt19937 random(3);
  const ExpertSplitPlan plan = RandomPlan(2, 8, 3, random);
  EXPECT_EQ(ExpertSplitRuntime::Make(plan)->plan_fingerprint(), plan.fingerprint());
  EXPECT_EQ(ExpertSplitRuntime::Make(plan)->generation(), 0u);
  EXPECT_EQ(ExpertSplitRuntime::Make(plan, 7)->generation(), 7u);
}

}  // namespace
}  // namespace moe
