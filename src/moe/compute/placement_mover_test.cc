// Between CPUs every bit stays the same; between devices, which are two Vulkan devices of one
// software driver, the numbers stay right.
#include "moe/compute/placement_mover.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "moe/compute/expert_loader.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLayers = 3;
constexpr std::size_t kExperts = 8;
constexpr std::size_t kUsed = 2;

TestExpertShape LayeredShape(int type) {
  TestExpertShape shape = ShapeOfType(type);
  shape.num_layers = kLayers;
  shape.num_experts = kExperts;
  return shape;
}

class PlacementMoverTest : public ::testing::Test {
 protected:
  // Capacities in units; the last target takes the rest.
  void Load(const std::string& names, const std::vector<std::size_t>& capacities, int type,
            Repack repack = Repack::kOff) {
    model_ = std::make_unique<TestModel>(LayeredShape(type), kUsed);
    config_ = std::make_unique<ExpertSplitTargetConfig>(*ExpertSplitTargetConfig::Parse(names));
    hotness_ = std::make_unique<Hotness>(Hotness::Uniform(model_->shape));
    auto devices = gg::DiscoverDevices();
    ASSERT_TRUE(devices) << devices.error().message;
    PlanRequest request{.shape = &model_->shape, .hotness = hotness_.get()};
    std::vector<gg::Device> owners;
    for (std::size_t t = 0; t < config_->size(); ++t) {
      const std::string& name = config_->targets()[t].name;
      request.targets.push_back({.name = name, .capacity = {}});
      if (t < capacities.size()) {
        request.targets.back().capacity = model_->shape.unit_bytes(LayerId(0)) * capacities[t];
      }
      const auto* device = gg::FindDevice(*devices, name.starts_with("cpu") ? "cpu" : name);
      if (device == nullptr) GTEST_SKIP() << "needs " << name << " and a Vulkan driver";
      owners.push_back(*device);
    }
    auto plan = ExpertSplitPlan::Make(request);
    ASSERT_TRUE(plan) << plan.error().message;
    plan_ = std::make_unique<ExpertSplitPlan>(std::move(*plan));
    auto loaded = LoadExperts(
        {.config = config_.get(),
         .shape = &model_->shape,
         .hotness = hotness_.get(),
         .plan = plan_.get(),
         .stacks = &model_->stacks,
         .weights = model_->experts->weights(),
         .devices = std::move(owners),
         .max_rows = 8,
         .repack = repack,
         .pack_threads = 2,
         .movable = true,
         .packing_memory = {.available = [] { return base::Bytes::GiB(1); },
                            .allocate = [this](base::Bytes size) { return Allocate(size); }}});
    ASSERT_TRUE(loaded) << loaded.error().message;
    loaded_ = std::move(*loaded);
    ASSERT_NE(loaded_.mover, nullptr);
  }

  base::Result<kernels::PackedMemory> Allocate(base::Bytes size) {
    if (no_memory_) return base::Fail(base::ErrorKind::kCapacity, "no memory for {}", size.count());
    return kernels::PackedMemory::Allocate(size);
  }

  // Exchanges on a thread of its own; `between` is called before each Step.
  base::Result<base::Bytes> Exchange(const std::vector<UnitExchange>& exchanges,
                                     const std::function<void()>& between) {
    base::Result<base::Bytes> moved;
    std::atomic<bool> done = false;
    std::jthread thread([&](const std::stop_token& stop) {
      moved = loaded_.mover->Exchange(exchanges, std::make_shared<const Hotness>(*hotness_), stop);
      done = true;
    });
    while (!done) {
      between();
      loaded_.mover->Step(std::chrono::microseconds(0));
    }
    thread.join();
    return moved;
  }

  // One pair a layer, of owners as they are now, that no two targets of `fixed` have alone.
  std::vector<UnitExchange> RandomPairs(std::mt19937& random) {
    const MovableUnits units = loaded_.mover->units();
    std::vector<UnitExchange> pairs;
    while (pairs.size() < kLayers) {
      const LayerId layer(pairs.size());
      const ExpertId first(random() % kExperts);
      const ExpertId second(random() % kExperts);
      if (units.owners[layer.index() * kExperts + first.index()] ==
          units.owners[layer.index() * kExperts + second.index()]) {
        continue;
      }
      pairs.push_back({layer, first, second});
    }
    return pairs;
  }

  // [layers] the owners' outputs for some rows of every layer.
  std::vector<std::vector<float>> Outputs() {
    const TestBatch batch(model_->test_shape, 5, kUsed);
    std::vector<std::vector<float>> outputs;
    for (std::size_t l = 0; l < kLayers; ++l) {
      outputs.push_back(RunBatch(*loaded_.failover, batch.batch(LayerId(l)), 2));
    }
    return outputs;
  }

  void ExpectRightNumbers() {
    const TestBatch batch(model_->test_shape, 5, kUsed);
    const auto outputs = Outputs();
    for (std::size_t l = 0; l < kLayers; ++l) {
      const ExpertBatch one = batch.batch(LayerId(l));
      EXPECT_LT(Nmse(outputs[l], Reference(*model_->experts, one)), 1e-6) << "layer " << l;
    }
  }

