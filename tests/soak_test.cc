// A long prompt in many steps: the numbers of a short path, and memory that does not creep.
//
// EXPERT_SPLIT_SOAK_TOKENS sets the length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "forward_fixture.h"
#include "support/resident_memory.h"
#include "support/test_models.h"

namespace {

using test::ForwardModel;

constexpr std::size_t kDefaultTokens = 2000;
constexpr std::size_t kRows = 300;      // of a step, of the long sequence
constexpr std::size_t kOtherRows = 30;  // beside them, of another
constexpr std::size_t kHeads = 4;       // of the tiny model
constexpr base::Bytes kAllowance = base::Bytes::MiB(24);

std::size_t NumTokens() {
  const char* given = std::getenv("EXPERT_SPLIT_SOAK_TOKENS");
  return given != nullptr ? std::stoul(given) : kDefaultTokens;
}

// Up to `count` further tokens of `slot`; logits of the sequence's last one.
void AddRows(std::vector<model::BatchRow>& rows, const std::vector<std::int32_t>& tokens,
             std::uint32_t slot, std::size_t held, std::size_t count) {
  for (std::size_t i = held; i < std::min(held + count, tokens.size()); ++i) {
    rows.push_back({.token = tokens[i],
                    .slot = slot,
                    .position = static_cast<std::uint32_t>(i),
                    .wants_logits = slot == 0 && i + 1 == tokens.size()});
  }
}

// The logits of the last of `tokens` in slot 0, `count` a step, beside `other` a step of slot 1.
std::vector<float> LastLogits(ForwardModel& model, const std::vector<std::int32_t>& tokens,
                              std::size_t count, std::size_t other) {
  model::qwen35moe::Qwen35MoeBackend& backend = model.backend();
  std::vector<float> last;
  while (backend.slot_length(0) < tokens.size()) {
    std::vector<model::BatchRow> rows;
    AddRows(rows, tokens, 0, backend.slot_length(0), count);
    if (other > 0) AddRows(rows, tokens, 1, backend.slot_length(1), other);
    auto logits = backend.Evaluate(rows, {});
    if (!logits) {
      ADD_FAILURE() << logits.error().message;
      return {};
    }
    last.assign(logits->begin(), logits->end());
  }
  return last;
}

TEST(SoakTest, ALongPromptKeepsItsNumbersAndItsMemory) {
  const std::size_t num_tokens = NumTokens();
  const std::string path = test::ModelPath("tiny-f16");
  const auto context = static_cast<std::uint32_t>(num_tokens);
  auto one = ForwardModel::Load(path, {.context_length = context, .num_threads = 2});
  ASSERT_NE(one, nullptr);
  const std::vector<std::int32_t> tokens = one->Tokens(num_tokens);
  const std::vector<float> reference = LastLogits(*one, tokens, 512, 0);
  ASSERT_EQ(reference.size(), one->vocab_size());
  one.reset();

  [[maybe_unused]] const base::Bytes before = test::ResidentAnonymous();  // not under sanitizers
  auto two =
      ForwardModel::Load(path, {.num_slots = 2, .context_length = context, .num_threads = 2});
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(LastLogits(*two, tokens, kRows, kOtherRows), reference);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The CPU backend keeps a copy of the attention's weights as F16 beside what we allocate.
  const base::Bytes scores(kHeads * (kRows + kOtherRows) * num_tokens * 2);
  EXPECT_LT(test::ResidentAnonymous() - before,
            two->backend().state_bytes() + two->backend().graph_bytes() + scores + kAllowance);
#endif
}

}  // namespace
