// Slots of the qwen35moe backend: mixed batches, clear, copy, refusals, stopping, graph reuse.
#include <gtest/gtest.h>

#include <stop_token>
#include <string>
#include <vector>

#include "forward_fixture.h"
#include "model/qwen35moe/directory.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace {

using model::BatchRow;
using test::ForwardModel;

class ForwardSlotsTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = ForwardModel::Load(test::ModelPath("tiny-f16"), {.num_slots = 4});
    ASSERT_NE(model_, nullptr);
  }

  model::ModelBackend& backend() { return model_->backend(); }

  // The logits of `tokens` alone in a fresh slot.
  std::vector<float> Alone(const std::vector<std::int32_t>& tokens) {
    backend().ClearSlot(0);
    std::vector<float> logits = model_->Logits(tokens);
    backend().ClearSlot(0);
    return logits;
  }

  // Appends to each slot the tokens [from, from + counts[slot]) of its sequence in one batch, slots
  // taking turns, and files the logits by slot.
  void Step(const std::vector<std::vector<std::int32_t>>& sequences,
            const std::vector<std::size_t>& counts, std::vector<std::vector<float>>* logits) {
    std::vector<BatchRow> rows;
    std::vector<std::size_t> added(sequences.size(), 0);
    for (bool any = true; any;) {
      any = false;
      // Backwards, so that the batch's order is not the graph's.
      for (std::size_t slot = sequences.size(); slot-- > 0;) {
        if (added[slot] == counts[slot]) continue;
        const std::size_t at =
            backend().slot_length(static_cast<std::uint32_t>(slot)) + added[slot];
        rows.push_back({sequences[slot][at], static_cast<std::uint32_t>(slot),
                        static_cast<std::uint32_t>(at), true});
        ++added[slot];
        any = true;
      }
    }
    auto answer = backend().Evaluate(rows);
    ASSERT_TRUE(answer) << answer.error().message;
    const std::size_t width = backend().vocab_size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      auto& filed = (*logits)[rows[i].slot];
      filed.insert(filed.end(), answer->begin() + static_cast<std::ptrdiff_t>(i * width),
                   answer->begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
    }
  }

  std::unique_ptr<ForwardModel> model_;
};

TEST_F(ForwardSlotsTest, MixedBatchesGiveEachSlotWhatItGetsAlone) {
  const std::vector<std::vector<std::int32_t>> sequences = {
      model_->Tokens(40, 1), model_->Tokens(40, 2), model_->Tokens(40, 3), model_->Tokens(40, 4)};
  std::vector<std::vector<float>> alone;
  for (const auto& tokens : sequences) alone.push_back(Alone(tokens));
  std::vector<std::vector<float>> mixed(4);
  // Prompts of different and of equal lengths, a gap between slots, decode of all and of some.
  for (const std::vector<std::size_t>& counts :
       std::vector<std::vector<std::size_t>>{{9, 0, 5, 5},
                                             {1, 17, 1, 1},
                                             {1, 1, 1, 1},
                                             {0, 1, 1, 0},
                                             {12, 12, 12, 12},
                                             {1, 0, 1, 1},
                                             {16, 9, 19, 20}}) {
    ASSERT_NO_FATAL_FAILURE(Step(sequences, counts, &mixed));
  }
  for (std::size_t slot = 0; slot < 4; ++slot) {
    EXPECT_TRUE(test::SameBits(alone[slot], mixed[slot], backend().vocab_size()))
        << "slot " << slot;
  }
}

TEST_F(ForwardSlotsTest, ClearedSlotStartsAnew) {
  const std::vector<std::int32_t> tokens = model_->Tokens(30);
  const std::vector<float> fresh = Alone(tokens);
  model_->Logits(model_->Tokens(50, 9));
  backend().ClearSlot(0);
  EXPECT_EQ(backend().slot_length(0), 0U);
  EXPECT_TRUE(test::SameBits(fresh, model_->Logits(tokens), backend().vocab_size()));
}

TEST_F(ForwardSlotsTest, CopiedSlotGoesOnAsItsOriginal) {
  const std::vector<std::int32_t> start = model_->Tokens(33, 5);
  const std::vector<std::int32_t> end = model_->Tokens(12, 6);
  model_->Logits(model_->Tokens(70, 7), 0, 2);
  model_->Logits(start, 0, 0);
  ASSERT_TRUE(backend().CopySlot(0, 2));
  EXPECT_EQ(backend().slot_length(2), start.size());
  const std::vector<float> original = model_->Logits(end, 0, 0);
  EXPECT_TRUE(test::SameBits(original, model_->Logits(end, 0, 2), backend().vocab_size()));
}

