#include "moe/plan/policy_balanced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "moe/plan/cost_model.h"
#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;

std::uint64_t Below(std::mt19937_64& random, std::uint64_t bound) { return random() % bound; }

// Between 1 and `most`, low values as likely as high ones on a logarithmic scale.
double Scale(std::mt19937_64& random, double most) {
  return std::pow(most, static_cast<double>(Below(random, 1001)) / 1000);
}

struct Case {
  ModelShape shape;
  Hotness hotness;
  std::vector<PlanTarget> targets;
  CostModel costs;
  bool layer_floor = true;

  PlanRequest Request(PlanPolicy policy) const {
    return {.shape = &shape,
            .hotness = &hotness,
            .targets = targets,
            .policy = policy,
            .layer_floor = layer_floor,
            .costs = &costs};
  }
  double Cost(std::span<const std::uint8_t> owners) const {
    return ExpectSeconds(shape, hotness, owners, costs).Weighted(costs);
  }
};

struct Size {
  std::uint64_t layers, experts, targets;
};

// Speeds within a factor of 30, fixed costs from none to as much as the work itself, capacities
// from too tight to plenty.
Case RandomCase(std::uint64_t seed, Size size) {
  std::mt19937_64 random(seed);
  Case c;
  std::vector<std::uint64_t> unit_bytes(size.layers, 1000);
  if (Below(random, 2) == 0) {
    for (std::uint64_t& bytes : unit_bytes) bytes += Below(random, 500);
  }
  const auto num_used =
      static_cast<std::uint32_t>(1 + Below(random, std::min<std::uint64_t>(size.experts, 8)));
  c.shape = TestShape(unit_bytes, static_cast<std::uint32_t>(size.experts), num_used);
  c.hotness = Hotness::Uniform(c.shape);
  if (Below(random, 4) > 0) {
    std::vector<std::vector<std::uint64_t>> counts(size.layers);
    for (auto& layer : counts) {
      for (std::uint64_t e = 0; e < size.experts; ++e) {
        layer.push_back(static_cast<std::uint64_t>(Scale(random, 1000)));
      }
    }
    c.hotness = Hotness::FromCounts(c.shape, counts);
  }
  const auto total = static_cast<double>(c.shape.total_bytes().count());
  const double layer_bytes = total / static_cast<double>(size.layers * size.experts);
  c.costs.primary = TargetId(Below(random, size.targets));
  c.costs.prompt_tokens_per_generated = static_cast<double>(Below(random, 4));
  for (std::uint64_t t = 0; t < size.targets; ++t) {
    const double speed = 1e6 * Scale(random, 30);
    const double fixed = Below(random, 3) == 0 ? 0 : layer_bytes / 1e6 * Scale(random, 30) / 30;
    c.costs.speeds.push_back({speed, speed * Scale(random, 20), fixed});
    c.targets.push_back(
        {"t:" + std::to_string(t),
         Bytes(Below(random, static_cast<std::uint64_t>(2.5 * total /
                                                        static_cast<double>(size.targets))))});
  }
  if (Below(random, 3) > 0) c.targets[Below(random, size.targets)].capacity.reset();
  c.layer_floor = Below(random, 2) == 0;
  return c;
}

// Every assignment within the capacities.
class BruteForce {
 public:
  explicit BruteForce(const Case& c) : case_(c), owners_(c.shape.num_units()) {
    for (const PlanTarget& target : c.targets) {
      free_.push_back(target.capacity.value_or(Bytes::Max()).count());
    }
    for (std::size_t l = 0; l < c.shape.layers.size(); ++l) {
      costs_.emplace_back(c.shape, LayerId(l), c.costs);
    }
    loads_.assign(costs_.size(), std::vector<OwnerLoad>(c.targets.size()));
    Place(0, 0);
  }
  // Infinite when nothing fits.
  double best() const { return best_; }

 private:
  // Layers before this unit's are complete and cost `cost`.
  void Place(std::size_t unit, double cost) {
    if (cost >= best_) return;
    if (unit == owners_.size()) {
      best_ = cost;
      return;
    }
    const std::size_t l = unit / case_.shape.num_experts;
    const std::size_t e = unit % case_.shape.num_experts;
    const std::uint64_t bytes = case_.shape.unit_bytes(LayerId(l)).count();
    for (std::size_t t = 0; t < free_.size(); ++t) {
      if (free_[t] < bytes) continue;
      const OwnerLoad before = loads_[l][t];
      free_[t] -= bytes;
      loads_[l][t].share += case_.hotness.share(LayerId(l), ExpertId(e));
      ++loads_[l][t].units;
      const bool complete = e + 1 == case_.shape.num_experts;
      Place(unit + 1, complete ? cost + costs_[l].Seconds(loads_[l]).Weighted(case_.costs) : cost);
      loads_[l][t] = before;
      free_[t] += bytes;
    }
  }

