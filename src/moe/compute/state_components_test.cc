#include "moe/compute/state_components.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moe/compute/fake_family.h"
#include "moe/compute/hot_cold_compute.h"
#include "moe/compute/multi_compute.h"

namespace moe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class StateComponentsTest : public testing::Test {
 protected:
  // Owners that compute from what their load list gave them.
  ExpertComputeFactory Loading() {
    return [this](TargetId target,
                  const std::shared_ptr<const ExpertSplitMaterialization>& materialization)
               -> base::Result<std::unique_ptr<MoeExpertCompute>> {
      made_.push_back(target);
      auto loaded = std::make_shared<LoadedTarget>(family_, materialization, target);
      loaded_.push_back(loaded.get());
      return std::make_unique<ReferenceCompute>(std::move(loaded),
                                                materialization->shared_runtime(), target);
    };
  }

  base::Result<ExpertSplitStateComponents> Make(const std::string& list,
                                                std::vector<std::uint8_t> owners) {
    made_.clear();
    loaded_.clear();
    const ExpertSplitTargetConfig config = ConfigOf(list);
    return ExpertSplitStateComponents::Make(config, PlanOf(family_, config, std::move(owners)),
                                            family_.stacks(), Loading());
  }

  // Layer by layer what the state's object computes; the reference reads the family directly.
  void ExpectExact(const ExpertSplitStateComponents& state, std::uint32_t seed) {
    for (std::size_t l = 0; l < kFakeLayers; ++l) {
      for (const std::size_t num_rows : {0, 1, 23}) {
        const FakeBatch batch(LayerId(l), num_rows, seed);
        const auto out = batch.Run(*state.compute().routed(), 1 + seed % 3);
        ASSERT_TRUE(out.has_value()) << out.error().message;
        ASSERT_EQ(*out, Single(batch)) << "layer " << l;
      }
    }
  }

  std::vector<float> Single(const FakeBatch& batch) {
    const auto config = ConfigOf("cpu");
    ReferenceCompute single(
        std::shared_ptr<const FloatExpertWeights>(std::shared_ptr<void>(), &family_),
        ExpertSplitRuntime::Make(PlanOf(family_, config, All(0))), TargetId(0));
    return *batch.Run(single, 1);
  }

  static std::vector<std::uint8_t> All(std::uint8_t owner) {
    return std::vector<std::uint8_t>(kFakeLayers * kFakeExperts, owner);
  }

  FakeFamily family_{7};
  std::vector<TargetId> made_;         // whom the factory was asked for
  std::vector<LoadedTarget*> loaded_;  // in the same order
};

TEST_F(StateComponentsTest, EveryPlacementOfTheFamilyComputesTheSameBits) {
  std::mt19937 random(1);
  const std::string lists[] = {"cpu",
                               "vulkan:0",
                               "vulkan:0,cpu",
                               "worker(cpu),cpu",
                               "cpu,vulkan:0",
                               "cpu:0,cpu:1,cpu:2",
                               "vulkan:0,vulkan:1,cpu",
                               "cuda:0,worker(cpu),hip:0,cpu",
                               "cuda:0,vulkan:0,rpc:10.0.0.7:50052,worker(cpu),cpu"};
  for (std::uint32_t i = 0; i < 90; ++i) {
    const std::string& list = lists[i % std::size(lists)];
    SCOPED_TRACE(list);
    const ExpertSplitTargetConfig config = ConfigOf(list);
    const auto state = ExpertSplitStateComponents::Make(config, RandomPlan(family_, config, random),
                                                        family_.stacks(), Loading());
    ASSERT_TRUE(state.has_value()) << state.error().message;
    ASSERT_NO_FATAL_FAILURE(ExpectExact(*state, i));
  }
}

TEST_F(StateComponentsTest, ComputesLayersThatAreWhollyOneTargets) {
  const auto state = Make("vulkan:0,vulkan:1,cpu", {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2});
  ASSERT_TRUE(state.has_value()) << state.error().message;
  ExpectExact(*state, 1);
  EXPECT_TRUE(state->compute().all_on_primary(LayerId(0)));
  EXPECT_FALSE(state->compute().all_on_primary(LayerId(1)));
}

TEST_F(StateComponentsTest, ABrokenLocalIdChangesTheOutput) {
  const auto state = Make("vulkan:0,vulkan:1,cpu", {0, 1, 1, 2, 0, 2, 2, 1, 0, 1, 0, 1, 2, 1, 0});
  ASSERT_TRUE(state.has_value()) << state.error().message;
  const FakeBatch batch(LayerId(0), 23, 1);
  ASSERT_EQ(*batch.Run(*state->compute().routed(), 1), Single(batch));
  loaded_[1]->Swap(LayerId(0), LocalId(0), LocalId(1));
  EXPECT_NE(*batch.Run(*state->compute().routed(), 1), Single(batch));
}

