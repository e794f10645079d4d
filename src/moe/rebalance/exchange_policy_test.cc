#include "moe/rebalance/exchange_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One layer of four experts of 100 bytes, of which a token uses one.
class ExchangePolicyTest : public ::testing::Test {
 protected:
  void Count(std::vector<std::vector<std::uint64_t>> counts) {
    std::uint64_t tokens = 0;
    for (const std::uint64_t count : counts.front()) tokens += count;
    traffic_.emplace(shape_, 1e9);
    traffic_->Observe(*RoutingProfile::FromCounts(
        shape_.identity, "requests", tokens / shape_.experts_per_token, std::move(counts)));
  }
  std::vector<UnitExchange> Choose() {
    return ChooseExchanges({.shape = &shape_,
                            .units = &units_,
                            .traffic = &*traffic_,
                            .costs = costs_ ? &*costs_ : nullptr,
                            .rules = rules_,
                            .budget = budget_});
  }
  void Apply(const std::vector<UnitExchange>& exchanges) {
    for (const auto& [layer, first, second] : exchanges) {
      std::uint8_t* owners = units_.owners.data() + layer.index() * shape_.num_experts;
      ASSERT_NE(owners[first.index()], owners[second.index()]);
      std::swap(owners[first.index()], owners[second.index()]);
    }
  }
  // Of all traffic, on the first target.
  double FirstShare() const {
    double share = 0;
    for (std::size_t i = 0; i < units_.owners.size(); ++i) {
      if (units_.owners[i] != 0) continue;
      share += traffic_->share(LayerId(i / shape_.num_experts), ExpertId(i % shape_.num_experts));
    }
    return share / static_cast<double>(shape_.layers.size());
  }

  ModelShape shape_ = TestShape({100}, 4);
  MovableUnits units_{
      .owners = {0, 0, 1, 1}, .targets = {Movable::kHere, Movable::kHere}, .fixed_layers = {}};
  std::optional<TrafficWindow> traffic_;
  std::optional<CostModel> costs_;
  RebalanceRules rules_;
  base::Bytes budget_ = base::Bytes::GiB(1);
};

UnitExchange Pair(std::size_t layer, std::size_t first, std::size_t second) {
  return {LayerId(layer), ExpertId(first), ExpertId(second)};
}

TEST_F(ExchangePolicyTest, TheHotterExpertGoesToTheEarlierTarget) {
  Count({{300, 10, 400, 200}});
  EXPECT_THAT(Choose(), ElementsAre(Pair(0, 2, 1)));
  Apply(Choose());
  EXPECT_THAT(Choose(), IsEmpty()) << "and there it stays";
}

TEST_F(ExchangePolicyTest, WhatIsWhereItShouldBeStays) {
  Count({{400, 300, 10, 200}});
  EXPECT_THAT(Choose(), IsEmpty());
}