  const Case& case_;
  std::vector<std::uint8_t> owners_;
  std::vector<std::uint64_t> free_;
  std::vector<LayerCost> costs_;
  std::vector<std::vector<OwnerLoad>> loads_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(PolicyBalancedTest, NeverCostsMoreThanOrderedOrLayers) {
  int made = 0, better = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Size size{1 + Below(random, 12), 1 + Below(random, 40), 1 + Below(random, 6)};
    const Case c = RandomCase(seed, size);
    const auto ordered = ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered));
    const auto balanced = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
    ASSERT_EQ(balanced.has_value(), ordered.has_value());
    if (!balanced) {
      EXPECT_EQ(balanced.error().kind, base::ErrorKind::kCapacity);
      continue;
    }
    ++made;
    // Not below by rounding: the very sums that the policy compares.
    EXPECT_LE(c.Cost(balanced->owners()), c.Cost(ordered->owners()));
    if (c.Cost(balanced->owners()) < 0.98 * c.Cost(ordered->owners())) ++better;
    const auto layers = ExpertSplitPlan::Make(c.Request(PlanPolicy::kLayers));
    if (layers) {
      EXPECT_LE(c.Cost(balanced->owners()), c.Cost(layers->owners()));
    }
  }
  EXPECT_GT(made, 60);
  EXPECT_GT(better, made / 2);
}

TEST(PolicyBalancedTest, IsWithinFivePercentOfEverySmallOptimum) {
  int made = 0;
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Size sizes[] = {{2, 4, 3}, {3, 4, 2}, {1, 8, 3}, {2, 6, 2}, {3, 3, 3}, {1, 6, 4}};
    const Case c = RandomCase(seed, sizes[seed % std::size(sizes)]);
    const double best = BruteForce(c).best();
    const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
    if (!plan) continue;  // `ordered` found no room
    ++made;
    const double ratio = c.Cost(plan->owners()) / best;
    EXPECT_GE(ratio, 1 - 1e-9);
    EXPECT_LE(ratio, 1.05);
    sum += ratio;
  }
  EXPECT_GT(made, 80);
  EXPECT_LT(sum / made, 1.002);
}

TEST(PolicyBalancedTest, TwoTargetsOfOneSpeedShareTheTraffic) {
  Case c;
  c.shape = TestShape({1000, 1000, 1000}, 16, 2);
  c.hotness = Hotness::Uniform(c.shape);
  c.targets = {{"cuda:0", std::nullopt}, {"cuda:1", std::nullopt}};
  c.costs = {.speeds = {{1e6, 1e7, 0}, {1e6, 1e7, 0}}, .primary = TargetId(0)};
  const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->units(TargetId(0)), 24u);
  EXPECT_DOUBLE_EQ(plan->expected_share(TargetId(1)), 0.5);
  // `ordered` lets the second one idle.
  EXPECT_EQ(ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered))->units(TargetId(1)), 0u);
}

TEST(PolicyBalancedTest, WhereEveryHandoverIsDearLayersStayWhole) {
  Case c;
  c.shape = TestShape({1000, 1000, 1000, 1000}, 8, 2);
  c.hotness = Hotness::Uniform(c.shape);
  c.targets = {{"cuda:0", Bytes(16'000)}, {"cpu", std::nullopt}};
  c.costs = {.speeds = {{1e6, 1e7, 1}, {1e6, 1e7, 0}}, .primary = TargetId(0)};
  const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
  ASSERT_TRUE(plan);
  for (std::size_t l = 0; l < 4; ++l) {
    const auto owners = plan->owners().subspan(l * 8, 8);
    EXPECT_EQ(std::ranges::count(owners, owners[0]), 8) << "layer " << l;
  }
  EXPECT_EQ(plan->units(TargetId(0)), 16u);
}

TEST(PolicyBalancedTest, TheSameRequestGivesTheSamePlan) {
  const Case c = RandomCase(5, {6, 24, 4});
  const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
  const auto again = ExpertSplitPlan::Make(c.Request(PlanPolicy::kBalanced));
  ASSERT_TRUE(plan && again);
  EXPECT_EQ(plan->fingerprint(), again->fingerprint());
}

TEST(PolicyBalancedTest, WholeLayersAreTriedInEveryOrder) {
  Case c;
  c.shape = TestShape({1000, 1000, 1000, 1000}, 4, 1);
  c.hotness = Hotness::Uniform(c.shape);
  // The slow one first in the list, and room for three layers on the fast one.
  c.targets = {{"cpu", std::nullopt}, {"cuda:0", Bytes(12'000)}};
  c.costs = {.speeds = {{1e5, 1e6, 0}, {1e6, 1e7, 0}}, .primary = TargetId(1)};
  const auto owners = BestLayerOwners(c.Request(PlanPolicy::kLayers));
  ASSERT_TRUE(owners);
  EXPECT_EQ(std::ranges::count(*owners, 1), 12);
  c.targets[0].capacity = Bytes(3'000);
  EXPECT_FALSE(BestLayerOwners(c.Request(PlanPolicy::kLayers)));
}

}  // namespace
}  // namespace moe
