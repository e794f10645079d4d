// Prefix reuse with real models: what goes on from a slot or a checkpoint is, to the bit, what a
// cold run computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "forward_fixture.h"
#include "support/test_models.h"

namespace {

using engine::GenerationRequest;
using Tokens = std::vector<model::Token>;
using std::chrono_literals::operator""s;

// Records the rows and logits of another backend.
class RecordingBackend final : public model::ModelBackend {
 public:
  explicit RecordingBackend(model::ModelBackend& backend) : backend_(backend) {}

  std::size_t num_slots() const override { return backend_.num_slots(); }
  std::size_t context_length() const override { return backend_.context_length(); }
  std::size_t max_batch_rows() const override { return backend_.max_batch_rows(); }
  std::size_t vocab_size() const override { return backend_.vocab_size(); }
  std::size_t slot_length(std::uint32_t slot) const override { return backend_.slot_length(slot); }
  base::Result<std::span<const float>> Evaluate(std::span<const model::BatchRow> rows,
                                                std::stop_token stop) override {
    if (steps_left > 0 && --steps_left == 0 && victim != nullptr) victim.load()->Cancel();
    auto answer = backend_.Evaluate(rows, stop);
    num_rows += rows.size();
    if (answer) logits.insert(logits.end(), answer->begin(), answer->end());
    return answer;
  }
  void ClearSlot(std::uint32_t slot) override { backend_.ClearSlot(slot); }
  base::Result<void> CopySlot(std::uint32_t from, std::uint32_t to) override {
    return backend_.CopySlot(from, to);
  }
  base::Result<std::unique_ptr<model::SlotCheckpoint>> SaveSlot(std::uint32_t slot) override {
    return backend_.SaveSlot(slot);
  }
  base::Result<void> RestoreSlot(const model::SlotCheckpoint& checkpoint, std::uint32_t from,
                                 std::uint32_t to) override {
    return backend_.RestoreSlot(checkpoint, from, to);
  }
  void SetThreads(std::size_t count) override { backend_.SetThreads(count); }
  std::uint64_t graphs_built() const override { return backend_.graphs_built(); }
  std::vector<model::ExpertCounter> expert_counters() const override {
    return backend_.expert_counters();
  }
  void TimeNodes(bool on) override { backend_.TimeNodes(on); }
  std::vector<model::NodeTime> node_times() const override { return backend_.node_times(); }

  // Of the inference thread; read them between requests.
  std::vector<float> logits;
  std::size_t num_rows = 0;
  // Cancels `victim` in the step with this number, from 1.
  std::atomic<int> steps_left = 0;
  std::atomic<engine::Generation*> victim = nullptr;

