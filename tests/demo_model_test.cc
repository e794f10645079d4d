// The demo model in models/: its file is read alike by libllama and expert-split, and it knows its
// texts. That both compute what transformers does is in forward_test and llama_oracle_test, which
// have it among their records.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "base/file.h"
#include "forward_fixture.h"
#include "oracle/llama_oracle.h"
#include "program.h"
#include "support/golden_record.h"
#include "support/logits_compare.h"

namespace test {
namespace {

const std::string kFolder = EXPERT_SPLIT_SOURCE_DIR "/models/";
const std::string kModel = kFolder + "demo.gguf";

std::string Head(const std::string& path, std::size_t bytes) {
  auto text = base::ReadFile(path, base::Bytes::MiB(1));
  EXPECT_TRUE(text) << path;
  return text ? text->substr(0, bytes) : std::string();
}

TEST(DemoModelTest, IsSmallEnoughForTheRepository) {
  EXPECT_LE(std::filesystem::file_size(kModel), 16'000'000u);
}

TEST(DemoModelTest, LibllamaCutsTextIntoTheTokensItWasTrainedOn) {
  const auto oracle = oracle::LlamaOracle::Load(kModel);
  ASSERT_TRUE(oracle) << oracle.error().message;
  const auto tokens =
      oracle->Tokenize(Head(EXPERT_SPLIT_SOURCE_DIR "/tests/golden/demo.txt", 10'000));
  ASSERT_TRUE(tokens) << tokens.error().message;
  EXPECT_EQ(*tokens, ReadGoldenRecord("demo").tokens);
}

class DemoDomainTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Text(std::size_t bytes) {
    return Head(kFolder + "heldout-" + GetParam() + ".txt", bytes);
  }
};

TEST_P(DemoDomainTest, QuantisedLogitsAreLibllamas) {
  const auto oracle = oracle::LlamaOracle::Load(kModel);
  ASSERT_TRUE(oracle) << oracle.error().message;
  const auto tokens = oracle->Tokenize(Text(1000));
  ASSERT_TRUE(tokens) << tokens.error().message;
  const auto reference = oracle->Logits(*tokens);
  ASSERT_TRUE(reference) << reference.error().message;
  const auto model = ForwardModel::Load(kModel);
  ASSERT_NE(model, nullptr);
  // Each of the two rounds activations to 8 bits in its own way.
  EXPECT_TRUE(LogitsAgree(*reference, model->Logits(*tokens), model->vocab_size(),
                          {.median_nmse = 5e-5, .row_nmse = 1e-3}));
}

// xz -9 needs more than this for either whole text; see models/README.md.
TEST_P(DemoDomainTest, PredictsHeldOutTextInFewerBitsThanXz) {
  constexpr double kBitsPerByte = 2.1;
  const std::string text = Text(16'384);
  const std::string path = testing::TempDir() + "demo_model_" + GetParam() + ".txt";
  ASSERT_TRUE(base::WriteFileAtomically(path, text));
  const ProgramResult result =
      RunExpertSplit({"perplexity", "--model", kModel, "--targets", "cpu", "--text", path, "--ctx",
                      "512", "--threads", "1", "--json"},
                     {kNoVulkan});
  std::filesystem::remove(path);
  ASSERT_EQ(result.status, 0) << result.err;
  const auto oracle = oracle::LlamaOracle::Load(kModel);
  ASSERT_TRUE(oracle) << oracle.error().message;
  const auto tokens = oracle->Tokenize(text);
  ASSERT_TRUE(tokens) << tokens.error().message;
  const double nats = nlohmann::json::parse(result.out).value("nll", 0.0);
  const double tokens_per_byte =
      static_cast<double>(tokens->size()) / static_cast<double>(text.size());
  EXPECT_GT(nats, 0.5);
  EXPECT_LT(nats * std::numbers::log2e * tokens_per_byte, kBitsPerByte);
}

INSTANTIATE_TEST_SUITE_P(Domains, DemoDomainTest, testing::Values("kjv", "sqlite"),
                         [](const auto& domain) { return std::string(domain.param); });

}  // namespace
}  // namespace test
