// What must hold of every plan, over random shapes, capacities and profiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "moe/plan/plan.h"
#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;

struct Case {
  ModelShape shape;
  Hotness hotness;
  std::vector<PlanTarget> targets;
  bool layer_floor = false;

  PlanRequest Request(PlanPolicy policy) const {
    return {.shape = &shape,
            .hotness = &hotness,
            .targets = targets,
            .policy = policy,
            .layer_floor = layer_floor};
  }
  std::uint64_t LargestUnit() const {
    std::uint64_t largest = 0;
    for (const LayerShape& layer : shape.layers) {
      largest = std::max(largest, layer.unit.total().count());
    }
    return largest;
  }
  bool HasUnbounded() const {
    return std::ranges::any_of(targets, [](const PlanTarget& t) { return !t.capacity; });
  }
  std::uint64_t AllCapacity() const {
    std::uint64_t sum = 0;
    for (const PlanTarget& target : targets) sum += target.capacity.value_or(Bytes()).count();
    return sum;
  }
  // With this much room the greedy order alone finds every unit a place: a bounded target that it
  // leaves unfilled has less than one unit free.
  bool Roomy() const {
    return HasUnbounded() ||
           AllCapacity() >= shape.total_bytes().count() + targets.size() * LargestUnit();
  }
};

std::uint64_t Below(std::mt19937_64& random, std::uint64_t bound) { return random() % bound; }

Case RandomCase(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Case c;
  const bool large = Below(random, 8) == 0;
  const std::size_t num_layers = 1 + Below(random, large ? 100 : 20);
  const auto num_experts = static_cast<std::uint32_t>(1 + Below(random, large ? 512 : 48));
  const std::vector<std::uint64_t> sizes = {1000, 1000 + Below(random, 500),
                                            1 + Below(random, 3000)};
  const std::uint64_t num_sizes = 1 + Below(random, 3);
  std::vector<std::uint64_t> unit_bytes;
  for (std::size_t i = 0; i < num_layers; ++i)
    unit_bytes.push_back(sizes[Below(random, num_sizes)]);
  c.shape = TestShape(unit_bytes, num_experts,
                      static_cast<std::uint32_t>(1 + Below(random, num_experts)));
  c.hotness = Hotness::Uniform(c.shape);
  if (Below(random, 2) == 0) {
    std::vector<std::vector<std::uint64_t>> counts(num_layers);
    for (auto& layer : counts) {
      const std::uint64_t steepness = 1 + Below(random, 6);
      for (std::size_t e = 0; e < num_experts; ++e) {
        layer.push_back(Below(random, 1 + Below(random, 10) * Below(random, 1 << steepness)));
      }
    }
    c.hotness = Hotness::FromCounts(c.shape, counts);
  }
  const std::uint64_t total = c.shape.total_bytes().count();
  const std::size_t num_targets = 1 + Below(random, 9);
  for (std::size_t i = 0; i < num_targets; ++i) {
    PlanTarget target{"t:" + std::to_string(i), Bytes(Below(random, 1 + 3 * total / num_targets))};
    if (Below(random, 5) == 0) target.capacity = Bytes(0);
    if (Below(random, 12) == 0 || (i + 1 == num_targets && Below(random, 3) > 0)) {
      target.capacity.reset();
    }
    c.targets.push_back(target);
  }
  c.layer_floor = Below(random, 2) == 0;
  return c;
}

// [num_layers][num_targets]
std::vector<std::vector<std::uint32_t>> CountUnits(const Case& c, const ExpertSplitPlan& plan) {
  std::vector<std::vector<std::uint32_t>> counts(c.shape.layers.size(),
                                                 std::vector<std::uint32_t>(c.targets.size(), 0));
  for (std::size_t l = 0; l < counts.size(); ++l) {
    for (std::size_t e = 0; e < c.shape.num_experts; ++e) {
      ++counts[l][plan.owner(LayerId(l), ExpertId(e)).index()];
    }
  }
  return counts;
}

