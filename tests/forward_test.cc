// The forward pass of qwen35moe against libllama on the same files, and the bit rule: a row's
// logits do not depend on how tokens are divided into batches, nor on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "forward_fixture.h"
#include "oracle/llama_oracle.h"
#include "support/golden_record.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace {

using test::Experts;
using test::ForwardModel;

constexpr std::size_t kTokens = 200;
constexpr test::LogitsTolerance kTolerance = {.median_nmse = 1e-6, .row_nmse = 1e-4};

std::vector<float> OracleLogits(const std::string& path, const std::vector<std::int32_t>& tokens) {
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

class ForwardTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Path() { return test::ModelPath(GetParam()); }
};

TEST_P(ForwardTest, ComputesLibllamasLogits) {
  auto model = ForwardModel::Load(Path());
  ASSERT_NE(model, nullptr);
  const std::vector<std::int32_t> tokens = model->Tokens(kTokens);
  EXPECT_TRUE(test::LogitsAgree(OracleLogits(Path(), tokens), model->Logits(tokens),
                                model->vocab_size(), kTolerance));
}

TEST_P(ForwardTest, GivesTheSameBitsInOneBatchInChunksAndTokenByToken) {
  auto model = ForwardModel::Load(Path());
  ASSERT_NE(model, nullptr);
  const std::vector<std::int32_t> tokens = model->Tokens(kTokens);
  const std::vector<float> whole = model->Logits(tokens);
  for (const std::size_t chunk : {std::size_t{7}, std::size_t{1}}) {
    model->backend().ClearSlot(0);
    EXPECT_TRUE(test::SameBits(whole, model->Logits(tokens, chunk), model->vocab_size()))
        << "in chunks of " << chunk;
  }
}

TEST_P(ForwardTest, GivesTheSameBitsWhenItsExpertsHaveTwoCpuOwners) {
  auto one = ForwardModel::Load(Path());
  auto two = ForwardModel::Load(Path(), {.experts = Experts::kTwoOwners});
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const std::vector<std::int32_t> tokens = one->Tokens(kTokens / 2);
  const std::vector<float> whole = one->Logits(tokens);
  for (const std::size_t chunk : {std::size_t{0}, std::size_t{7}, std::size_t{1}}) {
    two->backend().ClearSlot(0);
    EXPECT_TRUE(test::SameBits(whole, two->Logits(tokens, chunk), two->vocab_size()))
        << "in chunks of " << chunk;
  }
  for (const model::ExpertCounter& part : two->backend().expert_counters()) {
    EXPECT_EQ(part.num_pairs > 0, part.name != "primary") << part.name;
  }
}

