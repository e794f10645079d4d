#include "moe/plan/policy_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;
using ::testing::ElementsAre;

Placement Place(const ModelShape& shape, std::vector<PlanTarget> targets) {
  const Hotness uniform = Hotness::Uniform(shape);
  return PlaceLayers({.shape = &shape,
                      .hotness = &uniform,
                      .targets = std::move(targets),
                      .policy = PlanPolicy::kLayers});
}

TEST(PolicyLayersTest, WholeLayersGoInListOrder) {
  const ModelShape shape = TestShape({10, 10, 10, 10}, 2);
  EXPECT_THAT(Place(shape, {{"a", Bytes(45)}, {"b", Bytes(20)}, {"cpu", {}}}).owners(),
              ElementsAre(0, 0, 0, 0, 1, 1, 2, 2));
}

TEST(PolicyLayersTest, ALayerThatDoesNotFitGoesOnAndSpansStayContiguous) {
  const ModelShape shape = TestShape({10, 30, 10}, 2);
  EXPECT_THAT(Place(shape, {{"a", Bytes(40)}, {"b", Bytes(0)}, {"cpu", {}}}).owners(),
              ElementsAre(0, 0, 2, 2, 2, 2))
      << "layer 2 would still fit a, but its span is over";
}

TEST(PolicyLayersTest, LayersBeyondTheLastTargetStayHomeless) {
  const ModelShape shape = TestShape({10, 10, 10}, 2);
  EXPECT_EQ(Place(shape, {{"a", Bytes(20)}, {"b", Bytes(39)}}).num_homeless(), 2u);
}

TEST(PolicyLayersTest, ProfileDoesNotMoveALayer) {
  const ModelShape shape = TestShape({10, 10}, 2);
  const Hotness skewed = Hotness::FromCounts(shape, {{0, 9}, {9, 0}});
  const Placement placement = PlaceLayers(
      {.shape = &shape, .hotness = &skewed, .targets = {{"a", Bytes(20)}, {"cpu", {}}}});
  EXPECT_THAT(placement.owners(), ElementsAre(0, 0, 1, 1));
}

}  // namespace
}  // namespace moe
