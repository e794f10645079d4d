// The demo model in models/: its file is read alike by libllama and expert-split, and it knows its
// texts. That both compute what transformers does is in forward_test and llama_oracle_test, which
// have it among their records.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

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

// A profile of one part of a text says where the traffic of another part of it goes.
TEST_P(DemoDomainTest, MeasuredSharesAreThoseThatTheProfilePromised) {
  const std::string folder = testing::TempDir() + "demo_model_share_" + GetParam();
  std::filesystem::create_directory(folder);
  const std::string text = Text(72'000);
  ASSERT_EQ(text.size(), 72'000u);
  ASSERT_TRUE(base::WriteFileAtomically(folder + "/known.txt", text.substr(0, 48'000)));
  ASSERT_TRUE(base::WriteFileAtomically(folder + "/other.txt", text.substr(48'000)));
  const std::string profile = folder + "/profile.json";
  const ProgramResult made =
      RunExpertSplit({"profile", "--model", kModel, "--targets", "cpu", "--text",
                      folder + "/known.txt", "--out", profile, "--threads", "1"},
                     {kNoVulkan});
  ASSERT_EQ(made.status, 0) << made.err;
  const std::vector<std::string> layout = {
      "--model", kModel, "--targets", "worker(cpu)=3MiB,cpu", "--profile", profile, "--json"};
  std::vector<std::string> plan = {"plan"};
  std::ranges::copy(layout, std::back_inserter(plan));
  const ProgramResult planned = RunExpertSplit(plan, {kNoVulkan});
  ASSERT_EQ(planned.status, 0) << planned.err;
  std::vector<std::string> run = {"run",   "--prompt-file", folder + "/other.txt", "-n", "1",
                                  "--ctx", "16384",         "--threads",           "1"};
  std::ranges::copy(layout, std::back_inserter(run));
  const ProgramResult measured = RunExpertSplit(run, {kNoVulkan});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(measured.status, 0) << measured.err;
  const auto expected_targets = nlohmann::json::parse(planned.out)["targets"];
  const auto measured_targets = nlohmann::json::parse(measured.out)["targets"];
  ASSERT_EQ(expected_targets.size(), 2u);
  ASSERT_EQ(measured_targets.size(), 2u);
  const double expected = expected_targets[0]["expected_share"].get<double>();
  const double share = measured_targets[0]["share"].get<double>();
  std::cout << GetParam() << ": expected " << expected << ", measured " << share << "\n";
  EXPECT_NEAR(share, expected, 0.03);
  // More than the experts' part of the bytes, which any choice of experts would have had.
  const double part =
      expected_targets[0]["units"].get<double>() /
      (expected_targets[0]["units"].get<double>() + expected_targets[1]["units"].get<double>());
  EXPECT_GT(share, part + 0.05);
}

INSTANTIATE_TEST_SUITE_P(Domains, DemoDomainTest, testing::Values("kjv", "sqlite"),
                         [](const auto& domain) { return std::string(domain.param); });

}  // namespace
}  // namespace test