void ExpectSound(const Case& c, const ExpertSplitPlan& plan) {
  ASSERT_EQ(plan.owners().size(), c.shape.num_units());
  const auto counts = CountUnits(c, plan);
  Bytes all_bytes;
  double all_share = 0;
  bool after_unbounded = false;
  for (std::size_t t = 0; t < c.targets.size(); ++t) {
    Bytes bytes;
    std::size_t units = 0;
    for (std::size_t l = 0; l < counts.size(); ++l) {
      bytes += c.shape.unit_bytes(LayerId(l)) * counts[l][t];
      units += counts[l][t];
    }
    EXPECT_EQ(plan.bytes(TargetId(t)), bytes);
    EXPECT_EQ(plan.units(TargetId(t)), units);
    if (c.targets[t].capacity) {
      EXPECT_LE(bytes, *c.targets[t].capacity);
    }
    if (after_unbounded) {
      EXPECT_EQ(units, 0u) << "target " << t << " follows an unbounded one";
    }
    after_unbounded = after_unbounded || !c.targets[t].capacity;
    all_bytes += bytes;
    all_share += plan.expected_share(TargetId(t));
  }
  EXPECT_EQ(all_bytes, c.shape.total_bytes());
  EXPECT_NEAR(all_share, 1.0, 1e-9);
}

void ExpectEven(const Case& c, const ExpertSplitPlan& plan) {
  auto counts = CountUnits(c, plan);
  for (std::size_t t = 0; t < c.targets.size(); ++t) {
    for (const bool prefix : {false, true}) {
      std::uint32_t fewest = ~0u, most = 0;
      for (auto& layer : counts) {
        if (prefix && t > 0) layer[t] += layer[t - 1];
        fewest = std::min(fewest, layer[t]);
        most = std::max(most, layer[t]);
      }
      EXPECT_LE(most - fewest, 1u) << (prefix ? "targets up to " : "target ") << t;
    }
  }
}

// Every bounded target before the last that owns anything is full but for less than one unit.
void ExpectFilled(const Case& c, const ExpertSplitPlan& plan) {
  std::size_t last = 0;
  for (std::size_t t = 0; t < c.targets.size(); ++t) {
    if (plan.units(TargetId(t)) > 0) last = t;
  }
  for (std::size_t t = 0; t < last; ++t) {
    ASSERT_TRUE(c.targets[t].capacity);
    EXPECT_LT((*c.targets[t].capacity - plan.bytes(TargetId(t))).count(), c.LargestUnit());
  }
}

// A hotter unit lies behind a colder one only where it is larger, so was passed over. Compares, for
// each size, the coldest on a target with the hottest behind it of that size or less.
void ExpectHottestFirst(const Case& c, const ExpertSplitPlan& plan) {
  std::vector<std::map<std::uint64_t, double>> coldest(c.targets.size()), hottest(c.targets.size());
  for (std::size_t l = 0; l < c.shape.layers.size(); ++l) {
    const std::uint64_t size = c.shape.unit_bytes(LayerId(l)).count();
    for (std::size_t e = 0; e < c.shape.num_experts; ++e) {
      const std::size_t t = plan.owner(LayerId(l), ExpertId(e)).index();
      const double share = c.hotness.share(LayerId(l), ExpertId(e));
      auto [cold, is_first] = coldest[t].try_emplace(size, share);
      cold->second = std::min(cold->second, share);
      auto [hot, is_new] = hottest[t].try_emplace(size, share);
      hot->second = std::max(hot->second, share);
    }
  }
  for (std::size_t front = 0; front < c.targets.size(); ++front) {
    for (std::size_t back = front + 1; back < c.targets.size(); ++back) {
      for (const auto& [cold_size, cold_share] : coldest[front]) {
        for (const auto& [hot_size, hot_share] : hottest[back]) {
          if (hot_size <= cold_size) {
            EXPECT_LE(hot_share, cold_share) << "targets " << front << " and " << back;
          }
        }
      }
    }
  }
}

void ExpectFloor(const Case& c, const ExpertSplitPlan& plan) {
  const std::uint32_t k = c.shape.experts_per_token;
  std::uint64_t need = 0;
  for (const LayerShape& layer : c.shape.layers) need += k * layer.unit.total().count();
  if (c.targets[0].capacity && c.targets[0].capacity->count() < need) return;
  for (std::size_t l = 0; l < c.shape.layers.size(); ++l) {
    std::vector<double> owned, all;
    for (std::size_t e = 0; e < c.shape.num_experts; ++e) {
      all.push_back(c.hotness.share(LayerId(l), ExpertId(e)));
      if (plan.owner(LayerId(l), ExpertId(e)) == TargetId(0)) owned.push_back(all.back());
    }
    std::ranges::sort(all, std::ranges::greater{});
    std::ranges::sort(owned, std::ranges::greater{});
    ASSERT_GE(owned.size(), k) << "layer " << l;
    EXPECT_TRUE(std::equal(all.begin(), all.begin() + k, owned.begin())) << "layer " << l;
  }
}

