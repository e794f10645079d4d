// A second model family through the whole substrate, from a file to the sum of its experts: no part
// of it may know more of a family than its description.
#include "support/fake_family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gg/gguf_file.h"
#include "moe/compute/reference_compute.h"
#include "moe/compute/state_components.h"
#include "moe/plan/placement_path.h"
#include "moe/plan/plan_file.h"
#include "moe/profile/profile.h"
#include "moe/target/capacity.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

constexpr std::array kFamilies = {test_support::kFakeFamily};

// The model as a file whose tensors all hold random floats.
gg::GgufFile MakeFile(const std::string& path, const test_support::FakeModelOptions& options) {
  std::string content = test_support::FakeModelBytes(options).Build();
  const auto parsed = gg::GgufFile::Parse(test_support::AsBytes(content), path);
  EXPECT_TRUE(parsed);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (std::size_t at = parsed->tensors()[0].offset; at + 4 <= content.size(); at += 4) {
    content.replace(at, 4, test_support::Raw(distribution(random)));
  }
  std::ofstream(path, std::ios::binary) << content;
  auto file = gg::GgufFile::Open(path);
  EXPECT_TRUE(file) << file.error().message;
  return *std::move(file);
}

std::vector<float> Floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Three matrices of each expert of each layer, by whatever numbers it has there.
class StackedWeights : public FloatExpertWeights {
 public:
  std::size_t n_ff() const override { return test_support::FakeModelOptions().n_ff; }
  std::span<const float> Gate(LayerId layer, ExpertId expert) const override {
    return Get(layer, expert, ExpertProjection::kGate);
  }
  std::span<const float> Up(LayerId layer, ExpertId expert) const override {
    return Get(layer, expert, ExpertProjection::kUp);
  }
  std::span<const float> Down(LayerId layer, ExpertId expert) const override {
    return Get(layer, expert, ExpertProjection::kDown);
  }

 protected:
  void Put(LayerId layer, std::size_t number, ExpertProjection projection,
           std::vector<float> values) {
    if (projection == ExpertProjection::kGateUp) {
      const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
      matrices_[{layer.index(), number, ExpertProjection::kUp}].assign(half, values.end());
      values.resize(values.size() / 2);
      projection = ExpertProjection::kGate;
    }
    matrices_[{layer.index(), number, projection}] = std::move(values);
  }
  virtual std::size_t Number(LayerId layer, ExpertId expert) const = 0;

 private:
  std::span<const float> Get(LayerId layer, ExpertId expert, ExpertProjection projection) const {
    return matrices_.at({layer.index(), Number(layer, expert), projection});
  }

  std::map<std::tuple<std::size_t, std::size_t, ExpertProjection>, std::vector<float>> matrices_;
};

// Straight from the stacks of the description, by the router's ids.
class FileWeights final : public StackedWeights {
 public:
  FileWeights(const gg::GgufFile& file, const model::ModelDescription& description) {
    for (std::size_t l = 0; l < description.stacks.size(); ++l) {
      const LayerStacks& stacks = description.stacks[l];
      for (std::size_t e = 0; e < description.shape.num_experts; ++e) {
        const auto put = [&](const ExpertStack& stack, ExpertProjection projection) {
          const std::size_t bytes = stack.bytes_per_expert.count();
          Put(LayerId(l), e, projection,
              Floats(file.shards()[stack.shard].bytes().subspan(stack.offset + e * bytes, bytes)));
        };
        put(stacks.gate, stacks.up ? ExpertProjection::kGate : ExpertProjection::kGateUp);
        if (stacks.up) put(*stacks.up, ExpertProjection::kUp);
        put(stacks.down, ExpertProjection::kDown);
      }
    }
  }

 private:
  std::size_t Number(LayerId, ExpertId expert) const override { return expert.index(); }
};