TEST_F(ForwardSlotsTest, ASavedSlotIsGoneBackTo) {
  const std::vector<std::int32_t> start = model_->Tokens(33, 5);
  const std::vector<std::int32_t> end = model_->Tokens(12, 6);
  std::vector<std::int32_t> whole = start;
  whole.insert(whole.end(), end.begin(), end.end());
  const std::vector<float> cold = Alone(whole);
  const std::vector<float> wanted(
      cold.begin() + static_cast<std::ptrdiff_t>(start.size() * backend().vocab_size()),
      cold.end());

  model_->Logits(start, 0, 0);
  const auto saved = backend().SaveSlot(0);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ((*saved)->length(), start.size());
  EXPECT_GT((*saved)->bytes(), base::Bytes());
  EXPECT_LT((*saved)->bytes() * 4, model_->backend().state_bytes());
  model_->Logits(model_->Tokens(40, 8), 0, 0);   // another end
  model_->Logits(model_->Tokens(100, 7), 0, 2);  // another sequence
  for (const std::uint32_t slot : {2U, 0U, 3U}) {
    ASSERT_TRUE(backend().RestoreSlot(**saved, 0, slot));
    EXPECT_EQ(backend().slot_length(slot), start.size());
    EXPECT_TRUE(test::SameBits(wanted, model_->Logits(end, 0, slot), backend().vocab_size()))
        << "slot " << slot;
  }
}

TEST_F(ForwardSlotsTest, DecodingReusesOneGraphForEveryLength) {
  const std::vector<std::int32_t> tokens = model_->Tokens(300);
  const std::uint64_t before = backend().graphs_built();
  model_->Logits(tokens, 1);
  EXPECT_EQ(backend().graphs_built() - before, 1U);
}

TEST_F(ForwardSlotsTest, MemoryIsNoMoreThanThePlannerCounts) {
  auto file = gg::GgufFile::Open(test::ModelPath("tiny-f16"));
  ASSERT_TRUE(file);
  auto described = model::qwen35moe::Describe(*file);
  ASSERT_TRUE(described);
  const model::DenseNeeds needs = model::NeedsOf(
      described->dense,
      {.context = 512, .num_sequences = 4, .batch_rows = 512, .logit_rows = 1, .on_cpu = true});
  ASSERT_TRUE(model_->backend().ReserveGraphs());
  EXPECT_LE(model_->backend().graph_bytes(), needs.compute);
  EXPECT_GT(model_->backend().graph_bytes() * 8, needs.compute);
  EXPECT_GE(model_->backend().state_bytes(), needs.kv_cache + needs.state);
  EXPECT_LE(model_->backend().state_bytes(), needs.kv_cache + needs.state + base::Bytes::MiB(1));
}

TEST_F(ForwardSlotsTest, RowsWithoutLogitsGiveNone) {
  const std::vector<std::int32_t> tokens = model_->Tokens(5);
  const std::vector<float> all = Alone(tokens);
  std::vector<BatchRow> rows;
  for (std::uint32_t i = 0; i < 5; ++i) rows.push_back({tokens[i], 0, i, i == 1 || i == 4});
  auto some = backend().Evaluate(rows);
  ASSERT_TRUE(some);
  const auto width = static_cast<std::ptrdiff_t>(backend().vocab_size());
  std::vector<float> wanted(all.begin() + width, all.begin() + 2 * width);
  wanted.insert(wanted.end(), all.begin() + 4 * width, all.end());
  EXPECT_TRUE(test::SameBits(wanted, *some, backend().vocab_size()));

  const std::vector<BatchRow> none = {{3, 0, 5, false}};
  auto nothing = backend().Evaluate(none);
  ASSERT_TRUE(nothing);
  EXPECT_TRUE(nothing->empty());
}

TEST_F(ForwardSlotsTest, RefusesWhatDoesNotContinueASlot) {
  model_->Logits(model_->Tokens(3));
  const auto refusal = [&](const BatchRow& row) {
    const std::vector<BatchRow> rows = {row};
    auto answer = backend().Evaluate(rows);
    if (answer) return std::string("accepted");
    EXPECT_EQ(answer.error().kind, base::ErrorKind::kInvalidInput);
    return answer.error().message;
  };
  EXPECT_EQ(refusal({1, 0, 2, true}), "row 0: position 2 where slot 0 continues at 3");
  EXPECT_EQ(refusal({1, 0, 4, true}), "row 0: position 4 where slot 0 continues at 3");
  EXPECT_EQ(refusal({1, 4, 0, true}), "row 0: slot 4 of 4");
  EXPECT_EQ(refusal({-1, 0, 3, true}), "row 0: token -1 is not in the vocabulary of 272");
  EXPECT_EQ(refusal({272, 0, 3, true}), "row 0: token 272 is not in the vocabulary of 272");
  EXPECT_EQ(refusal({1, 0, 3, true}), "accepted");
}