TEST_F(StateComponentsTest, ThePathDecidesTheTypeOfTheComputeObject) {
  struct Case {
    std::string list;
    std::vector<std::uint8_t> owners;
    PlacementPath path;
    std::size_t num_parts;
  };
  std::vector<std::uint8_t> both = All(0);
  both[3] = 1;
  std::vector<std::uint8_t> three = both;
  three[4] = 2;
  const Case cases[] = {
      {"cpu", All(0), PlacementPath::kSingle, 1},
      {"vulkan:0,vulkan:1,cpu", All(0), PlacementPath::kSingle, 1},
      {"vulkan:0,cpu", both, PlacementPath::kHotCold, 2},
      {"cpu,vulkan:0", both, PlacementPath::kHotCold, 2},
      {"vulkan:0=0,cpu", All(1), PlacementPath::kHotCold, 1},
      {"worker(cpu),cpu", both, PlacementPath::kHotCold, 2},
      {"worker(cpu),cpu", All(0), PlacementPath::kHotCold, 1},
      {"cpu:0,cpu:1,cpu:2", three, PlacementPath::kHotCold, 3},
      {"vulkan:0,vulkan:1,cpu", both, PlacementPath::kMulti, 2},
      {"vulkan:0,vulkan:1,cpu", All(1), PlacementPath::kMulti, 1},
      {"vulkan:0=0,vulkan:1,cpu", three, PlacementPath::kMulti, 3},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.list);
    const auto state = Make(c.list, c.owners);
    ASSERT_TRUE(state.has_value()) << state.error().message;
    const ExpertSplitComputeRuntime& compute = state->compute();
    EXPECT_EQ(compute.path(), c.path);
    ASSERT_NE(compute.routed(), nullptr);
    EXPECT_EQ(dynamic_cast<MultiTargetCompute*>(compute.routed()) != nullptr,
              c.path == PlacementPath::kMulti);
    EXPECT_EQ(dynamic_cast<HotColdCompute*>(compute.routed()) != nullptr,
              c.path == PlacementPath::kHotCold && c.num_parts > 1);
    EXPECT_EQ(compute.routed()->num_parts(), c.num_parts);
    EXPECT_EQ(compute.part_targets().size(), c.num_parts);
    if (c.num_parts == 1 && c.path != PlacementPath::kMulti) {
      EXPECT_EQ(compute.routed(), compute.compute(compute.part_targets()[0]));
    }
    // No owner is a multi-target object either.
    for (const TargetId target : compute.part_targets()) {
      EXPECT_EQ(dynamic_cast<MultiTargetCompute*>(compute.compute(target)), nullptr);
    }
  }
}

TEST_F(StateComponentsTest, MakesAnObjectForEachTargetThatOwnsAUnitInListOrder) {
  std::vector<std::uint8_t> owners = All(2);
  owners[7] = 0;
  const auto state = Make("vulkan:0,vulkan:1,cpu", owners);
  ASSERT_TRUE(state.has_value()) << state.error().message;
  EXPECT_THAT(made_, ElementsAre(TargetId(0), TargetId(2)));
  EXPECT_THAT(state->compute().part_targets(), ElementsAre(TargetId(0), TargetId(2)));
  EXPECT_NE(state->compute().compute(TargetId(0)), nullptr);
  EXPECT_EQ(state->compute().compute(TargetId(1)), nullptr);
}

TEST_F(StateComponentsTest, MapsRouterIdsToLocalIdsAndBack) {
  std::mt19937 random(5);
  const auto config = ConfigOf("vulkan:0,vulkan:1,worker(cpu),cpu");
  for (int i = 0; i < 20; ++i) {
    const auto state = ExpertSplitStateComponents::Make(config, RandomPlan(family_, config, random),
                                                        family_.stacks(), Loading());
    ASSERT_TRUE(state.has_value()) << state.error().message;
    for (std::size_t l = 0; l < kFakeLayers; ++l) {
      for (std::size_t t = 0; t < config.size(); ++t) {
        const auto experts = state->runtime()->experts(LayerId(l), TargetId(t));
        const auto local_ids = state->compute().local_ids(TargetId(t), LayerId(l));
        ASSERT_EQ(local_ids.size(), kFakeExperts);
        for (std::size_t e = 0; e < kFakeExperts; ++e) {
          if (state->plan().owner(LayerId(l), ExpertId(e)) == TargetId(t)) {
            ASSERT_EQ(experts[static_cast<std::size_t>(local_ids[e])], ExpertId(e));
          } else {
            ASSERT_EQ(local_ids[e], ExpertSplitComputeRuntime::kNotOwned);
          }
        }
      }
    }
  }
}