TEST_F(ExchangePolicyTest, SmallDifferencesAreNotFollowed) {
  Count({{100'000, 100'000, 110'000, 1}});
  EXPECT_THAT(Choose(), IsEmpty()) << "10 % is within the hysteresis";
  Count({{100'000, 100'000, 130'000, 1}});
  EXPECT_THAT(Choose(), SizeIs(1));
}

TEST_F(ExchangePolicyTest, ChanceIsNotFollowed) {
  Count({{50, 50, 64, 1}});
  EXPECT_THAT(Choose(), IsEmpty()) << "14 more of 114 is less than three deviations";
  Count({{50, 50, 90, 1}});
  EXPECT_THAT(Choose(), SizeIs(1));
}

TEST_F(ExchangePolicyTest, FewTokensMoveNothing) {
  Count({{0, 0, 100, 0}});
  EXPECT_THAT(Choose(), IsEmpty());
  Count({{0, 0, 200, 0}});
  EXPECT_THAT(Choose(), SizeIs(1));
}

TEST_F(ExchangePolicyTest, AMoveThatDoesNotPayBackWithinTheHorizonIsNotMade) {
  // A share of 1 % more: 82 uses in 8192 tokens.
  Count({{100'000, 1'000, 2'000, 0}});
  EXPECT_THAT(Choose(), SizeIs(1));
  rules_.horizon_tokens = 1000;  // 10 uses
  EXPECT_THAT(Choose(), IsEmpty());
}

TEST_F(ExchangePolicyTest, TheBestExchangesComeFirstWithinTheBudget) {
  shape_ = TestShape({100, 100}, 4);
  units_.owners = {0, 0, 1, 1, 0, 0, 1, 1};
  Count({{100, 100, 200, 300}, {0, 0, 300, 400}});
  EXPECT_THAT(Choose(), SizeIs(4));
  budget_ = base::Bytes(400);
  EXPECT_THAT(Choose(), ElementsAre(Pair(1, 3, 0), Pair(1, 2, 1)));
  budget_ = base::Bytes(1);
  EXPECT_THAT(Choose(), ElementsAre(Pair(1, 3, 0))) << "one is chosen whatever it weighs";
}

TEST_F(ExchangePolicyTest, FixedLayersAndTargetsStay) {
  Count({{0, 0, 300, 400}});
  units_.fixed_layers = {LayerId(0)};
  EXPECT_THAT(Choose(), IsEmpty());
  units_.fixed_layers = {};
  units_.targets = {Movable::kHere, Movable::kNo};
  EXPECT_THAT(Choose(), IsEmpty());
  units_.targets = {Movable::kWorker, Movable::kWorker};
  EXPECT_THAT(Choose(), IsEmpty()) << "two workers do not exchange";
  units_.targets = {Movable::kWorker, Movable::kHere};
  EXPECT_THAT(Choose(), SizeIs(2));
}

TEST_F(ExchangePolicyTest, NoiseAroundAnEvenRouterMovesNextToNothing) {
  shape_ = TestShape({100}, 64, 4);
  units_.owners.assign(64, 1);
  std::fill_n(units_.owners.begin(), 16, std::uint8_t{0});
  std::mt19937 random(3);
  std::size_t moved = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> counts(64);
    for (int i = 0; i < 4096; ++i) ++counts[random() % 64];
    Count({counts});
    moved += Choose().size();
  }
  // Of 160 pairs that could be: extremes of many experts are beyond three deviations now and then.
  EXPECT_LT(moved, 30U);
}

TEST_F(ExchangePolicyTest, ConvergesToTheHottestOnTheFirstTarget) {
  shape_ = TestShape({100, 100, 100}, 32, 4);
  std::mt19937 random(5);
  units_.owners.assign(96, 1);
  for (std::size_t l = 0; l < 3; ++l)
    std::fill_n(units_.owners.begin() + 32 * l, 8, std::uint8_t{0});
  std::vector<std::vector<std::uint64_t>> counts(3);
  double best = 0;
  for (auto& layer : counts) {
    // Shares that fall by a third from one expert to the next, in random order.
    double count = 20'000;
    for (int e = 0; e < 32; ++e, count /= 1.33)
      layer.push_back(static_cast<std::uint64_t>(count) + 1);
    const double all = std::accumulate(layer.begin(), layer.end(), 0.0);
    best += std::accumulate(layer.begin(), layer.begin() + 8, 0.0) / all / 3;
    std::ranges::shuffle(layer, random);
  }
  Count(counts);
  int rounds = 0;
  while (true) {
    const auto exchanges = Choose();
    if (exchanges.empty()) break;
    Apply(exchanges);
    ASSERT_LT(++rounds, 20);
  }
  EXPECT_GT(FirstShare(), 0.97 * best);
}

TEST_F(ExchangePolicyTest, WithCostsTheFasterTargetGetsTheHotterExpertWhereverItStands) {
  costs_.emplace();
  costs_->speeds = {{1e3, 1e4, 0}, {1e5, 1e6, 0}};
  costs_->primary = TargetId(0);
  Count({{300, 10, 40, 20}});
  EXPECT_THAT(Choose(), ElementsAre(Pair(0, 0, 3)));
  // What a second costs here pays back in no time; on fast targets a horizon of one token does not.
  rules_.horizon_tokens = 1;
  EXPECT_THAT(Choose(), IsEmpty());
}

TEST_F(ExchangePolicyTest, WithCostsEqualOwnersAreLevelled) {
  costs_.emplace();
  costs_->speeds = {{1e3, 1e4, 0}, {1e3, 1e4, 0}};
  costs_->primary = TargetId(0);
  Count({{300, 250, 50, 10}});
  const auto exchanges = Choose();
  ASSERT_THAT(exchanges, SizeIs(1));
  Apply(exchanges);
  EXPECT_NEAR(FirstShare(), 0.5, 0.15);
}

}  // namespace
}  // namespace moe
