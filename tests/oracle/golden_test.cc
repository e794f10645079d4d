// libllama against transformers: the two references agree about the architecture, so a difference
// from one of them is ours.
#include <gtest/gtest.h>

#include <string>

#include "oracle/llama_oracle.h"
#include "support/golden_record.h"
#include "support/logits_compare.h"

namespace oracle {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, LibllamaComputesTheLogitsOfTransformers) {
  const test::GoldenRecord record = test::ReadGoldenRecord(GetParam());
  ASSERT_FALSE(record.tokens.empty());
  const auto model = LlamaOracle::Load(record.model_path, {.max_tokens = 256, .kv_in_f32 = true});
  ASSERT_TRUE(model) << model.error().message;
  const auto logits = model->Logits(record.tokens, 7);
  ASSERT_TRUE(logits) << logits.error().message;
  ASSERT_EQ(logits->size(), record.logits.size());
  const auto compared = test::CompareLogits(record.logits, *logits, record.vocab, 1e-8);
  EXPECT_LT(compared.relative_error, 1e-3) << compared.Describe();
  EXPECT_LT(compared.median_nmse, 1e-8) << compared.Describe();
}

INSTANTIATE_TEST_SUITE_P(Records, Golden, testing::ValuesIn(test::GoldenRecordNames()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace oracle
