// Whole quantised models against the F32 model of the same weights: our error is no larger than
// libllama's on the same file, and the perplexity is that of the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <format>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forward_fixture.h"
#include "oracle/llama_oracle.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace {

constexpr std::size_t kTokens = 512;
constexpr std::size_t kSeeds = 3;

std::vector<float> OurLogits(const std::string& path, moe::Repack repack,
                             std::vector<std::int32_t>* tokens) {
  auto model = test::ForwardModel::Load(path, {.repack = repack});
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

// Of one way to compute the models, against the exact numbers.
struct Numbers {
  std::array<double, kSeeds> error{};  // median NMSE of the rows
  double nll_excess = 0;               // mean of the seeds

  void Add(std::size_t seed, std::span<const float> exact, std::span<const float> logits,
           std::span<const std::int32_t> tokens) {
    ASSERT_EQ(logits.size(), exact.size());
    const std::size_t width = exact.size() / tokens.size();
    error[seed] = test::CompareLogits(exact, logits, width, 1).median_nmse;
    nll_excess +=
        (NegativeLogLikelihood(logits, tokens) - NegativeLogLikelihood(exact, tokens)) / kSeeds;
  }
  double ppl_ratio() const { return std::exp(nll_excess); }
};

class QuantisedModelsTest : public testing::TestWithParam<const char*> {};

TEST_P(QuantisedModelsTest, AreAsCloseToTheirWeightsAsLibllamaIs) {
  Numbers packed, mapped, libllamas;
  for (std::size_t seed = 0; seed < kSeeds; ++seed) {
    const std::string name = std::format("quantised/{}-{}", GetParam(), seed + 1);
    const std::string path = test::ModelPath(name);
    std::vector<std::int32_t> tokens;
    const auto exact = OurLogits(test::ModelPath(name + "-exact"), moe::Repack::kOff, &tokens);
    ASSERT_FALSE(exact.empty());
    packed.Add(seed, exact, OurLogits(path, moe::Repack::kAuto, &tokens), tokens);
    mapped.Add(seed, exact, OurLogits(path, moe::Repack::kOff, &tokens), tokens);
    libllamas.Add(seed, exact, LibllamasLogits(path, tokens), tokens);
    if (HasFatalFailure()) return;
  }
  RecordProperty("libllamas_error", std::format("{:.3g}", Median(libllamas.error)));
  RecordProperty("libllamas_ppl_ratio", std::format("{:.5f}", libllamas.ppl_ratio()));
  EXPECT_GT(Median(libllamas.error), 0) << "the models are not quantised";
  for (const auto& [layout, ours] : {std::pair("packed", packed), std::pair("mapped", mapped)}) {
    RecordProperty(std::format("{}_error", layout), std::format("{:.3g}", Median(ours.error)));
    RecordProperty(std::format("{}_ppl_ratio", layout), std::format("{:.5f}", ours.ppl_ratio()));
    EXPECT_LE(Median(ours.error), 1.2 * Median(libllamas.error)) << layout;
    EXPECT_NEAR(ours.ppl_ratio(), 1.0, 0.01) << layout << "; libllama: " << libllamas.ppl_ratio();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedModelsTest,
                         testing::Values("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0",
                                         "iq2_xxs", "iq4_xs", "mxfp4"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
