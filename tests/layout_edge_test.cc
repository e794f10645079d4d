// What a layout can do wrong without its units adding up wrongly: layers that one target has alone,
// owners without a row, the shared expert, a wrong local id. Two Vulkan devices of the software
// driver stand in for GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "gg/gguf_file.h"
#include "layout_fixture.h"
#include "model/placed_backend.h"
#include "moe/plan/plan_file.h"
#include "support/logits_compare.h"

namespace test {
namespace {

constexpr LogitsTolerance kTolerance = {.median_nmse = 1e-5, .row_nmse = 1e-4};
constexpr std::size_t kLayers = 4;
constexpr std::size_t kExperts = 8;
constexpr std::size_t kUsed = 2;

std::string TinyPath() { return ModelPath("tiny-f32"); }

void ExpectNumbersOfTheSingleTarget(const std::string& path, const LoadedLayout& loaded) {
  ASSERT_NE(loaded.model, nullptr);
  EXPECT_TRUE(LogitsAgree(SingleTarget(path), loaded.logits, loaded.model->backend().vocab_size(),
                          kTolerance));
}

std::uint64_t AllRows(const cli::LoadedModel& model) {
  std::uint64_t rows = 0;
  for (const cli::TargetUse& use : model.Use()) rows += use.rows;
  return rows;
}

std::size_t UnitsOf(const moe::ExpertSplitPlan& plan, std::size_t layer, std::size_t target) {
  return static_cast<std::size_t>(std::ranges::count(
      plan.owners().subspan(layer * kExperts, kExperts), static_cast<std::uint8_t>(target)));
}

// A plan file for the tiny model whose owners, by layer, are those of `layers`.
std::string PlanFile(const std::string& targets, const std::vector<std::vector<int>>& layers) {
  const cli::Session session;
  auto placed = cli::PlaceModel(session, {.model = TinyPath(), .targets = targets}, {});
  if (!placed) {
    ADD_FAILURE() << placed.error().message;
    return {};
  }
  std::vector<std::uint8_t> owners;
  for (const std::vector<int>& layer : layers)
    owners.insert(owners.end(), layer.begin(), layer.end());
  const auto listed = placed->plan.targets();
  auto plan = moe::ExpertSplitPlan::FromOwners(placed->description.shape, placed->hotness,
                                               {listed.begin(), listed.end()}, owners);
  if (!plan) {
    ADD_FAILURE() << plan.error().message;
    return {};
  }
  std::string path = ::testing::TempDir() + "layout_edge_plan.json";
  EXPECT_TRUE(moe::WritePlanFile(*plan, path));
  return path;
}

TEST(LayoutEdgeTest, WholeLayersOnOneTargetAndTargetsWithNoneInALayer) {
  const std::string targets = "vulkan:0=9MiB,vulkan:1=7MiB,cpu";
  const LoadedLayout loaded = RunLayout(TinyPath(), targets, {.policy = "layers"});
  ExpectNumbersOfTheSingleTarget(TinyPath(), loaded);
  ASSERT_NE(loaded.model, nullptr);
  const moe::ExpertSplitPlan& plan = *loaded.model->plan();
  std::vector<bool> has_a_whole_layer(3, false);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t t = 0; t < 3; ++t) {
      if (UnitsOf(plan, layer, t) == kExperts) has_a_whole_layer[t] = true;
    }
  }
  EXPECT_EQ(has_a_whole_layer, std::vector<bool>(3, true)) << plan.Summary();
  EXPECT_EQ(AllRows(*loaded.model), kLayoutTokens * kUsed * kLayers);
}

TEST(LayoutEdgeTest, EveryMixtureOfOwnersWithinALayer) {
  const std::string targets = "vulkan:0=9MiB,vulkan:1=9MiB,cpu";
  const std::string plan = PlanFile(targets, {{1, 1, 1, 1, 1, 1, 1, 1},    // one that is not first
                                              {0, 2, 0, 2, 0, 2, 0, 2},    // none on vulkan:1
                                              {2, 1, 2, 1, 2, 1, 2, 2},    // none on the primary
                                              {0, 0, 0, 0, 0, 0, 0, 1}});  // none on the CPU
  const LoadedLayout loaded = RunLayout(TinyPath(), targets, {.plan = plan});
  std::filesystem::remove(plan);
  ExpectNumbersOfTheSingleTarget(TinyPath(), loaded);
  ASSERT_NE(loaded.model, nullptr);
  EXPECT_EQ(loaded.model->path(), moe::PlacementPath::kMulti);
  EXPECT_EQ(AllRows(*loaded.model), kLayoutTokens * kUsed * kLayers);
  for (const cli::TargetUse& use : loaded.model->Use()) EXPECT_GT(use.rows, 0U) << use.name;
}

TEST(LayoutEdgeTest, AnOwnerThatGetsNoRowOfABatch) {
  // One unit each for the devices: a step of one token seldom picks it.
  for (const std::string targets : {"vulkan:0=1MiB,vulkan:1=1MiB,cpu", "cpu=1MiB,vulkan:0"}) {
    const auto model = LoadLayout(TinyPath(), targets);
    ASSERT_NE(model, nullptr);
    std::size_t idle_steps = 0, busy_steps = 0;
    std::vector<cli::TargetUse> before = model->Use();
    const auto count = [&](std::size_t) {
      const std::vector<cli::TargetUse> now = model->Use();
      for (std::size_t t = 0; t < now.size(); ++t) {
        if (now[t].units == 1) ++(now[t].rows == before[t].rows ? idle_steps : busy_steps);
      }
      before = now;
    };
    const std::vector<float> logits = LayoutLogits(model->backend(), count);
    EXPECT_GT(idle_steps, 0U) << targets;
    EXPECT_GT(busy_steps, 0U) << targets;
    EXPECT_TRUE(
        LogitsAgree(SingleTarget(TinyPath()), logits, model->backend().vocab_size(), kTolerance))
        << targets;
  }
}