// Teacher-forced, so that one near-tie does not part the texts for good.
TEST_P(ForwardTest, ContinuesAsLibllamaDoesWhereItIsSure) {
  auto oracle = oracle::LlamaOracle::Load(Path());
  ASSERT_TRUE(oracle) << oracle.error().message;
  auto model = ForwardModel::Load(Path());
  ASSERT_NE(model, nullptr);
  std::vector<std::int32_t> tokens = model->Tokens(20, 7);
  auto continuation = oracle->Greedy(tokens, 64);
  ASSERT_TRUE(continuation) << continuation.error().message;
  ASSERT_EQ(continuation->size(), 64U);
  tokens.insert(tokens.end(), continuation->begin(), continuation->end());
  const std::vector<float> logits = model->Logits(tokens, 1);
  const std::vector<float> reference = OracleLogits(Path(), tokens);
  ASSERT_EQ(reference.size(), logits.size());
  const std::size_t width = model->vocab_size();
  std::size_t sure = 0;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto row_of = [&](const std::vector<float>& all) {
      return std::span(all).subspan(row * width, width);
    };
    std::vector<float> sorted(row_of(reference).begin(), row_of(reference).end());
    std::ranges::sort(sorted, std::greater());
    if (sorted[0] - sorted[1] <= 1e-2F) continue;
    ++sure;
    EXPECT_EQ(std::ranges::max_element(row_of(reference)) - row_of(reference).begin(),
              std::ranges::max_element(row_of(logits)) - row_of(logits).begin())
        << "row " << row;
  }
  EXPECT_GT(sure, tokens.size() / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, ForwardTest,
                         testing::Values("tiny-f32", "forward-f32-fused-tied-2",
                                         "forward-f32-one-kv-3", "forward-f16-variants-2",
                                         "forward-f16-tied-nextn", "forward-f16-narrow-3"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

class BitRuleTest : public testing::TestWithParam<const char*> {};

TEST_P(BitRuleTest, HoldsForThisTypeAcrossChunksAndThreads) {
  const std::string path = test::ModelPath(GetParam());
  for (const auto repack : {moe::Repack::kAuto, moe::Repack::kOff}) {
    SCOPED_TRACE(repack == moe::Repack::kAuto ? "packed" : "mapped");
    auto model = ForwardModel::Load(path, {.repack = repack});
    ASSERT_NE(model, nullptr);
    const std::vector<std::int32_t> tokens = model->Tokens(100);
    const std::vector<float> whole = model->Logits(tokens);
    model->backend().ClearSlot(0);
    model->backend().SetThreads(3);
    EXPECT_TRUE(test::SameBits(whole, model->Logits(tokens, 7), model->vocab_size()));
    model->backend().ClearSlot(0);
    model->backend().SetThreads(1);
    EXPECT_TRUE(test::SameBits(whole, model->Logits(tokens, 1), model->vocab_size()));
    auto split = ForwardModel::Load(path, {.experts = Experts::kTwoOwners, .repack = repack});
    ASSERT_NE(split, nullptr);
    EXPECT_TRUE(test::SameBits(whole, split->Logits(tokens, 7), model->vocab_size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BitRuleTest,
                         testing::Values("tiny-q8_0", "forward-q4_k", "forward-q6_k",
                                         "forward-q2_k", "forward-q4_0", "forward-mxfp4",
                                         "forward-iq2_xxs", "forward-iq4_xs"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(ForwardPathsTest, PrimaryGraphAndExpertNodesAgree) {
  const std::string path = test::ModelPath("tiny-f32");
  auto nodes = ForwardModel::Load(path);
  auto graph = ForwardModel::Load(path, {.experts = Experts::kOnPrimary});
  ASSERT_TRUE(nodes != nullptr && graph != nullptr);
  const std::vector<std::int32_t> tokens = nodes->Tokens(60);
  EXPECT_TRUE(test::LogitsAgree(graph->Logits(tokens), nodes->Logits(tokens), nodes->vocab_size(),
                                kTolerance));
  EXPECT_EQ(graph->backend().primary_pairs(), tokens.size() * 2 * 4) << "2 experts, 4 layers";
  EXPECT_EQ(nodes->backend().primary_pairs(), 0U);
  EXPECT_EQ(nodes->backend().expert_counters().back().num_pairs, tokens.size() * 2 * 4);
}

TEST(ForwardPathsTest, SplitFileComputesWhatTheWholeOneDoes) {
  auto whole = ForwardModel::Load(test::ModelPath("tiny-f32"));
  auto split = ForwardModel::Load(
      test::ModelPath("forward-split").substr(0, test::ModelPath("forward-split").size() - 5) +
      "-00001-of-00003.gguf");
  ASSERT_TRUE(whole != nullptr && split != nullptr);
  const std::vector<std::int32_t> tokens = whole->Tokens(20);
  EXPECT_TRUE(test::SameBits(whole->Logits(tokens), split->Logits(tokens), whole->vocab_size()));
}

TEST(ForwardPathsTest, RepackedWeightsGiveTheBitsOfTheFile) {
  for (const char* name : {"tiny-q8_0", "tiny-f16", "forward-q2_k", "forward-mxfp4"}) {
    auto mapped = ForwardModel::Load(test::ModelPath(name), {.repack = moe::Repack::kOff});
    auto repacked = ForwardModel::Load(test::ModelPath(name), {.num_threads = 2});
    ASSERT_TRUE(mapped != nullptr && repacked != nullptr);
    EXPECT_EQ(mapped->backend().packed_bytes(), base::Bytes(0));
    EXPECT_GT(repacked->backend().packed_bytes(), base::Bytes(0));
    const std::vector<std::int32_t> tokens = mapped->Tokens(kTokens);
    EXPECT_TRUE(
        test::SameBits(mapped->Logits(tokens), repacked->Logits(tokens), mapped->vocab_size()))
        << name;
  }
}

TEST(ForwardPathsTest, TheFileIsUsedWithOneWarningWhenTheSystemRefusesMemoryToPack) {
  std::vector<std::string> warnings;
  auto refused = ForwardModel::Load(
      test::ModelPath("tiny-q8_0"),
      {.log = base::Log([&](base::LogLevel level, std::string_view line) {
         if (level == base::LogLevel::kWarning) warnings.emplace_back(line);
       }),
       .packing_memory = {.allocate = [](base::Bytes) -> base::Result<kernels::PackedMemory> {
         return base::Fail(base::ErrorKind::kCapacity, "no memory");
       }}});
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->backend().packed_bytes(), base::Bytes(0));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].starts_with("no memory: ")) << warnings[0];
  EXPECT_FALSE(refused->Logits(refused->Tokens(10)).empty());
}

TEST(ForwardPathsTest, PackingTheDensePartShowsProgressAndCanBeInterrupted) {
  base::Bytes done, whole;
  auto model = ForwardModel::Load(test::ModelPath("tiny-q8_0"),
                                  {.control = {.progress = [&](base::Bytes now, base::Bytes of) {
                                     EXPECT_GT(now, done);
                                     done = now;
                                     whole = of;
                                   }}});
  ASSERT_NE(model, nullptr);
  EXPECT_GT(whole, base::Bytes(0));
  EXPECT_EQ(done, whole);

  auto devices = gg::DiscoverDevices();
  ASSERT_TRUE(devices) << devices.error().message;
  auto* cpu = gg::FindDevice(*devices, "cpu")->handle;
  auto file = gg::GgufFile::Open(test::ModelPath("tiny-q8_0"));
  ASSERT_TRUE(file) << file.error().message;
  std::stop_source stop;
  auto interrupted = model::qwen35moe::Qwen35MoeBackend::Load(
      *file, cpu, cpu, {.context_length = 128}, {},
      {.progress = [&](base::Bytes, base::Bytes) { stop.request_stop(); },
       .stop = stop.get_token()});
  ASSERT_FALSE(interrupted);
  EXPECT_EQ(interrupted.error().kind, base::ErrorKind::kCancelled);
}

class GoldenForwardTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenForwardTest, ComputesTransformersLogits) {
  const test::GoldenRecord record = test::ReadGoldenRecord(GetParam());
  ASSERT_FALSE(record.tokens.empty());
  for (const Experts experts : {Experts::kHost, Experts::kOnPrimary}) {
    auto model = ForwardModel::Load(record.model_path, {.experts = experts, .kv_in_f32 = true});
    ASSERT_NE(model, nullptr);
    const std::vector<float> logits = model->Logits(record.tokens, 7);
    ASSERT_EQ(logits.size(), record.logits.size());
    const auto compared = test::CompareLogits(record.logits, logits, record.vocab, 1e-8);
    EXPECT_LT(compared.relative_error, 1e-3) << compared.Describe();
    EXPECT_LT(compared.median_nmse, 1e-8) << compared.Describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Records, GoldenForwardTest, testing::ValuesIn(test::GoldenRecordNames()),
                         [](const auto& param) { return param.param; });

// llama.cpp's own toy model: fused gate and up, biases, every kind of scale.
TEST(ForwardToyTest, ComputesLibllamasLogits) {
  std::filesystem::path tool;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/libexec", error)) {
    const auto candidate = entry.path() / "llama.cpp-tests" / "test-llama-archs";
    if (std::filesystem::exists(candidate, error)) tool = candidate;
  }
  if (tool.empty()) GTEST_SKIP() << "package llama.cpp-tests is not installed";
  const auto folder = std::filesystem::path(testing::TempDir()) / "forward_toy_test";
  std::filesystem::create_directories(folder);
  const std::string command =
      std::format("'{}' -a qwen35moe -o '{}' >/dev/null 2>&1", tool.string(), folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::string path = folder / "qwen35moe-moe.gguf";
  for (const Experts experts : {Experts::kHost, Experts::kOnPrimary}) {
    auto model = ForwardModel::Load(path, {.experts = experts});
    ASSERT_NE(model, nullptr);
    const std::vector<std::int32_t> tokens = model->Tokens(64);
    EXPECT_TRUE(test::LogitsAgree(OracleLogits(path, tokens), model->Logits(tokens),
                                  model->vocab_size(), kTolerance));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
