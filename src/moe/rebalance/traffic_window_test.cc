#include "moe/rebalance/traffic_window.h"

#include <gtest/gtest.h>

#include <vector>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

// Two layers of three experts, of which a token uses two.
const ModelShape kShape = TestShape({30, 30}, 3, 2);

RoutingProfile Counted(std::uint64_t tokens, std::vector<std::vector<std::uint64_t>> counts) {
  return *RoutingProfile::FromCounts(kShape.identity, "requests", tokens, std::move(counts));
}

TEST(TrafficWindowTest, IsEmptyBeforeAnythingIsCounted) {
  TrafficWindow window(kShape, 100);
  EXPECT_EQ(window.tokens(), 0);
  EXPECT_EQ(window.share(LayerId(0), ExpertId(0)), 0);
  window.Observe(RoutingProfile(kShape.identity, "requests"));
  EXPECT_EQ(window.tokens(), 0);
  EXPECT_TRUE(window.HotnessNow(kShape).uniform());
}

TEST(TrafficWindowTest, SharesAreThoseOfWhatWasCounted) {
  TrafficWindow window(kShape, 1e9);
  window.Observe(Counted(10, {{10, 6, 4}, {10, 10, 0}}));
  EXPECT_NEAR(window.tokens(), 10, 1e-6);
  EXPECT_NEAR(window.share(LayerId(0), ExpertId(0)), 0.5, 1e-9);
  EXPECT_NEAR(window.share(LayerId(0), ExpertId(2)), 0.2, 1e-9);
  EXPECT_NEAR(window.HotnessNow(kShape).share(LayerId(0), ExpertId(1)), 0.3, 1e-4);
}

TEST(TrafficWindowTest, WhatWasBeforeFadesByHalfInAHalfLife) {
  TrafficWindow window(kShape, 100);
  window.Observe(Counted(100, {{100, 100, 0}, {100, 100, 0}}));
  window.Observe(Counted(100, {{100, 100, 0}, {100, 100, 0}}));
  EXPECT_DOUBLE_EQ(window.tokens(), 100) << "nothing fades while nothing is routed";
  window.Observe(Counted(200, {{100, 200, 100}, {200, 200, 0}}));
  EXPECT_DOUBLE_EQ(window.tokens(), 150);
  EXPECT_DOUBLE_EQ(window.count(LayerId(0), ExpertId(0)), 50);
  EXPECT_DOUBLE_EQ(window.count(LayerId(0), ExpertId(1)), 150);
  EXPECT_DOUBLE_EQ(window.count(LayerId(0), ExpertId(2)), 100);
}

TEST(TrafficWindowTest, ManyStepsAndOneFadeAlike) {
  TrafficWindow often(kShape, 64);
  TrafficWindow seldom(kShape, 64);
  for (std::uint64_t tokens = 1; tokens <= 512; ++tokens) {
    often.Observe(Counted(tokens, {{tokens, tokens, 0}, {tokens, 0, tokens}}));
  }
  seldom.Observe(Counted(512, {{512, 512, 0}, {512, 0, 512}}));
  EXPECT_NEAR(often.share(LayerId(0), ExpertId(0)), seldom.share(LayerId(0), ExpertId(0)), 1e-9);
  EXPECT_NEAR(often.share(LayerId(1), ExpertId(1)), 0, 1e-9);
}

}  // namespace
}  // namespace moe
