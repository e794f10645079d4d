#include "moe/plan/policy_ordered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;
using ::testing::Each;
using ::testing::ElementsAre;

Placement Place(const ModelShape& shape, const Hotness& hotness, std::vector<PlanTarget> targets,
                bool layer_floor = false) {
  return PlaceOrdered({.shape = &shape,
                       .hotness = &hotness,
                       .targets = std::move(targets),
                       .layer_floor = layer_floor});
}

TEST(PolicyOrderedTest, WithoutProfileExtrasGoRoundTheLayers) {
  const ModelShape shape = TestShape({10, 10, 10}, 5);
  const Hotness uniform = Hotness::Uniform(shape);
  const Placement placement =
      Place(shape, uniform, {{"a", Bytes(40)}, {"b", Bytes(40)}, {"cpu", {}}});
  // 4 units each: one a layer and one more, which is layer 0's for a and layer 1's for b.
  EXPECT_THAT(placement.owners(), ElementsAre(0, 0, 1, 2, 2,  //
                                              0, 1, 1, 2, 2,  //
                                              0, 1, 2, 2, 2));
}

TEST(PolicyOrderedTest, WithoutProfileSmallUnitsFillWhatLargeOnesLeave) {
  const ModelShape shape = TestShape({70, 20, 20}, 4);
  const Hotness uniform = Hotness::Uniform(shape);
  const Placement placement = Place(shape, uniform, {{"a", Bytes(150)}, {"cpu", {}}});
  EXPECT_EQ(placement.free(TargetId(0)), Bytes(0)) << "110 for one of each, 40 for two small ones";
}

TEST(PolicyOrderedTest, HottestUnitsGoToTheFirstTarget) {
  const ModelShape shape = TestShape({10, 10}, 3);
  const Hotness hotness = Hotness::FromCounts(shape, {{80, 15, 5}, {30, 30, 40}});
  const Placement placement =
      Place(shape, hotness, {{"a", Bytes(20)}, {"b", Bytes(20)}, {"cpu", {}}});
  EXPECT_THAT(placement.owners(), ElementsAre(0, 2, 2, 1, 1, 0));
}

TEST(PolicyOrderedTest, EquallyHotUnitsAreSpreadOverTheLayers) {
  const ModelShape shape = TestShape({10, 10}, 4);
  const Hotness hotness = Hotness::FromCounts(shape, {{1, 1, 1, 1}, {1, 1, 1, 1}});
  const Placement placement = Place(shape, hotness, {{"a", Bytes(40)}, {"cpu", {}}});
  EXPECT_THAT(placement.owners(), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
}

TEST(PolicyOrderedTest, FloorGivesTheFirstTargetTheTopOfEveryLayer) {
  const ModelShape shape = TestShape({10, 10}, 4, 2);
  // Layer 0 is so skewed less than layer 1 that globally hottest-first would take layer 1 alone.
  const Hotness hotness = Hotness::FromCounts(shape, {{26, 25, 25, 24}, {0, 30, 33, 37}});
  EXPECT_THAT(Place(shape, hotness, {{"a", Bytes(30)}, {"cpu", {}}}, false).owners(),
              ElementsAre(1, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(Place(shape, hotness, {{"a", Bytes(40)}, {"cpu", {}}}, true).owners(),
              ElementsAre(0, 0, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(Place(shape, hotness, {{"a", Bytes(30)}, {"cpu", {}}}, true).owners(),
              ElementsAre(0, 1, 1, 1, 1, 1, 0, 0))
      << "with room for three, every layer's hottest comes before any layer's second";
}

TEST(PolicyOrderedTest, TargetsAfterAnUnboundedOneGetNothing) {
  const ModelShape shape = TestShape({10, 20}, 3);
  const Hotness uniform = Hotness::Uniform(shape);
  const Hotness skewed = Hotness::FromCounts(shape, {{1, 2, 3}, {3, 2, 1}});
  for (const Hotness* hotness : {&uniform, &skewed}) {
    EXPECT_THAT(Place(shape, *hotness, {{"a", Bytes(0)}, {"cpu", {}}, {"b", Bytes(90)}}).owners(),
                Each(1));
  }
}

TEST(PolicyOrderedTest, ExactCapacitiesOfEqualUnitsFit) {
  const ModelShape shape = TestShape({10, 10, 10}, 7);
  const Hotness uniform = Hotness::Uniform(shape);
  const Placement placement =
      Place(shape, uniform, {{"a", Bytes(109)}, {"b", Bytes(50)}, {"c", Bytes(60)}});
  EXPECT_EQ(placement.num_homeless(), 0u);
}

TEST(PolicyOrderedTest, RepairMovesASmallUnitIntoAGapToMakeRoomForALargeOne) {
  // Small ones are hotter, so greedily a takes three of them and b's 35 hold one large: 30
  // homeless.
  const ModelShape shape = TestShape({10, 30}, 3);
  const Hotness hotness = Hotness::FromCounts(shape, {{5, 5, 5}, {4, 3, 3}});
  const Placement placement =
      Place(shape, hotness, {{"a", Bytes(50)}, {"b", Bytes(40)}, {"c", Bytes(30)}});
  EXPECT_EQ(placement.num_homeless(), 0u);
}

TEST(PolicyOrderedTest, RepairWithoutProfileUsesAnyTargetWithRoom) {
  // a: one of each (40) and 20 too little for a second large one.
  const ModelShape shape = TestShape({10, 30}, 2);
  const Hotness uniform = Hotness::Uniform(shape);
  const Placement placement = Place(shape, uniform, {{"a", Bytes(50)}, {"b", Bytes(30)}});
  EXPECT_EQ(placement.num_homeless(), 0u);
}

TEST(PolicyOrderedTest, UnitsThatNoTargetCanTakeStayHomeless) {
  const ModelShape shape = TestShape({30}, 2);
  const Hotness uniform = Hotness::Uniform(shape);
  const Placement placement = Place(shape, uniform, {{"a", Bytes(40)}, {"b", Bytes(20)}});
  EXPECT_EQ(placement.num_homeless(), 1u) << "60 bytes are free, but in no one place";
}

}  // namespace
}  // namespace moe
