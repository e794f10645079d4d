// Whole quantised models against the F32 model of the same weights: our error is no larger than
// libllama's on the same file, and the perplexity is that of the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <format>
#include <span>
#include <string>
#include <vector>

#include "forward_fixture.h"
#include "oracle/llama_oracle.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace {

constexpr std::size_t kTokens = 512;
constexpr std::size_t kSeeds = 3;

std::vector<float> OurLogits(const std::string& path, std::vector<std::int32_t>* tokens) {
  auto model = test::ForwardModel::Load(path);
  if (model == nullptr) return {};
  if (tokens->empty()) *tokens = model->Tokens(kTokens);
  return model->Logits(*tokens);
}

std::vector<float> LibllamasLogits(const std::string& path,
                                   const std::vector<std::int32_t>& tokens) {
  auto oracle = oracle::LlamaOracle::Load(path);
  if (!oracle) {
    ADD_FAILURE() << oracle.error().message;
    return {};
  }
  auto logits = oracle->Logits(tokens);
  if (!logits) {
    ADD_FAILURE() << logits.error().message;
    return {};
  }
  return *std::move(logits);
}

// Mean nats per token of `tokens` but the first.
double NegativeLogLikelihood(std::span<const float> logits, std::span<const std::int32_t> tokens) {
  const std::size_t width = logits.size() / tokens.size();
  double sum = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const auto row = logits.subspan(i * width, width);
    const double largest = std::ranges::max(row);
    double total = 0;
    for (const float logit : row) total += std::exp(logit - largest);
    sum += largest + std::log(total) - row[static_cast<std::size_t>(tokens[i + 1])];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

double Median(std::array<double, kSeeds> values) {
  std::ranges::sort(values);
  return values[kSeeds / 2];
}

class QuantisedModelsTest : public testing::TestWithParam<const char*> {};

TEST_P(QuantisedModelsTest, AreAsCloseToTheirWeightsAsLibllamaIs) {
  std::array<double, kSeeds> our_error{}, libllamas_error{};
  double exact_nll = 0, our_nll = 0, libllamas_nll = 0;
  for (std::size_t seed = 0; seed < kSeeds; ++seed) {
    const std::string name = std::format("quantised/{}-{}", GetParam(), seed + 1);
    std::vector<std::int32_t> tokens;
    const auto exact = OurLogits(test::ModelPath(name + "-exact"), &tokens);
    const auto ours = OurLogits(test::ModelPath(name), &tokens);
    const auto libllamas = LibllamasLogits(test::ModelPath(name), tokens);
    ASSERT_FALSE(exact.empty());
    ASSERT_EQ(ours.size(), exact.size());
    ASSERT_EQ(libllamas.size(), exact.size());
    const std::size_t width = exact.size() / tokens.size();
    our_error[seed] = test::CompareLogits(exact, ours, width, 1).median_nmse;
    libllamas_error[seed] = test::CompareLogits(exact, libllamas, width, 1).median_nmse;
    exact_nll += NegativeLogLikelihood(exact, tokens) / kSeeds;
    our_nll += NegativeLogLikelihood(ours, tokens) / kSeeds;
    libllamas_nll += NegativeLogLikelihood(libllamas, tokens) / kSeeds;
  }
  RecordProperty("our_error", std::format("{:.3g}", Median(our_error)));
  RecordProperty("libllamas_error", std::format("{:.3g}", Median(libllamas_error)));
  RecordProperty("our_ppl_ratio", std::format("{:.5f}", std::exp(our_nll - exact_nll)));
  RecordProperty("libllamas_ppl_ratio", std::format("{:.5f}", std::exp(libllamas_nll - exact_nll)));
  EXPECT_GT(Median(libllamas_error), 0) << "the models are not quantised";
  EXPECT_LE(Median(our_error), 1.2 * Median(libllamas_error));
  EXPECT_NEAR(std::exp(our_nll - exact_nll), 1.0, 0.01)
      << "libllama: " << std::exp(libllamas_nll - exact_nll);
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedModelsTest,
                         testing::Values("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0",
                                         "iq2_xxs", "iq4_xs", "mxfp4"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
