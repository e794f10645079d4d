#include "moe/plan/cost_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

// Two layers of four experts of 100 and 300 bytes, two a token.
class CostModelTest : public ::testing::Test {
 protected:
  double Decode(const std::vector<OwnerLoad>& loads, std::size_t layer = 0) const {
    return LayerCost(shape_, LayerId(layer), costs_).Seconds(loads).decode;
  }
  double Prompt(const std::vector<OwnerLoad>& loads) const {
    return LayerCost(shape_, LayerId(0), costs_).Seconds(loads).prompt;
  }

  const ModelShape shape_ = TestShape({100, 300}, 4, 2);
  // A device, which is the primary, and a CPU.
  const CostModel costs_{.speeds = {{1000, 50000, 0.5}, {100, 2000, 0.01}},
                         .primary = TargetId(0),
                         .prompt_rows = 10,
                         .prompt_tokens_per_generated = 3};
};

TEST_F(CostModelTest, TheSlowestOwnerCountsAndLeavingThePrimaryIsPaidOnTop) {
  // 2 of 4 experts each, 90 % of the traffic on the device: 200 bytes a token.
  EXPECT_DOUBLE_EQ(Decode({{0.9, 2}, {0.1, 2}}), 0.5 + (0.2 * 0.01 + 0.1 * 200 / 100));
  EXPECT_DOUBLE_EQ(Decode({{0.99, 2}, {0.01, 2}}), 0.5 + 0.99 * 200 / 1000);
  // In another layer there are 600 bytes a token.
  EXPECT_DOUBLE_EQ(Decode({{0.9, 2}, {0.1, 2}}, 1), 0.5 + (0.2 * 0.01 + 0.1 * 600 / 100));
}

TEST_F(CostModelTest, ALayerThatThePrimaryOwnsAloneStaysInItsGraph) {
  EXPECT_DOUBLE_EQ(Decode({{1, 4}, {0, 0}}), 0.2);
  EXPECT_DOUBLE_EQ(Prompt({{1, 4}, {0, 0}}), 200.0 / 50000);
  // An expert that is never selected makes the layer leave it all the same.
  EXPECT_DOUBLE_EQ(Decode({{1, 3}, {0, 1}}), 0.7);
  EXPECT_DOUBLE_EQ(Decode({{0, 0}, {1, 4}}), 0.5 + 0.01 + 2);
}

TEST_F(CostModelTest, AnOwnersFixedCostIsDueAsOftenAsItIsNeeded) {
  // One row: two selections that go there with 25 %. Ten rows: certainly.
  EXPECT_DOUBLE_EQ(Decode({{0.75, 3}, {0.25, 1}}), 0.5 + 0.5 * 0.01 + 0.25 * 2);
  EXPECT_DOUBLE_EQ(Prompt({{0.75, 3}, {0.25, 1}}), 0.05 + 0.001 + 0.25 * 200 / 2000);
  EXPECT_DOUBLE_EQ(Prompt({{0.998, 3}, {0.002, 1}}), 0.05 + 0.998 * 200 / 50000);
}

TEST_F(CostModelTest, ScoresWeightPromptsAndPointOutOfTies) {
  const LayerCost cost(shape_, LayerId(0), costs_);
  const std::vector<OwnerLoad> loads = {{0.6, 2}, {0.4, 2}};
  EXPECT_DOUBLE_EQ(cost.Score(loads, 0), cost.Seconds(loads).Weighted(costs_));
  EXPECT_DOUBLE_EQ(cost.Seconds(loads).Weighted(costs_), Decode(loads) + 3 * Prompt(loads));
  EXPECT_GT(cost.Score(loads, 0.1), cost.Score(loads, 0));
  // Of two owners as slow as each other one gets less to do.
  const CostModel three{.speeds = {{100, 100, 0}, {100, 100, 0}, {100, 100, 0}},
                        .primary = TargetId(0)};
  const LayerCost tied(shape_, LayerId(0), three);
  const std::vector<OwnerLoad> before = {{0.5, 2}, {0.5, 2}, {0, 0}};
  const std::vector<OwnerLoad> after = {{0.25, 1}, {0.5, 2}, {0.25, 1}};
  EXPECT_DOUBLE_EQ(tied.Score(before, 0), tied.Score(after, 0));
  EXPECT_GT(tied.Score(before, 0.01), tied.Score(after, 0.01));
}

TEST_F(CostModelTest, SumsTheLayers) {
  const Hotness hotness = Hotness::FromCounts(shape_, {{6, 2, 1, 1}, {0, 0, 5, 5}});
  const std::vector<std::uint8_t> owners = {0, 0, 1, 1, 0, 1, 1, 0};
  const ExpectedSeconds sum = ExpectSeconds(shape_, hotness, owners, costs_);
  EXPECT_NEAR(sum.decode, Decode({{0.8, 2}, {0.2, 2}}) + Decode({{0.5, 2}, {0.5, 2}}, 1), 1e-12);
  const LayerCost second(shape_, LayerId(1), costs_);
  const std::vector<OwnerLoad> halves = {{0.5, 2}, {0.5, 2}};
  EXPECT_NEAR(sum.prompt, Prompt({{0.8, 2}, {0.2, 2}}) + second.Seconds(halves).prompt, 1e-12);
}

TEST_F(CostModelTest, TheFastestTargetReadsWeightsFastestForOneRow) {
  EXPECT_EQ(FastestTarget(costs_), TargetId(0));
  CostModel other = costs_;
  other.speeds.push_back({2000, 1, 9});
  other.speeds.push_back({2000, 2, 0});
  EXPECT_EQ(FastestTarget(other), TargetId(2));
}

}  // namespace
}  // namespace moe