// What a target's load list brings it, by its local ids.
class LoadedWeights final : public StackedWeights {
 public:
  LoadedWeights(const gg::GgufFile& file, const ExpertSplitMaterialization& materialization,
                TargetId target)
      : runtime_(materialization.shared_runtime()) {
    for (const ExpertSlice& slice : materialization.load(target).slices) {
      Put(slice.layer, slice.local.index(), slice.projection,
          Floats(file.shards()[slice.shard].bytes().subspan(slice.offset, slice.bytes.count())));
    }
  }

 private:
  std::size_t Number(LayerId layer, ExpertId expert) const override {
    return runtime_->place(layer, expert).local.index();
  }

  std::shared_ptr<const ExpertSplitRuntime> runtime_;
};

class TwoCards final : public MemoryProbe {
 public:
  std::optional<TargetMemory> Target(const ExpertSplitTarget& target) override {
    return TargetMemory{
        .free = base::Bytes::MiB(1), .total = base::Bytes::MiB(1), .device_id = target.name};
  }
  HostMemory Host() override {
    return {.available = base::Bytes::GiB(1), .total = base::Bytes::GiB(1)};
  }
  std::vector<std::string> PresentTargets() override { return {"cuda:0", "hip:0", "cpu"}; }
};

class FakeFamilyTest : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(model_path_);
    std::filesystem::remove(plan_path_);
  }

  base::Result<ExpertSplitPlan> Plan(const ExpertSplitTargetConfig& config,
                                     const Hotness& hotness) {
    TwoCards probe;
    auto capacities = ResolveCapacities({.config = &config,
                                         .unit_bytes = description_.shape.total_bytes(),
                                         .dense = {.weights = description_.dense.weights},
                                         .safety_margin = base::Bytes::KiB(900)},
                                        probe);
    if (!capacities) return base::Forward(capacities);
    PlanRequest request{.shape = &description_.shape, .hotness = &hotness};
    for (std::size_t i = 0; i < config.size(); ++i) {
      request.targets.push_back({config.targets()[i].name, (*capacities)[i]});
    }
    return ExpertSplitPlan::Make(request);
  }

  // All phases by one thread.
  std::vector<float> Run(MoeExpertCompute& compute, const ExpertBatch& batch) {
    EXPECT_TRUE(compute.Begin(batch));
    compute.Prepare({});
    compute.Expand({});
    compute.Reduce({});
    EXPECT_TRUE(compute.Finish());
    std::vector<ExpertPart> parts;
    for (std::size_t i = 0; i < compute.num_parts(); ++i) parts.push_back(compute.part(i));
    std::vector<float> out(batch.num_rows * batch.n_embd, NAN);
    CombineParts(batch, parts, {}, out.data());
    return out;
  }

  // Rows of each layer through the owners of `state` and straight from the file: the same bits.
  void ExpectExact(const ExpertSplitStateComponents& state) {
    const test_support::FakeModelOptions options;
    constexpr std::size_t kRows = 7;
    std::mt19937 random(2);
    std::uniform_real_distribution<float> distribution(-1, 1);
    std::vector<float> rows(kRows * options.n_embd);
    for (float& value : rows) value = distribution(random);
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto first = static_cast<std::int32_t>(row % options.num_experts);
      ids.insert(ids.end(), {first, (first + 2) % static_cast<std::int32_t>(options.num_experts)});
      weights.insert(weights.end(), {0.75F, 0.25F});
    }
    const auto direct = std::make_shared<FileWeights>(file_, description_);
    const auto config = *ExpertSplitTargetConfig::Parse("cpu");
    const auto plan = ExpertSplitPlan::Make({.shape = &description_.shape,
                                             .hotness = &state_hotness_,
                                             .targets = {{"cpu", std::nullopt}}});
    ASSERT_TRUE(plan);
    ReferenceCompute single(direct, ExpertSplitRuntime::Make(*plan), TargetId(0));
    for (std::size_t l = 0; l < description_.shape.layers.size(); ++l) {
      const ExpertBatch batch = {.layer = LayerId(l),
                                 .num_rows = kRows,
                                 .num_used = options.experts_per_token,
                                 .n_embd = options.n_embd,
                                 .rows = rows.data(),
                                 .ids = ids.data(),
                                 .weights = weights.data()};
      EXPECT_EQ(Run(*state.compute().routed(), batch), Run(single, batch)) << "layer " << l;
    }
  }

  const std::string model_path_ = ::testing::TempDir() + "fake_family_test.gguf";
  const std::string plan_path_ = ::testing::TempDir() + "fake_family_test.json";
  const gg::GgufFile file_ = MakeFile(model_path_, {});
  const model::ModelDescription description_ = *model::DescribeModel(file_, kFamilies);
  const Hotness state_hotness_ = Hotness::Uniform(description_.shape);
};

