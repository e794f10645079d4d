#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/fake_backend.h"

namespace engine {
namespace {

class PerplexityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
    ASSERT_TRUE(loaded) << loaded.error().message;
    vocabulary_ = std::make_unique<model::Vocabulary>(std::move(*loaded));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static std::unique_ptr<model::Vocabulary> vocabulary_;
  FakeBackend backend_{vocabulary_->size(), /*context_length=*/64, /*max_batch_rows=*/5};
};

std::unique_ptr<model::Vocabulary> PerplexityTest::vocabulary_;

// The definition, written out: chunks of `length`, positions length / 2 to length - 2.
Perplexity ByDefinition(const std::vector<model::Token>& tokens, std::size_t length,
                        std::size_t vocab_size) {
  Perplexity result;
  for (std::size_t c = 0; c + length <= tokens.size(); c += length) {
    for (std::size_t i = length / 2; i + 1 < length; ++i) {
      const std::vector<model::Token> history(
          tokens.begin() + static_cast<std::ptrdiff_t>(c),
          tokens.begin() + static_cast<std::ptrdiff_t>(c + i + 1));
      const auto likeliest = static_cast<double>(FakeBackend::Likeliest(history, vocab_size));
      double sum = 0;
      for (std::size_t t = 0; t < vocab_size; ++t) {
        sum += std::exp(-0.1 * std::abs(static_cast<double>(t) - likeliest));
      }
      const auto next = static_cast<double>(tokens[c + i + 1]);
      result.nll += std::log(sum) + 0.1 * std::abs(next - likeliest);
      ++result.tokens;
    }
  }
  result.nll /= static_cast<double>(result.tokens);
  result.ppl = std::exp(result.nll);
  return result;
}

TEST_F(PerplexityTest, ScoresTheSecondHalfOfEachChunkWhateverTheStep) {
  std::vector<model::Token> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back((i * 37 + 11) % 200);
  for (const std::size_t length : {4, 9, 16}) {
    for (const std::size_t step : {1, 3, 512}) {
      auto measured =
          MeasurePerplexity(backend_, *vocabulary_,
                            {.tokens = tokens, .chunk_tokens = length, .batch_rows = step}, {}, {});
      ASSERT_TRUE(measured) << measured.error().message;
      const Perplexity expected = ByDefinition(tokens, length, vocabulary_->size());
      EXPECT_EQ(measured->tokens, expected.tokens);
      EXPECT_NEAR(measured->nll, expected.nll, 1e-5);
      EXPECT_NEAR(measured->ppl / expected.ppl, 1.0, 1e-5);
    }
  }
}

TEST_F(PerplexityTest, RefusesTooShortATextAndTooLongAChunk) {
  EXPECT_FALSE(
      MeasurePerplexity(backend_, *vocabulary_, {.tokens = {1, 2, 3}, .chunk_tokens = 4}, {}, {}));
  EXPECT_FALSE(MeasurePerplexity(backend_, *vocabulary_,
                                 {.tokens = std::vector<model::Token>(100, 1), .chunk_tokens = 65},
                                 {}, {}));
  EXPECT_FALSE(MeasurePerplexity(backend_, *vocabulary_,
                                 {.tokens = {1, 2, 3, 4}, .chunk_tokens = 3}, {}, {}));
}

}  // namespace
}  // namespace engine