 private:
  model::ModelBackend& backend_;
};

struct Outcome {
  Tokens tokens;
  std::string text;
  std::vector<float> logits;
  std::size_t rows = 0;
  engine::GenerationSummary summary;
};

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EnginePrefixTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = test::ModelPath(GetParam());
    model_ = test::ForwardModel::Load(path, {.num_slots = 3});
    ASSERT_NE(model_, nullptr);
    auto vocabulary = model::Vocabulary::Load(path);
    ASSERT_TRUE(vocabulary) << vocabulary.error().message;
    vocabulary_ = std::make_unique<model::Vocabulary>(*std::move(vocabulary));
    backend_ = std::make_unique<RecordingBackend>(model_->backend());
    engine_ =
        engine::Engine::Start(*backend_, *vocabulary_, {.batch_rows = 32, .checkpoint_spacing = 1});
  }
  void TearDown() override { engine_.reset(); }

  Outcome Complete(const Tokens& prompt, bool reuse = true, std::size_t cancel_in_step = 0) {
    GenerationRequest request;
    request.prompt = prompt;
    request.boundaries = {20, 45, 70};
    request.max_tokens = 12;
    request.ignore_end = true;
    request.sampling.seed = 3;
    request.reuse_prefix = reuse;
    backend_->logits.clear();
    backend_->num_rows = 0;
    auto submitted = engine_->Submit(std::move(request));
    EXPECT_TRUE(submitted) << submitted.error().message;
    engine::Generation& generation = **submitted;
    backend_->victim = &generation;
    backend_->steps_left = static_cast<int>(cancel_in_step);
    Outcome run;
    while (!generation.finished()) {
      for (const engine::GeneratedToken& token : generation.Next(60s)) {
        run.tokens.push_back(token.token);
        run.text += token.piece;
      }
    }
    backend_->victim = nullptr;
    // Its last step may still be at work on what only the statistics see.
    while (engine_->statistics().running > 0) std::this_thread::yield();
    run.logits = backend_->logits;
    run.rows = backend_->num_rows;
    run.summary = generation.summary();
    return run;
  }

  void ExpectSame(const Outcome& warm, const Outcome& cold) {
    EXPECT_EQ(warm.text, cold.text);
    EXPECT_EQ(warm.tokens, cold.tokens);
    ASSERT_EQ(warm.logits.size(), cold.logits.size());
    EXPECT_EQ(
        std::memcmp(warm.logits.data(), cold.logits.data(), warm.logits.size() * sizeof(float)), 0);
  }

  std::unique_ptr<test::ForwardModel> model_;
  std::unique_ptr<model::Vocabulary> vocabulary_;
  std::unique_ptr<RecordingBackend> backend_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_P(EnginePrefixTest, ASecondTurnComputesItsNewPartAndSaysWhatAColdRunSays) {
  const Tokens first_prompt = model_->Tokens(80, 1);
  const Outcome first = Complete(first_prompt);
  const Tokens prompt = Join(Join(first_prompt, first.tokens), model_->Tokens(30, 2));
  const Outcome second = Complete(prompt);
  // The last token of the first answer was never computed; of the second one neither.
  EXPECT_EQ(second.summary.cached_tokens, 80U + 11U);
  EXPECT_EQ(second.rows, 1U + 30U + 11U);
  const Outcome cold = Complete(prompt, /*reuse=*/false);
  EXPECT_EQ(cold.rows, prompt.size() + 11U);
  ExpectSame(second, cold);
}

TEST_P(EnginePrefixTest, AnEditedTurnSaysWhatAColdRunSays) {
  const Tokens prompt = model_->Tokens(80, 1);
  Complete(prompt);
  // From the last message on, from an early one on in another slot, and the first one once more.
  const Tokens late = Join(Tokens(prompt.begin(), prompt.begin() + 72), model_->Tokens(20, 3));
  const Tokens early = Join(Tokens(prompt.begin(), prompt.begin() + 30), model_->Tokens(50, 4));
  const Outcome late_run = Complete(late);
  EXPECT_EQ(late_run.summary.cached_tokens, 70U);
  EXPECT_EQ(late_run.rows, 22U + 11U);
  const Outcome early_run = Complete(early);
  EXPECT_EQ(early_run.summary.cached_tokens, 20U);
  const Outcome again = Complete(prompt);
  EXPECT_EQ(again.summary.cached_tokens, 70U);
  ExpectSame(late_run, Complete(late, false));
  ExpectSame(early_run, Complete(early, false));
  ExpectSame(again, Complete(prompt, false));
}

TEST_P(EnginePrefixTest, NothingStaleIsReusedAfterACancellation) {
  const Tokens prompt = model_->Tokens(80, 1);
  const Tokens other = Join(Tokens(prompt.begin(), prompt.begin() + 50), model_->Tokens(30, 5));
  const Outcome cold = Complete(prompt, false);
  const Outcome other_cold = Complete(other, false);
  for (const std::size_t step : {1, 2, 3, 5, 8}) {
    Complete(Join(Tokens(prompt.begin(), prompt.begin() + 60), model_->Tokens(25, 6)), true, step);
    ExpectSame(Complete(other), other_cold);
    ExpectSame(Complete(prompt), cold);
  }
}

// Unquantised, and types whose kernels differ between one row and many in other engines.
INSTANTIATE_TEST_SUITE_P(Models, EnginePrefixTest,
                         testing::Values("tiny-f32", "tiny-q8_0", "forward-q4_k"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
