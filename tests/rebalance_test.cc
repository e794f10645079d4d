// Experts that follow the traffic: the demo model with the placement that one of its texts asks for
// reads the other one, and its experts move meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "model/placed_backend.h"
#include "model/registry.h"
#include "model/text/vocabulary.h"
#include "moe/compute/expert_loader.h"
#include "moe/profile/routing_recorder.h"
#include "moe/rebalance/rebalancer.h"

namespace test {
namespace {

const std::string kFolder = EXPERT_SPLIT_SOURCE_DIR "/models/";
constexpr std::size_t kStep = 32;  // tokens
constexpr std::uint32_t kContext = 512;

// The demo model on two CPU owners, the first of which may own a quarter of the experts.
class MovingModel {
 public:
  explicit MovingModel(const moe::RoutingProfile* profile, bool movable) {
    auto file = gg::GgufFile::Open(kFolder + "demo.gguf");
    EXPECT_TRUE(file);
    file_ = std::make_unique<gg::GgufFile>(std::move(*file));
    description_ = std::make_unique<model::ModelDescription>(*model::DescribeModel(*file_));
    const moe::ModelShape& shape = description_->shape;
    const auto devices = *gg::DiscoverDevices();
    const gg::Device cpu = *gg::FindDevice(devices, "cpu");
    config_ = std::make_unique<moe::ExpertSplitTargetConfig>(
        *moe::ExpertSplitTargetConfig::Parse("cpu:0=25%,cpu:1"));
    hotness_ = std::make_unique<moe::Hotness>(profile != nullptr ? moe::HotnessOf(*profile, shape)
                                                                 : moe::Hotness::Uniform(shape));
    plan_ = std::make_unique<moe::ExpertSplitPlan>(PlanFor(*hotness_));
    auto backend = model::LoadDense({.file = file_.get(),
                                     .primary = cpu,
                                     .cpu = cpu,
                                     .context = {.context = kContext, .batch_rows = kStep},
                                     .repack = moe::Repack::kOff,
                                     .packing_memory = {},
                                     .log = {},
                                     .control = {}});
    EXPECT_TRUE(backend) << backend.error().message;
    backend_ = std::move(*backend);
    auto loaded = moe::LoadExperts({.config = config_.get(),
                                    .shape = &shape,
                                    .hotness = hotness_.get(),
                                    .plan = plan_.get(),
                                    .stacks = &description_->stacks,
                                    .weights = backend_->expert_weights(),
                                    .devices = {cpu, cpu},
                                    .max_rows = kStep,
                                    .movable = movable});
    EXPECT_TRUE(loaded) << loaded.error().message;
    loaded_ = std::move(*loaded);
    if (movable) {
      backend_->SetExperts(loaded_.failover);
    } else {
      backend_->SetExperts({loaded_.components, loaded_.components->compute().routed()});
    }
    recorder_ = std::make_unique<moe::RoutingRecorder>(shape.identity, "text");
    backend_->RecordRouting(recorder_.get());
  }

  moe::ExpertSplitPlan PlanFor(const moe::Hotness& hotness) const {
    const moe::ModelShape& shape = description_->shape;
    const base::Bytes quarter(shape.total_bytes().count() / 4);
    return *moe::ExpertSplitPlan::Make(
        {.shape = &shape, .hotness = &hotness, .targets = {{"cpu:0", quarter}, {"cpu:1", {}}}});
  }

  // Computes `tokens`, which must be one step, at the end of what came before; begins anew where
  // the context ends.
  std::vector<float> Step(std::span<const model::Token> tokens) {
    if (backend_->slot_length(0) + tokens.size() > kContext) backend_->ClearSlot(0);
    std::vector<model::BatchRow> rows;
    for (const model::Token token : tokens) {
      rows.push_back(
          {.token = token,
           .slot = 0,
           .position = static_cast<std::uint32_t>(backend_->slot_length(0) + rows.size()),
           .wants_logits = true});
    }
    auto logits = backend_->Evaluate(rows);
    EXPECT_TRUE(logits) << logits.error().message;
    return logits ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  }

  std::uint64_t Pairs(std::size_t target) const {
    return loaded_.failover->TargetPairs(moe::TargetId(target));
  }
  const moe::ModelShape& shape() const { return description_->shape; }
  moe::RoutingRecorder& recorder() { return *recorder_; }
  moe::LoadedExperts& loaded() { return loaded_; }

