#include "moe/materialize/materialization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace moe {
namespace {

using testing::HasSubstr;

// 2 layers x 4 experts: the first separate (gate and up adjoin), the second fused, in another file.
ExpertStacks TestStacks() {
  ExpertStacks stacks(2);
  stacks[0].down = {.tensor = "down0", .offset = 100, .bytes_per_expert = base::Bytes(5)};
  stacks[0].gate = {.tensor = "gate0", .offset = 200, .bytes_per_expert = base::Bytes(10)};
  stacks[0].up = ExpertStack{.tensor = "up0", .offset = 240, .bytes_per_expert = base::Bytes(10)};
  stacks[1].gate = {
      .tensor = "gate_up1", .shard = 1, .offset = 32, .bytes_per_expert = base::Bytes(20)};
  stacks[1].down = {
      .tensor = "down1", .shard = 1, .offset = 112, .bytes_per_expert = base::Bytes(7)};
  return stacks;
}

ModelShape ShapeOf(const ExpertStacks& stacks, std::uint32_t num_experts) {
  ModelShape shape;
  shape.identity = {.architecture = "fake",
                    .name = "",
                    .quantisation = "",
                    .num_layers = static_cast<std::uint32_t>(stacks.size()),
                    .num_experts = num_experts};
  shape.num_experts = num_experts;
  shape.experts_per_token = 1;
  for (const LayerStacks& layer : stacks) {
    shape.layers.push_back({.unit = {.gate = layer.gate.bytes_per_expert,
                                     .up = layer.up ? layer.up->bytes_per_expert : base::Bytes(),
                                     .down = layer.down.bytes_per_expert}});
  }
  return shape;
}

ExpertSplitPlan PlanOf(const ExpertStacks& stacks, std::uint32_t num_experts,
                       std::size_t num_targets, const std::vector<std::uint8_t>& owners) {
  std::vector<PlanTarget> targets;
  for (std::size_t t = 0; t < num_targets; ++t) {
    targets.push_back({.name = "t" + std::to_string(t), .capacity = std::nullopt});
  }
  const ModelShape shape = ShapeOf(stacks, num_experts);
  auto plan = ExpertSplitPlan::FromOwners(shape, Hotness::Uniform(shape), targets, owners);
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  return *plan;
}

base::Result<std::shared_ptr<const ExpertSplitMaterialization>> Make(ExpertStacks stacks) {
  const auto plan = PlanOf(TestStacks(), 4, 2, {0, 0, 1, 0, 1, 1, 1, 1});
  return ExpertSplitMaterialization::Make(std::move(stacks), ExpertSplitRuntime::Make(plan),
                                          TargetId(0));
}

void ExpectCorrupt(ExpertStacks stacks, const std::string& part) {
  const auto made = Make(std::move(stacks));
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(made.error().message, HasSubstr(part));
}

TEST(ExpertSplitMaterialization, ListsEachTargetsSlicesInFileOrder) {
  const auto made = Make(TestStacks());
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const std::vector<ExpertSlice>& slices = (*made)->load(TargetId(0)).slices;
  std::vector<std::tuple<std::string_view, std::size_t, std::size_t, std::uint64_t>> seen;
  for (const ExpertSlice& slice : slices) {
    EXPECT_EQ(slice.owner, TargetId(0));
    EXPECT_EQ(slice.layer, LayerId(0));
    EXPECT_EQ(slice.shard, 0u);
    seen.emplace_back(ExpertProjectionName(slice.projection), slice.expert.index(),
                      slice.local.index(), slice.offset);
  }
  EXPECT_THAT(seen,
              testing::ElementsAre(std::tuple("down", 0, 0, 100), std::tuple("down", 1, 1, 105),
                                   std::tuple("down", 3, 2, 115), std::tuple("gate", 0, 0, 200),
                                   std::tuple("gate", 1, 1, 210), std::tuple("gate", 3, 2, 230),
                                   std::tuple("up", 0, 0, 240), std::tuple("up", 1, 1, 250),
                                   std::tuple("up", 3, 2, 270)));
}

TEST(ExpertSplitMaterialization, MergesAdjoiningSlicesIntoExtentsAcrossStacks) {
  const auto made = Make(TestStacks());
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_THAT((*made)->load(TargetId(0)).extents,
              testing::ElementsAre(FileExtent{0, 100, base::Bytes(10), 0, 2},
                                   FileExtent{0, 115, base::Bytes(5), 2, 1},
                                   FileExtent{0, 200, base::Bytes(20), 3, 2},
                                   // the last gate, then the first two ups
                                   FileExtent{0, 230, base::Bytes(30), 5, 3},
                                   FileExtent{0, 270, base::Bytes(10), 8, 1}));
  // Fused: every gate_up and down of the second file in one run.
  EXPECT_EQ((*made)->load(TargetId(1)).extents.back(),
            (FileExtent{1, 32, base::Bytes(4 * 27), 3, 8}));
}

TEST(ExpertSplitMaterialization, UsesOneFusedSliceInsteadOfGateAndUp) {
  const auto made = Make(TestStacks());
  ASSERT_TRUE(made.has_value()) << made.error().message;
  std::map<std::string_view, int> counts;
  for (const ExpertSlice& slice : (*made)->off_primary().slices) {
    if (slice.layer == LayerId(1)) ++counts[ExpertProjectionName(slice.projection)];
  }
  EXPECT_THAT(counts, testing::ElementsAre(std::pair("down", 4), std::pair("gate_up", 4)));
}

TEST(ExpertSplitMaterialization, PlacesEverySliceOnceWithThePlansByteSums) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const std::size_t num_targets = 1 + random() % 5;
    std::vector<std::uint8_t> owners(8);
    for (std::uint8_t& owner : owners) owner = static_cast<std::uint8_t>(random() % num_targets);
    const ExpertSplitPlan plan = PlanOf(TestStacks(), 4, num_targets, owners);
    const TargetId primary(random() % num_targets);
    const auto made =
        ExpertSplitMaterialization::Make(TestStacks(), ExpertSplitRuntime::Make(plan), primary);
    ASSERT_TRUE(made.has_value()) << made.error().message;