TEST(PlanPropertyTest, OrderedPlansHoldWhatThePolicyPromises) {
  int made = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case c = RandomCase(seed);
    const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered));
    if (!plan) {
      ++refused;
      EXPECT_EQ(plan.error().kind, base::ErrorKind::kCapacity);
      EXPECT_FALSE(c.Roomy()) << plan.error().message;
      continue;
    }
    ++made;
    ExpectSound(c, *plan);
    if (c.Roomy()) {
      ExpectFilled(c, *plan);
      if (c.hotness.uniform()) ExpectEven(c, *plan);
      if (!c.hotness.uniform() && !c.layer_floor) ExpectHottestFirst(c, *plan);
      if (!c.hotness.uniform() && c.layer_floor) ExpectFloor(c, *plan);
    }
    const auto again = ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered));
    ASSERT_TRUE(again);
    EXPECT_TRUE(std::ranges::equal(plan->owners(), again->owners()));
    EXPECT_EQ(plan->fingerprint(), again->fingerprint());
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(made, 300);
  EXPECT_GT(refused, 10);
}

TEST(PlanPropertyTest, LayerPlansAreContiguousSpansInListOrder) {
  int made = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case c = RandomCase(seed);
    const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kLayers));
    if (!plan) {
      ++refused;
      EXPECT_EQ(plan.error().kind, base::ErrorKind::kCapacity);
      EXPECT_FALSE(c.HasUnbounded());
      continue;
    }
    ++made;
    ExpectSound(c, *plan);
    EXPECT_TRUE(std::ranges::is_sorted(plan->owners()));
    for (std::size_t l = 0; l < c.shape.layers.size(); ++l) {
      const auto owners = plan->owners().subspan(l * c.shape.num_experts, c.shape.num_experts);
      EXPECT_EQ(owners.front(), owners.back()) << "layer " << l << " is cut";
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(made, 150);
  EXPECT_GT(refused, 5);
}

TEST(PlanPropertyTest, UnitsOfOneSizeFitExactlyWhenTheCapacitiesHoldThatMany) {
  int fitting = 0, failing = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Case c;
    const std::uint64_t size = 1 + Below(random, 100);
    c.shape = TestShape(std::vector<std::uint64_t>(1 + Below(random, 12), size),
                        static_cast<std::uint32_t>(1 + Below(random, 20)));
    c.hotness = Hotness::Uniform(c.shape);
    // Within a few units of an exact fit, with slack that is never a whole unit.
    std::uint64_t left = c.shape.num_units() + Below(random, 3) - Below(random, 2);
    const std::size_t num_targets = 1 + Below(random, 5);
    std::uint64_t held = 0;
    for (std::size_t t = 0; t < num_targets; ++t) {
      const std::uint64_t units = t + 1 == num_targets ? left : Below(random, left + 1);
      left -= units;
      held += units;
      c.targets.push_back({"t:" + std::to_string(t), Bytes(units * size + Below(random, size))});
    }
    const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered));
    EXPECT_EQ(plan.has_value(), held >= c.shape.num_units());
    (plan ? fitting : failing) += 1;
    if (plan) {
      ExpectSound(c, *plan);
      ExpectEven(c, *plan);
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(failing, 20);
}

TEST(PlanPropertyTest, CapacitiesAreUsedToNinetyFivePercentWhereUnitsAreSmallEnough) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> unit_bytes;
    for (std::uint64_t l = 0, n = 2 + Below(random, 60); l < n; ++l) {
      unit_bytes.push_back(500 + Below(random, 501));
    }
    Case c;
    c.shape = TestShape(unit_bytes, static_cast<std::uint32_t>(64 + Below(random, 64)));
    c.hotness = Hotness::Uniform(c.shape);
    for (int t = 0; t < 2; ++t) {
      // At least twenty of the largest units.
      c.targets.push_back({"t:" + std::to_string(t), Bytes(20'000 + Below(random, 20'000))});
    }
    c.targets.push_back({"cpu", std::nullopt});
    const auto plan = ExpertSplitPlan::Make(c.Request(PlanPolicy::kOrdered));
    ASSERT_TRUE(plan);
    if (plan->units(TargetId(2)) == 0) continue;
    for (const TargetId target : {TargetId(0), TargetId(1)}) {
      EXPECT_GE(static_cast<double>(plan->bytes(target).count()),
                0.95 * static_cast<double>(c.targets[target.index()].capacity->count()));
    }
  }
}

}  // namespace
}  // namespace moe