TEST_F(StateComponentsTest, BelongsTogether) {
  const auto config = ConfigOf("vulkan:0,cpu:1");
  std::mt19937 random(5);
  const ExpertSplitPlan plan = RandomPlan(family_, config, random);
  const auto state = ExpertSplitStateComponents::Make(config, plan, family_.stacks(), Loading(), 9);
  ASSERT_TRUE(state.has_value()) << state.error().message;
  EXPECT_EQ(state->config(), config);
  EXPECT_EQ(state->plan().fingerprint(), plan.fingerprint());
  EXPECT_EQ(state->runtime()->plan_fingerprint(), plan.fingerprint());
  EXPECT_EQ(state->runtime()->generation(), 9u);
  EXPECT_EQ(state->materialization()->shared_runtime(), state->runtime());
  EXPECT_EQ(state->materialization()->primary(), config.primary());
}

TEST_F(StateComponentsTest, PassesTheFactorysErrorOnAndAsksNoLaterTarget) {
  const auto config = ConfigOf("vulkan:0,vulkan:1,cpu");
  std::vector<std::uint8_t> owners = All(0);
  owners[1] = 1;
  owners[2] = 2;
  int calls = 0;
  const auto state = ExpertSplitStateComponents::Make(
      config, PlanOf(family_, config, owners), family_.stacks(),
      [&](TargetId target, const auto&) -> base::Result<std::unique_ptr<MoeExpertCompute>> {
        ++calls;
        if (target == TargetId(1)) return base::Fail(base::ErrorKind::kCapacity, "full");
        return std::make_unique<HotColdCompute>(std::vector<std::unique_ptr<MoeExpertCompute>>(),
                                                std::nullopt);
      });
  ASSERT_FALSE(state.has_value());
  EXPECT_EQ(state.error().kind, base::ErrorKind::kCapacity);
  EXPECT_EQ(state.error().message, "full");
  EXPECT_EQ(calls, 2);
}

TEST_F(StateComponentsTest, OnlyAPrimaryWithWholeLayersNeedsNoObject) {
  const auto make = [&](const std::string& list, std::vector<std::uint8_t> owners) {
    const auto config = ConfigOf(list);
    return ExpertSplitStateComponents::Make(
        config, PlanOf(family_, config, std::move(owners)), family_.stacks(),
        [&](TargetId target,
            const auto& materialization) -> base::Result<std::unique_ptr<MoeExpertCompute>> {
          if (target == TargetId(0)) return nullptr;
          return Loading()(target, materialization);
        });
  };
  const auto whole = make("vulkan:0,cpu", All(0));
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->compute().routed(), nullptr);
  EXPECT_TRUE(whole->compute().part_targets().empty());

  std::vector<std::uint8_t> layers = All(0);
  std::fill(layers.begin() + kFakeExperts, layers.end(), std::uint8_t{1});
  const auto spans = make("vulkan:0,vulkan:1,cpu", layers);
  ASSERT_TRUE(spans.has_value()) << spans.error().message;
  EXPECT_THAT(spans->compute().part_targets(), ElementsAre(TargetId(1)));

  std::vector<std::uint8_t> mixed = layers;
  mixed[0] = 1;
  const auto refused = make("vulkan:0,vulkan:1,cpu", mixed);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, base::ErrorKind::kInternal);
  EXPECT_THAT(refused.error().message, HasSubstr("vulkan:0 owns 4 units"));
  EXPECT_FALSE(make("worker(cpu),cpu", All(0)).has_value());
}

TEST_F(StateComponentsTest, RefusesAPlanForOtherTargets) {
  const auto config = ConfigOf("vulkan:0,cpu");
  const auto state = ExpertSplitStateComponents::Make(
      config, PlanOf(family_, ConfigOf("cuda:0,cpu"), All(1)), family_.stacks(), Loading());
  ASSERT_FALSE(state.has_value());
  EXPECT_EQ(state.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(state.error().message, HasSubstr("cuda:0,cpu and not for vulkan:0,cpu"));
}

TEST_F(StateComponentsTest, RefusesAPlanForExpertsOfOtherSizes) {
  const auto config = ConfigOf("vulkan:0,cpu");
  ExpertStacks stacks = family_.stacks();
  stacks[1].down.bytes_per_expert -= base::Bytes(4);
  const auto state =
      ExpertSplitStateComponents::Make(config, PlanOf(family_, config, All(1)), stacks, Loading());
  ASSERT_FALSE(state.has_value());
  EXPECT_EQ(state.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(state.error().message, HasSubstr("target cpu"));
}

}  // namespace
}  // namespace moe
