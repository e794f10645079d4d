#include "moe/profile/routing_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using Counts = std::vector<std::vector<std::uint64_t>>;

RoutingReport Report(std::uint64_t num_tokens, const Counts& counts) {
  const ModelShape shape = TestShape(std::vector<std::uint64_t>(counts.size(), 10),
                                     static_cast<std::uint32_t>(counts.front().size()));
  const auto profile = RoutingProfile::FromCounts(shape.identity, "x", num_tokens, counts);
  EXPECT_TRUE(profile);
  return ReportRouting(*profile);
}

// Layers of a router that selects `num_used` of the experts for each token, each with a chance
// proportional to its weight.
Counts Route(std::size_t num_layers, std::size_t num_tokens, std::size_t num_used,
             const std::vector<double>& weights, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Counts counts(num_layers, std::vector<std::uint64_t>(weights.size(), 0));
  for (auto& layer : counts) {
    for (std::size_t token = 0; token < num_tokens; ++token) {
      std::vector<double> left = weights;
      for (std::size_t slot = 0; slot < num_used; ++slot) {
        std::discrete_distribution<std::size_t> pick(left.begin(), left.end());
        const std::size_t expert = pick(random);
        left[expert] = 0;
        ++layer[expert];
      }
    }
  }
  return counts;
}

TEST(RoutingReportTest, SharesAndEntropyAreThoseOfTheCounts) {
  const RoutingReport report = Report(100, {{40, 80, 20, 60}, {100, 100, 0, 0}});
  ASSERT_EQ(report.layers.size(), 2u);
  const LayerRouting& first = report.layers[0];
  // Of four experts the hottest 10 and 25 % are one, the hottest 50 % two.
  EXPECT_EQ(first.hottest[0].num_experts, 1u);
  EXPECT_DOUBLE_EQ(first.hottest[0].share, 0.4);
  EXPECT_DOUBLE_EQ(first.hottest[1].share, 0.4);
  EXPECT_EQ(first.hottest[2].num_experts, 2u);
  EXPECT_DOUBLE_EQ(first.hottest[2].share, 0.7);
  EXPECT_NEAR(
      first.entropy,
      -(0.2 * std::log2(0.2) + 0.4 * std::log2(0.4) + 0.1 * std::log2(0.1) + 0.3 * std::log2(0.3)),
      1e-12);
  EXPECT_DOUBLE_EQ(report.layers[1].entropy, 1);
  EXPECT_DOUBLE_EQ(report.mean.hottest[2].share, 0.85);
  EXPECT_TRUE(report.mean.beyond_uniform);
}

// Both ways of drawing the null, against counts that a uniform router really made.
TEST(RoutingReportTest, AUniformRouterIsRecognised) {
  struct Case {
    std::size_t num_experts, num_used, num_tokens;
  };
  for (const auto& [num_experts, num_used, num_tokens] :
       {Case{8, 2, 20}, Case{12, 3, 5000}, Case{12, 3, 6000}, Case{64, 8, 300}, Case{64, 8, 4000},
        Case{8, 8, 50}}) {
    SCOPED_TRACE(std::to_string(num_experts) + " experts, " + std::to_string(num_tokens));
    const std::size_t layers = 20;
    const RoutingReport report = Report(
        num_tokens, Route(layers, num_tokens, num_used, std::vector<double>(num_experts, 1), 7));
    for (const LayerRouting& layer : report.layers) EXPECT_FALSE(layer.beyond_uniform);
    EXPECT_FALSE(report.mean.beyond_uniform);
    for (const HotShare& hot : report.mean.hottest) {
      EXPECT_NEAR(hot.share, hot.uniform_share,
                  0.1 * hot.uniform_share / std::sqrt(num_tokens / 20))
          << hot.fraction;
    }
    EXPECT_NEAR(report.mean.entropy, report.mean.uniform_entropy, 0.03);
  }
}

TEST(RoutingReportTest, FewTokensLookHotUnderAUniformRouterToo) {
  // One token selects 2 of 8 experts: they draw everything.
  const RoutingReport one = Report(1, {{0, 1, 0, 0, 0, 0, 1, 0}});
  EXPECT_DOUBLE_EQ(one.layers[0].hottest[1].share, 1);
  EXPECT_DOUBLE_EQ(one.layers[0].hottest[1].uniform_share, 1);
  EXPECT_DOUBLE_EQ(one.layers[0].uniform_entropy, 1);
  EXPECT_FALSE(one.mean.beyond_uniform);
}

TEST(RoutingReportTest, SkewIsBeyondTheNull) {
  std::vector<double> weights(64);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1 / (1.0 + static_cast<double>(i));
  const RoutingReport report = Report(500, Route(3, 500, 4, weights, 3));
  for (const LayerRouting& layer : report.layers) EXPECT_TRUE(layer.beyond_uniform);
  EXPECT_GT(report.mean.hottest[1].share, report.mean.hottest[1].uniform_share + 0.2);
}

// A skew too small to show in a layer shows in many.
TEST(RoutingReportTest, LayersTogetherShowWhatNoneShowsAlone) {
  std::vector<double> weights(16, 1);
  for (std::size_t i = 0; i < 8; ++i) weights[i] = 1.12;
  const RoutingReport report = Report(600, Route(60, 600, 2, weights, 5));
  const auto alone = std::ranges::count_if(report.layers, &LayerRouting::beyond_uniform);
  EXPECT_LT(alone, 20);
  EXPECT_TRUE(report.mean.beyond_uniform);
}

TEST(RoutingReportTest, ALayerWithoutSelectionsCountsAsUniform) {
  const RoutingReport report = Report(10, {{0, 0, 0, 0}});
  EXPECT_DOUBLE_EQ(report.mean.hottest[1].share, 0.25);
  EXPECT_DOUBLE_EQ(report.mean.hottest[1].uniform_share, 0.25);
  EXPECT_DOUBLE_EQ(report.mean.entropy, 2);
  EXPECT_FALSE(report.mean.beyond_uniform);
}

TEST(RoutingReportTest, OneExpertALayer) {
  const RoutingReport report = Report(20000, {{20000}});
  EXPECT_DOUBLE_EQ(report.mean.hottest[0].share, 1);
  EXPECT_DOUBLE_EQ(report.mean.hottest[0].uniform_share, 1);
  EXPECT_FALSE(report.mean.beyond_uniform);
}

}  // namespace
}  // namespace moe