// A copy of the tiny model in which the tensors whose names end in `suffix` are zeros.
std::string WithZeros(std::string_view suffix) {
  auto file = gg::GgufFile::Open(TinyPath());
  auto content = base::ReadFile(TinyPath(), base::Bytes::MiB(64));
  if (!file || !content) {
    ADD_FAILURE() << "cannot read " << TinyPath();
    return {};
  }
  std::size_t changed = 0;
  for (const gg::GgufTensor& tensor : file->tensors()) {
    if (!tensor.name.ends_with(suffix)) continue;
    std::memset(content->data() + tensor.offset, 0, tensor.bytes.count());
    ++changed;
  }
  EXPECT_EQ(changed, kLayers);
  std::string path = ::testing::TempDir() + "layout_edge" + std::string(suffix) + ".gguf";
  EXPECT_TRUE(base::WriteFileAtomically(path, *content));
  return path;
}

// Without what the routed experts add, every layout must give what the dense part with one shared
// expert gives: a second one, or a missing one, would show whole.
TEST(LayoutEdgeTest, TheSharedExpertCountsOnce) {
  const std::string path = WithZeros(".ffn_down_exps.weight");
  const std::string without_shared = WithZeros(".ffn_down_shexp.weight");
  const std::vector<float> reference = SingleTarget(path);
  for (const std::string targets :
       {"vulkan:0", "vulkan:0=9MiB,cpu", "vulkan:0=6MiB,vulkan:1=9MiB,cpu", "cpu=9MiB,vulkan:0",
        "vulkan:0=0,vulkan:1=9MiB,cpu"}) {
    const LoadedLayout loaded = RunLayout(path, targets);
    ExpectNumbersOfTheSingleTarget(path, loaded);
  }
  // It matters: the model without it has other logits.
  EXPECT_GT(CompareLogits(SingleTarget(TinyPath()), SingleTarget(without_shared),
                          reference.size() / kLayoutTokens, 1)
                .median_nmse,
            1e-2);
  std::filesystem::remove(path);
  std::filesystem::remove(without_shared);
}

// What an owner computes when the local id of `expert` in `layer` is the one of `instead`.
class WrongLocalId final : public moe::MoeExpertCompute {
 public:
  WrongLocalId(moe::MoeExpertCompute* right, moe::LayerId layer, int expert, int instead)
      : right_(right), layer_(layer), expert_(expert), instead_(instead) {}

  base::Result<void> Begin(const moe::ExpertBatch& batch) override {
    ids_.assign(batch.ids, batch.ids + batch.num_rows * batch.num_used);
    if (batch.layer == layer_) std::ranges::replace(ids_, expert_, instead_);
    moe::ExpertBatch changed = batch;
    changed.ids = ids_.data();
    return right_->Begin(changed);
  }
  void Prepare(moe::TeamThread thread) override { right_->Prepare(thread); }
  void Expand(moe::TeamThread thread) override { right_->Expand(thread); }
  void Reduce(moe::TeamThread thread) override { right_->Reduce(thread); }
  base::Result<void> Finish() override { return right_->Finish(); }
  moe::ExpertPart part(std::size_t index) const override { return right_->part(index); }
  std::size_t num_parts() const override { return right_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override { return right_->num_pairs(index); }

 private:
  moe::MoeExpertCompute* right_;
  moe::LayerId layer_;
  int expert_, instead_;
  std::vector<std::int32_t> ids_;
};

// The comparison that every layout passes is one that a single wrong local id fails.
TEST(LayoutEdgeTest, OneWrongLocalIdIsSeen) {
  const std::string targets = "vulkan:0=9MiB,vulkan:1=9MiB,cpu";
  const std::vector<int> layer = {0, 0, 0, 1, 1, 1, 2, 2};
  const std::string plan = PlanFile(targets, {layer, layer, layer, layer});
  const auto model = LoadLayout(TinyPath(), targets, {.plan = plan});
  std::filesystem::remove(plan);
  ASSERT_NE(model, nullptr);
  ASSERT_NE(model->routed(), nullptr);
  auto& backend = dynamic_cast<model::PlacedBackend&>(model->backend());
  const auto agrees = [&](const std::shared_ptr<moe::MoeExpertCompute>& compute) {
    backend.ClearSlot(0);
    backend.SetExperts(compute);
    return LogitsAgree(SingleTarget(TinyPath()), LayoutLogits(backend), backend.vocab_size(),
                       kTolerance);
  };
  // Not owned by this pointer: the model has it.
  const std::shared_ptr<moe::MoeExpertCompute> right(std::shared_ptr<void>(), model->routed());
  EXPECT_TRUE(agrees(right));
  // The last layer, so that nothing behind it spreads the fault to more rows.
  for (const int expert : {0, 3, 6}) {
    EXPECT_FALSE(agrees(std::make_shared<WrongLocalId>(model->routed(), moe::LayerId(kLayers - 1),
                                                       expert, expert + 1)))
        << "expert " << expert << " of target " << layer[static_cast<std::size_t>(expert)];
  }
  EXPECT_TRUE(agrees(right));
}

}  // namespace
}  // namespace test