TEST_F(ForwardSlotsTest, AFullSlotTakesNoMore) {
  model_->Logits(model_->Tokens(512), 256);
  const std::vector<BatchRow> rows = {{1, 0, 512, true}};
  auto answer = backend().Evaluate(rows);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message,
            "row 0: position 512 does not fit the context of 512 tokens; use a larger --ctx");
  EXPECT_EQ(backend().slot_length(0), 512U);
}

TEST_F(ForwardSlotsTest, StoppedBatchClearsItsSlotsAndNoOthers) {
  const std::vector<std::int32_t> tokens = model_->Tokens(20);
  const std::vector<float> fresh = Alone(tokens);
  model_->Logits(model_->Tokens(4), 0, 1);
  model_->Logits(model_->Tokens(6), 0, 0);
  std::stop_source stop;
  stop.request_stop();
  const std::vector<BatchRow> rows = {{1, 0, 6, true}};
  auto answer = backend().Evaluate(rows, stop.get_token());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().kind, base::ErrorKind::kCancelled);
  EXPECT_EQ(backend().slot_length(0), 0U);
  EXPECT_EQ(backend().slot_length(1), 4U);
  EXPECT_TRUE(test::SameBits(fresh, model_->Logits(tokens), backend().vocab_size()));
}

// Computes nothing and fails in one phase of one layer.
class FailingCompute final : public moe::MoeExpertCompute {
 public:
  enum class In { kBegin, kFinish };
  FailingCompute(In phase, std::size_t layer) : phase_(phase), layer_(layer) {}

  base::Result<void> Begin(const moe::ExpertBatch& batch) override {
    EXPECT_FALSE(in_flight_);
    now_ = batch.layer.index();
    if (phase_ == In::kBegin && now_ == layer_) return Failure();
    in_flight_ = true;
    return {};
  }
  void Prepare(moe::TeamThread) override { EXPECT_TRUE(in_flight_); }
  void Expand(moe::TeamThread) override { EXPECT_TRUE(in_flight_); }
  void Reduce(moe::TeamThread) override { EXPECT_TRUE(in_flight_); }
  base::Result<void> Finish() override {
    in_flight_ = false;
    if (phase_ == In::kFinish && now_ == layer_) return Failure();
    return {};
  }
  moe::ExpertPart part(std::size_t) const override { return {}; }
  std::size_t num_parts() const override { return 1; }
  std::uint64_t num_pairs(std::size_t) const override { return 0; }
  std::size_t last_layer() const { return now_; }
  bool in_flight() const { return in_flight_; }

 private:
  static base::Result<void> Failure() {
    return base::Fail(base::ErrorKind::kWorkerLost, "the worker is gone");
  }

  In phase_;
  std::size_t layer_;
  std::size_t now_ = 0;
  bool in_flight_ = false;
};

TEST_F(ForwardSlotsTest, AnOwnersFailureEndsTheBatchAndClearsItsSlots) {
  for (const auto phase : {FailingCompute::In::kBegin, FailingCompute::In::kFinish}) {
    auto failing = std::make_shared<FailingCompute>(phase, 1);
    model_->backend().SetExperts(failing);
    const std::vector<BatchRow> rows = {{1, 3, 0, true}};
    auto answer = backend().Evaluate(rows);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().kind, base::ErrorKind::kWorkerLost);
    EXPECT_EQ(answer.error().message, "the worker is gone");
    EXPECT_EQ(failing->last_layer(), 1U) << "later layers are not begun";
    EXPECT_FALSE(failing->in_flight());
    EXPECT_EQ(backend().slot_length(3), 0U);
  }
}

TEST_F(ForwardSlotsTest, ABatchWithoutExpertsIsRefused) {
  model_->backend().SetExperts(nullptr);
  const std::vector<BatchRow> rows = {{1, 0, 0, true}};
  auto answer = backend().Evaluate(rows);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().kind, base::ErrorKind::kInternal);
}

}  // namespace