 private:
  std::unique_ptr<gg::GgufFile> file_;
  std::unique_ptr<model::ModelDescription> description_;
  std::unique_ptr<moe::ExpertSplitTargetConfig> config_;
  std::unique_ptr<moe::Hotness> hotness_;
  std::unique_ptr<moe::ExpertSplitPlan> plan_;
  std::unique_ptr<moe::RoutingRecorder> recorder_;
  std::unique_ptr<model::PlacedBackend> backend_;
  moe::LoadedExperts loaded_;
};

// Whole steps of the text's beginning.
std::vector<model::Token> Tokens(const std::string& domain, std::size_t num_steps) {
  auto text = base::ReadFile(kFolder + "heldout-" + domain + ".txt", base::Bytes::MiB(1));
  EXPECT_TRUE(text);
  const auto vocabulary = model::Vocabulary::Load(kFolder + "demo.gguf");
  EXPECT_TRUE(vocabulary);
  auto tokens = *vocabulary->Tokenize(text->substr(0, num_steps * kStep * 8), false);
  EXPECT_GE(tokens.size(), num_steps * kStep);
  tokens.resize(num_steps * kStep);
  return tokens;
}

moe::RoutingProfile ProfileOf(const std::vector<model::Token>& tokens) {
  MovingModel model(nullptr, /*movable=*/false);
  for (std::size_t at = 0; at < tokens.size(); at += kStep) {
    model.Step(std::span(tokens).subspan(at, kStep));
  }
  return model.recorder().Snapshot();
}

// Pairs of experts of each layer, drawn at random, that change places whatever the traffic is.
std::vector<moe::UnitExchange> AnyPairs(const moe::MovableUnits& units, std::size_t num_experts,
                                        std::size_t seed) {
  std::vector<moe::UnitExchange> pairs;
  const std::size_t num_layers = units.owners.size() / num_experts;
  for (std::size_t l = 0; l < num_layers; ++l) {
    const auto* owners = units.owners.data() + l * num_experts;
    for (std::size_t i = 0; i < num_experts * num_experts; ++i) {
      const std::size_t first = (seed + i) % num_experts;
      const std::size_t second = (seed * 5 + i / num_experts) % num_experts;
      if (owners[first] == owners[second]) continue;
      pairs.push_back({moe::LayerId(l), moe::ExpertId(first), moe::ExpertId(second)});
      break;
    }
  }
  return pairs;
}

TEST(RebalanceTest, MovesBeforeEveryStepChangeNoBitOfTheLogits) {
  constexpr std::size_t kSteps = 8;
  const std::vector<model::Token> tokens = Tokens("sqlite", kSteps);
  MovingModel still(nullptr, /*movable=*/false);
  MovingModel moving(nullptr, /*movable=*/true);
  moe::PlacementMover& mover = *moving.loaded().mover;
  for (std::size_t step = 0; step < kSteps; ++step) {
    const auto part = std::span(tokens).subspan(step * kStep, kStep);
    base::Result<base::Bytes> moved;
    std::atomic<bool> done = false;
    std::jthread exchanging([&](const std::stop_token& stop) {
      moved = mover.Exchange(
          AnyPairs(mover.units(), moving.shape().num_experts, step),
          std::make_shared<const moe::Hotness>(moe::Hotness::Uniform(moving.shape())), stop);
      done = true;
    });
    while (!done) mover.Step();
    exchanging.join();
    ASSERT_TRUE(moved) << moved.error().message;
    EXPECT_GT(*moved, base::Bytes());
    ASSERT_EQ(moving.Step(part), still.Step(part)) << "step " << step;
  }
  EXPECT_EQ(moving.loaded().failover->components()->runtime()->generation(), kSteps);
}

TEST(RebalanceTest, TheShareOnTheFirstTargetRecoversWhenTheTextChanges) {
  constexpr std::size_t kBefore = 8;   // steps of the text that the placement is for
  constexpr std::size_t kAfter = 120;  // of the other one
  constexpr std::size_t kTime = 40;    // steps that moving may take
  const std::vector<model::Token> other = Tokens("sqlite", kAfter);
  const moe::RoutingProfile bible = ProfileOf(Tokens("kjv", 96));
  MovingModel model(&bible, /*movable=*/true);
  const double best = model.PlanFor(moe::HotnessOf(ProfileOf(other), model.shape()))
                          .expected_share(moe::TargetId(0));

  // A share each step.
  std::vector<double> shares;
  const auto step = [&](std::span<const model::Token> tokens) {
    const std::uint64_t first = model.Pairs(0);
    const std::uint64_t second = model.Pairs(1);
    model.Step(tokens);
    const auto on_first = static_cast<double>(model.Pairs(0) - first);
    shares.push_back(on_first / (on_first + static_cast<double>(model.Pairs(1) - second)));
  };
  const auto mean = [&](std::size_t count) {
    count = std::min(count, shares.size());
    return std::accumulate(shares.end() - static_cast<std::ptrdiff_t>(count), shares.end(), 0.0) /
           static_cast<double>(count);
  };
  moe::Rebalancer rebalancer({.shape = &model.shape(),
                              .routed = &model.recorder(),
                              .mover = model.loaded().mover.get(),
                              .costs = {},
                              .rules = {.half_life_tokens = 1024},
                              .bytes_per_second = base::Bytes::GiB(1),
                              .period = std::chrono::milliseconds(1),
                              .log = {}});
  const std::vector<model::Token> own = Tokens("kjv", kBefore);
  for (std::size_t at = 0; at < own.size(); at += kStep) step(std::span(own).subspan(at, kStep));
  std::printf("share on the first target: %.3f before; %.3f is the other text's best\n",
              mean(kBefore), best);
  shares.clear();
  for (std::size_t i = 0; i < kAfter; ++i) {
    // As an engine that waits for nobody: a move may end beside any step.
    rebalancer.Step();
    step(std::span(other).subspan(i * kStep, kStep));
    if (shares.size() % 8 == 0) {
      std::printf("%5zu tokens  %.3f  %s\n", shares.size() * kStep, mean(8),
                  std::string(static_cast<std::size_t>(60 * mean(8)), '#').c_str());
    }
    if (shares.size() == 4) {
      EXPECT_LT(mean(4), 0.9 * best) << "the texts need other experts";
    }
  }
  EXPECT_GE(mean(kAfter - kTime), 0.9 * best);
  EXPECT_GT(rebalancer.counts().units, 0U);
  EXPECT_EQ(rebalancer.counts().failures, 0U);
}

}  // namespace
}  // namespace test