TEST_F(FakeFamilyTest, RunsFromItsFileThroughEveryStepToItsExpertsSum) {
  // Expert 5 is the hottest of every layer.
  auto profile =
      RoutingProfile::FromCounts(description_.shape.identity, "text", 100,
                                 std::vector<std::vector<std::uint64_t>>(
                                     description_.shape.layers.size(), {10, 20, 20, 30, 40, 80}));
  ASSERT_TRUE(profile) << profile.error().message;
  const Hotness hotness = HotnessOf(*profile, description_.shape);
  const auto config = ExpertSplitTargetConfig::Parse("cuda:0,hip:0=25%,cpu");
  ASSERT_TRUE(config);

  const auto planned = Plan(*config, hotness);
  ASSERT_TRUE(planned) << planned.error().message;
  for (std::size_t t = 0; t < 3; ++t) EXPECT_GT(planned->units(TargetId(t)), 0U) << t;
  for (std::size_t l = 0; l < description_.shape.layers.size(); ++l) {
    EXPECT_EQ(planned->owner(LayerId(l), ExpertId(5)), TargetId(0));
  }
  EXPECT_EQ(PathOf(*planned, *config), PlacementPath::kMulti);

  ASSERT_TRUE(WritePlanFile(*planned, plan_path_));
  const auto plan = ReadPlanFile(plan_path_, description_.shape, hotness);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->fingerprint(), planned->fingerprint());

  const auto state = ExpertSplitStateComponents::Make(
      *config, *plan, description_.stacks,
      [this](TargetId target,
             const std::shared_ptr<const ExpertSplitMaterialization>& materialization)
          -> base::Result<std::unique_ptr<MoeExpertCompute>> {
        return std::make_unique<ReferenceCompute>(
            std::make_shared<LoadedWeights>(file_, *materialization, target),
            materialization->shared_runtime(), target);
      });
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->compute().path(), PlacementPath::kMulti);
  EXPECT_EQ(state->compute().routed()->num_parts(), 3U);
  ExpectExact(*state);
}

TEST_F(FakeFamilyTest, ItsPlanIsRefusedForAnotherModelOfTheFamily) {
  const auto config = ExpertSplitTargetConfig::Parse("cuda:0,hip:0,cpu");
  const auto planned = Plan(*config, state_hotness_);
  ASSERT_TRUE(planned) << planned.error().message;
  ASSERT_TRUE(WritePlanFile(*planned, plan_path_));
  const std::string other_path = model_path_ + ".other";
  const gg::GgufFile other = MakeFile(other_path, {.num_blocks = 5});
  std::filesystem::remove(other_path);
  const auto description = model::DescribeModel(other, kFamilies);
  ASSERT_TRUE(description);
  const auto plan =
      ReadPlanFile(plan_path_, description->shape, Hotness::Uniform(description->shape));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(plan.error().message, HasSubstr("3 layers x 6 experts"));
  EXPECT_THAT(plan.error().message, HasSubstr("4 layers x 6 experts"));
}

}  // namespace
}  // namespace moe
