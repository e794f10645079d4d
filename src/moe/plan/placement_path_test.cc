#include "moe/plan/placement_path.h"

#include <gtest/gtest.h>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

struct PathCase {
  const char* list;
  const char* path;
};

// One layer of ten units of 100 bytes; `auto` counts as unbounded.
class PlacementPathTest : public ::testing::TestWithParam<PathCase> {
 protected:
  const ModelShape shape_ = TestShape({100}, 10);
  const Hotness uniform_ = Hotness::Uniform(shape_);
};

TEST_P(PlacementPathTest, FollowsFromTheOwnersAndThePrimary) {
  const auto config = ExpertSplitTargetConfig::Parse(GetParam().list);
  ASSERT_TRUE(config) << config.error().message;
  std::vector<PlanTarget> targets;
  for (const ExpertSplitTarget& target : config->targets()) {
    targets.push_back({target.name, std::nullopt});
    if (target.capacity.policy == CapacityPolicy::kBytes) {
      targets.back().capacity = target.capacity.bytes;
    }
  }
  const auto plan =
      ExpertSplitPlan::Make({.shape = &shape_, .hotness = &uniform_, .targets = targets});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(PlacementPathName(PathOf(*plan, *config)), GetParam().path) << plan->Summary();
}

INSTANTIATE_TEST_SUITE_P(Lists, PlacementPathTest,
                         ::testing::Values(PathCase{"cpu", "single"},                           //
                                           PathCase{"vulkan:0", "single"},                      //
                                           PathCase{"vulkan:0=0,cpu", "hot-cold"},              //
                                           PathCase{"vulkan:0=500,cpu", "hot-cold"},            //
                                           PathCase{"cpu=500,vulkan:0", "hot-cold"},            //
                                           PathCase{"vulkan:0,vulkan:1,cpu", "single"},         //
                                           PathCase{"vulkan:0=500,vulkan:1=100,cpu", "multi"},  //
                                           PathCase{"vulkan:0=500,vulkan:1=0,cpu", "hot-cold"},
                                           PathCase{"worker(cpu)=500,cpu", "hot-cold"},
                                           PathCase{"worker(cpu)=0,cpu", "single"},
                                           PathCase{"worker(cpu)=500,worker(cpu)=100,cpu", "multi"},
                                           PathCase{"vulkan:0=0,vulkan:1,cpu", "multi"},
                                           PathCase{"vulkan:0=0,worker(cpu)", "multi"},
                                           PathCase{"cpu:0=500,cpu:1", "hot-cold"},
                                           PathCase{"cpu=0,vulkan:0", "hot-cold"}));

TEST(PlacementLineTest, IsOneLineInListOrder) {
  const ModelShape shape = TestShape({100}, 10);
  const auto plan = ExpertSplitPlan::FromOwners(shape, Hotness::Uniform(shape),
                                                {{"cuda:0", {}}, {"hip:0", {}}, {"cpu", {}}},
                                                {0, 0, 0, 0, 0, 0, 2, 2, 2, 1});
  ASSERT_TRUE(plan);
  EXPECT_EQ(PlacementLine(*plan, PlacementPath::kMulti),
            "[expert-split] plan cuda:0=6|hip:0=1|cpu=3 units=10 path=multi fingerprint=" +
                plan->FingerprintText());
}

}  // namespace
}  // namespace moe