    std::set<std::pair<std::size_t, std::uint64_t>> places;
    base::Bytes off_primary;
    std::size_t num_slices = 0;
    for (std::size_t t = 0; t < num_targets; ++t) {
      const LoadList& list = (*made)->load(TargetId(t));
      EXPECT_EQ(list.bytes, plan.bytes(TargetId(t)));
      base::Bytes in_extents;
      std::size_t extent_slices = 0;
      for (const FileExtent& extent : list.extents) {
        EXPECT_EQ(extent.first_slice, extent_slices);
        in_extents += extent.bytes;
        extent_slices += extent.num_slices;
      }
      EXPECT_EQ(in_extents, list.bytes);
      EXPECT_EQ(extent_slices, list.slices.size());
      for (const ExpertSlice& slice : list.slices) places.emplace(slice.shard, slice.offset);
      if (TargetId(t) == primary) continue;
      off_primary += list.bytes;
      num_slices += list.slices.size();
    }
    EXPECT_EQ(places.size(), 4u * 3 + 4u * 2);
    EXPECT_EQ((*made)->off_primary().bytes, off_primary);
    EXPECT_EQ((*made)->off_primary().slices.size(), num_slices);
    EXPECT_EQ((*made)->on_primary().bytes, plan.bytes(primary));
  }
}

TEST(ExpertSplitMaterialization, UnitesTheOtherTargetsInFileOrder) {
  const ExpertSplitPlan plan = PlanOf(TestStacks(), 4, 3, {1, 2, 0, 1, 2, 1, 2, 1});
  const auto made =
      ExpertSplitMaterialization::Make(TestStacks(), ExpertSplitRuntime::Make(plan), TargetId(0));
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const LoadList& rest = (*made)->off_primary();
  EXPECT_TRUE(std::ranges::is_sorted(rest.slices, {}, [](const ExpertSlice& slice) {
    return std::tuple(slice.shard, slice.offset);
  }));
  for (const ExpertSlice& slice : rest.slices) EXPECT_NE(slice.owner, TargetId(0));
  // Owners alternate in the second file, yet it is one run.
  EXPECT_EQ(rest.extents.back().bytes, base::Bytes(4 * 27));
}

TEST(ExpertSplitMaterialization, RefusesAnotherNumberOfLayers) {
  ExpertStacks stacks = TestStacks();
  stacks.pop_back();
  ExpectCorrupt(std::move(stacks), "has 1 layers of experts but the plan is for 2");
}

TEST(ExpertSplitMaterialization, RefusesAStackBeyondTheLargestOffset) {
  ExpertStacks stacks = TestStacks();
  stacks[1].down.bytes_per_expert = base::Bytes(std::numeric_limits<std::uint64_t>::max() / 2);
  ExpectCorrupt(std::move(stacks), "down1");
  stacks = TestStacks();
  stacks[0].gate.offset = std::numeric_limits<std::uint64_t>::max() - 39;
  ExpectCorrupt(std::move(stacks), "gate0");
}

TEST(ExpertSplitMaterialization, RefusesAnEmptyExpert) {
  ExpertStacks stacks = TestStacks();
  stacks[0].up->bytes_per_expert = base::Bytes();
  ExpectCorrupt(std::move(stacks), "up0");
}

TEST(ExpertSplitMaterialization, RefusesOverlappingStacksOfOneFile) {
  ExpertStacks stacks = TestStacks();
  stacks[0].up->offset = 239;
  ExpectCorrupt(std::move(stacks), "gate0 and up0 overlap at offset 239");
  stacks = TestStacks();
  stacks[1].gate.offset = 200;  // as gate0, but in another file
  stacks[1].down.offset = 280;
  EXPECT_TRUE(Make(std::move(stacks)).has_value());
}

}  // namespace
}  // namespace moe
