// One model over every kind of layout: the numbers are those of the single-target run, and every
// owner really computes. Two Vulkan devices of the software driver stand in for GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "layout_fixture.h"
#include "moe/compute/hot_cold_compute.h"
#include "moe/compute/multi_compute.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace test {
namespace {

// tiny: 4 layers of 8 experts, top-2 unless told otherwise by tools/make_model.py.
struct Layout {
  std::string targets;
  moe::PlacementPath path;
};

class LayoutTest : public ::testing::TestWithParam<Layout> {};

// Sizes are bytes of units; a unit of tiny-f32 has 3 * 256 * 256 * 4 bytes = 768 KiB.
const Layout kLayouts[] = {
    {"cpu", moe::PlacementPath::kSingle},
    {"vulkan:0", moe::PlacementPath::kSingle},
    {"vulkan:0=9MiB,cpu", moe::PlacementPath::kHotCold},
    {"vulkan:0=6MiB,vulkan:1=9MiB,cpu", moe::PlacementPath::kMulti},
    {"cpu=9MiB,vulkan:0", moe::PlacementPath::kHotCold},
    {"vulkan:0=0,vulkan:1=9MiB,cpu", moe::PlacementPath::kMulti},
    {"vulkan:0=0,cpu", moe::PlacementPath::kHotCold},
};

TEST_P(LayoutTest, GivesTheNumbersOfTheSingleTargetRun) {
  const LoadedLayout loaded = RunLayout(ModelPath("tiny-f32"), GetParam().targets);
  ASSERT_NE(loaded.model, nullptr);
  EXPECT_EQ(loaded.model->path(), GetParam().path);
  const std::vector<float> reference = SingleTarget(ModelPath("tiny-f32"));
  EXPECT_TRUE(LogitsAgree(reference, loaded.logits, loaded.model->backend().vocab_size(),
                          {.median_nmse = 1e-5, .row_nmse = 1e-4}));

  // No layout passes by leaving an owner idle or by computing a row twice.
  std::uint64_t rows = 0;
  for (const cli::TargetUse& use : loaded.model->Use()) {
    EXPECT_EQ(use.rows > 0, use.units > 0) << use.name;
    rows += use.rows;
  }
  const moe::ExpertSplitPlan& plan = *loaded.model->plan();
  EXPECT_EQ(rows, kLayoutTokens * loaded.model->experts_per_token() * plan.num_layers());
}

// Whichever object or graph computes a pair, the recording has seen the router choose it.
TEST_P(LayoutTest, RecordedCountsAreTheRowsThatEachOwnerComputed) {
  const auto model = LoadLayout(ModelPath("tiny-f32"), GetParam().targets);
  ASSERT_NE(model, nullptr);
  moe::RoutingRecorder recorder(model->identity(), "x");
  model->RecordRouting(&recorder);
  const std::vector<float> logits = LayoutLogits(model->backend());
  const moe::RoutingProfile profile = recorder.Snapshot();
  EXPECT_EQ(profile.num_tokens(), kLayoutTokens);
  const moe::ExpertSplitPlan& plan = *model->plan();
  std::vector<std::uint64_t> rows(plan.targets().size(), 0);
  for (std::size_t l = 0; l < plan.num_layers(); ++l) {
    for (std::size_t e = 0; e < plan.num_experts(); ++e) {
      const moe::TargetId owner = plan.owner(moe::LayerId(l), moe::ExpertId(e));
      rows[owner.index()] += profile.counts()[l][e];
    }
  }
  const std::vector<cli::TargetUse> use = model->Use();
  for (std::size_t t = 0; t < rows.size(); ++t) EXPECT_EQ(rows[t], use[t].rows) << use[t].name;

  // Nothing is counted that was not asked for, or that did not come to an end.
  model->RecordRouting(nullptr);
  const model::BatchRow row{.token = 1, .slot = 0, .position = kLayoutTokens};
  EXPECT_TRUE(model->backend().Evaluate({&row, 1}, {}));
  model->RecordRouting(&recorder);
  EXPECT_FALSE(model->backend().Evaluate({&row, 1}, {})) << "the position is taken";
  EXPECT_EQ(recorder.Snapshot().num_tokens(), kLayoutTokens);
}

TEST(LayoutRecordingTest, ChangesNoBit) {
  const auto model = LoadLayout(ModelPath("tiny-f32"), "cpu");
  ASSERT_NE(model, nullptr);
  moe::RoutingRecorder recorder(model->identity(), "x");
  model->RecordRouting(&recorder);
  EXPECT_EQ(LayoutLogits(model->backend()), SingleTarget(ModelPath("tiny-f32")));
}

TEST(LayoutRecordingTest, AnAbandonedStepCountsNothing) {
  const auto model = LoadLayout(ModelPath("tiny-f32"), "cpu");
  ASSERT_NE(model, nullptr);
  moe::RoutingRecorder recorder(model->identity(), "x");
  model->RecordRouting(&recorder);
  std::stop_source stop;
  stop.request_stop();
  const model::BatchRow row{.token = 1, .slot = 0, .position = 0};
  EXPECT_FALSE(model->backend().Evaluate({&row, 1}, stop.get_token()));
  EXPECT_EQ(recorder.Snapshot().num_tokens(), 0u);
}

TEST_P(LayoutTest, OnlyTheMultiPathHasAMultiTargetObject) {
  const auto model = LoadLayout(ModelPath("tiny-f32"), GetParam().targets);
  ASSERT_NE(model, nullptr);
  const moe::MoeExpertCompute* routed = model->routed();
  const bool multi = dynamic_cast<const moe::MultiTargetCompute*>(routed) != nullptr;
  EXPECT_EQ(multi, GetParam().path == moe::PlacementPath::kMulti);
  if (GetParam().path == moe::PlacementPath::kSingle) {
    EXPECT_EQ(dynamic_cast<const moe::HotColdCompute*>(routed), nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutTest, ::testing::ValuesIn(kLayouts), [](const auto& test) {
  std::string name;
  for (const char c : test.param.targets) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
});

// Against the F32 model of the same weights: owners that round activations differently each have
// an error of their own, and mixing them makes none worse.
TEST(LayoutNumbersTest, SplittingQuantisedExpertsAddsNoError) {
  const std::vector<float> exact = SingleTarget(ModelPath("tiny-q8_0-exact"));
  const std::vector<float> single = SingleTarget(ModelPath("tiny-q8_0"));
  const LoadedLayout split = RunLayout(ModelPath("tiny-q8_0"), "vulkan:0=2MiB,vulkan:1=2MiB,cpu");
  ASSERT_NE(split.model, nullptr);
  const std::size_t vocab_size = split.model->backend().vocab_size();
  const LogitsComparison of_single = CompareLogits(exact, single, vocab_size, 1e-1);
  const LogitsComparison of_split = CompareLogits(exact, split.logits, vocab_size, 1e-1);
  EXPECT_LE(of_split.median_nmse, 1.2 * of_single.median_nmse)
      << "split: " << of_split.Describe() << "\nsingle: " << of_single.Describe();
}

}  // namespace
}  // namespace test