  // Exchanges random pairs again and again, and expects `between` all the while.
  void ExpectExchanges(int rounds, const std::function<void()>& between) {
    std::mt19937 random(1);
    std::vector<std::uint8_t> owners(plan_->owners().begin(), plan_->owners().end());
    std::uint64_t generation = 0;
    for (int round = 0; round < rounds; ++round) {
      const std::vector<UnitExchange> pairs = RandomPairs(random);
      const auto moved = Exchange(pairs, between);
      ASSERT_TRUE(moved) << moved.error().message;
      EXPECT_GE(*moved, model_->shape.unit_bytes(LayerId(0)) * (2 * pairs.size()));
      for (const auto& [layer, first, second] : pairs) {
        std::swap(owners[layer.index() * kExperts + first.index()],
                  owners[layer.index() * kExperts + second.index()]);
      }
      const auto placed = loaded_.failover->components();
      EXPECT_TRUE(std::ranges::equal(placed->plan().owners(), owners));
      EXPECT_TRUE(std::ranges::equal(placed->plan().targets(), plan_->targets()));
      EXPECT_GT(placed->runtime()->generation(), generation);
      generation = placed->runtime()->generation();
      between();
    }
  }

  std::unique_ptr<TestModel> model_;
  std::unique_ptr<ExpertSplitTargetConfig> config_;
  std::unique_ptr<Hotness> hotness_;
  std::unique_ptr<ExpertSplitPlan> plan_;
  LoadedExperts loaded_;
  std::atomic<bool> no_memory_ = false;
};

class CpuExchangeTest : public PlacementMoverTest, public ::testing::WithParamInterface<Repack> {};

TEST_P(CpuExchangeTest, BetweenCpusNoBitChangesAtAnyStep) {
  Load("cpu:0,cpu:1", {7}, GGML_TYPE_Q4_K, GetParam());
  if (HasFatalFailure()) return;
  const auto before = Outputs();
  ExpectExchanges(12, [&] { EXPECT_EQ(Outputs(), before); });
}

INSTANTIATE_TEST_SUITE_P(Repack, CpuExchangeTest, ::testing::Values(Repack::kOff, Repack::kAuto));

TEST_F(PlacementMoverTest, ADeviceAndTheCpuExchangeUnits) {
  Load("vulkan:0,cpu", {9}, GGML_TYPE_F32);
  if (HasFatalFailure() || IsSkipped()) return;
  ExpectExchanges(2, [&] { ExpectRightNumbers(); });
}

TEST_F(PlacementMoverTest, ADeviceExchangesWithPackedUnits) {
  Load("vulkan:0,cpu", {9}, GGML_TYPE_F32, Repack::kAuto);
  if (HasFatalFailure() || IsSkipped()) return;
  ExpectExchanges(2, [&] { ExpectRightNumbers(); });
}

TEST_F(PlacementMoverTest, TwoDevicesExchangeUnitsByWayOfTheCpu) {
  Load("vulkan:0,vulkan:1,cpu", {9, 9}, GGML_TYPE_F32);
  if (HasFatalFailure() || IsSkipped()) return;
  ExpectExchanges(2, [&] { ExpectRightNumbers(); });
}

TEST_F(PlacementMoverTest, WithoutACpuNothingCanMove) {
  Load("vulkan:0,vulkan:1", {9, 15}, GGML_TYPE_F32);
  if (HasFatalFailure() || IsSkipped()) return;
  EXPECT_EQ(loaded_.mover->units().targets, (std::vector{Movable::kNo, Movable::kNo}));
}

TEST_F(PlacementMoverTest, WithoutMemoryThePlanStaysAsItIs) {
  Load("cpu:0,cpu:1", {7}, GGML_TYPE_Q4_K, Repack::kAuto);
  if (HasFatalFailure()) return;
  const auto before = Outputs();
  std::mt19937 random(1);
  no_memory_ = true;
  const auto moved = Exchange(RandomPairs(random), [] {});
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().kind, base::ErrorKind::kCapacity);
  EXPECT_THAT(moved.error().message, HasSubstr("no memory"));
  EXPECT_TRUE(std::ranges::equal(loaded_.failover->components()->plan().owners(), plan_->owners()));
  EXPECT_EQ(Outputs(), before);
  no_memory_ = false;
  EXPECT_TRUE(Exchange(RandomPairs(random), [] {}));
  EXPECT_EQ(Outputs(), before);
}

TEST_F(PlacementMoverTest, AnExchangeThatNobodyTakesIsCancelled) {
  Load("cpu:0,cpu:1", {7}, GGML_TYPE_Q4_K);
  if (HasFatalFailure()) return;
  std::mt19937 random(1);
  std::stop_source stop;
  stop.request_stop();
  const auto moved = loaded_.mover->Exchange(
      RandomPairs(random), std::make_shared<const Hotness>(*hotness_), stop.get_token());
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().kind, base::ErrorKind::kCancelled);
  EXPECT_FALSE(loaded_.mover->Step());
  EXPECT_EQ(loaded_.failover->components()->runtime()->generation(), 0U);
}

TEST_F(PlacementMoverTest, TimesAndPairsGoOnAcrossPlacements) {
  Load("cpu:0,cpu:1", {7}, GGML_TYPE_Q4_K);
  if (HasFatalFailure()) return;
  Outputs();
  const double busy = loaded_.failover->TargetTimes(TargetId(0)).busy_ms;
  std::mt19937 random(1);
  ASSERT_TRUE(Exchange(RandomPairs(random), [] {}));
  EXPECT_EQ(loaded_.failover->TargetTimes(TargetId(0)).busy_ms, busy);
  Outputs();
  const std::uint64_t pairs =
      loaded_.failover->TargetPairs(TargetId(0)) + loaded_.failover->TargetPairs(TargetId(1));
  EXPECT_EQ(pairs, 2 * kLayers * 5 * kUsed);
}

}  // namespace
}  // namespace moe
