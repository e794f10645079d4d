// The oracle itself: what other tests rely on when they compare with it.
#include "oracle/llama_oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/logits_compare.h"
#include "support/test_models.h"

namespace oracle {
namespace {

LlamaOracle MustLoad(const std::string& name) {
  auto model = LlamaOracle::Load(test::ModelPath(name), {.max_tokens = 256});
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}

std::vector<std::int32_t> SomeTokens(std::size_t count) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(32 + i * i * 7 % 95));
  }
  return tokens;
}

class AnyChunking : public testing::TestWithParam<std::string> {};

TEST_P(AnyChunking, GivesTheSameBits) {
  const LlamaOracle model = MustLoad(GetParam());
  const auto tokens = SomeTokens(200);
  const auto width = static_cast<std::size_t>(model.vocab_size());
  const auto whole = model.Logits(tokens);
  const auto chunks = model.Logits(tokens, 7);
  const auto single = model.Logits(tokens, 1);
  ASSERT_TRUE(whole && chunks && single);
  EXPECT_TRUE(test::SameBits(*whole, *chunks, width));
  EXPECT_TRUE(test::SameBits(*whole, *single, width));
  EXPECT_GT(*std::ranges::max_element(*whole), 1);
}

INSTANTIATE_TEST_SUITE_P(Types, AnyChunking, testing::Values("tiny-f32", "tiny-f16", "tiny-q8_0"),
                         [](const auto& model) { return model.param.substr(5); });

TEST(LlamaOracle, TokenizesBytesAndSpecialTokens) {
  const LlamaOracle model = MustLoad("tiny-f32");
  EXPECT_EQ(model.Tokenize("A b<|im_end|>\xC3\xA9").value(),
            (std::vector<std::int32_t>{65, 32, 98, 258, 0xC3, 0xA9}));
  EXPECT_TRUE(model.Tokenize("").value().empty());
}

TEST(LlamaOracle, GreedyFollowsItsOwnLogits) {
  const LlamaOracle model = MustLoad("tiny-f32");
  auto tokens = SomeTokens(12);
  const auto continuation = model.Greedy(tokens, 8);
  ASSERT_TRUE(continuation);
  ASSERT_EQ(continuation->size(), 8u);
  tokens.insert(tokens.end(), continuation->begin(), continuation->end());
  const auto logits = model.Logits(tokens).value();
  const auto width = static_cast<std::size_t>(model.vocab_size());
  for (std::size_t i = 0; i < 8; ++i) {
    const auto row = std::span(logits).subspan((11 + i) * width, width);
    EXPECT_EQ(std::ranges::max_element(row) - row.begin(), (*continuation)[i]);
  }
}

TEST(LlamaOracle, CapturesNodesOfTheGraph) {
  const LlamaOracle model = MustLoad("tiny-f32");
  const std::vector<std::string> names = {"ffn_moe_topk-1", "l_out-3", "no such node"};
  const auto captured = model.Capture(SomeTokens(5), names);
  ASSERT_TRUE(captured) << captured.error().message;
  ASSERT_THAT(*captured, testing::SizeIs(2));
  EXPECT_EQ(captured->at("ffn_moe_topk-1").shape, (std::vector<std::int64_t>{5, 2}));
  EXPECT_THAT(captured->at("ffn_moe_topk-1").values,
              testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(8))));
  EXPECT_EQ(captured->at("l_out-3").shape, (std::vector<std::int64_t>{5, 256}));
}

TEST(LlamaOracle, EvaluatesIdsOfAModelWithoutTokenizer) {
  const LlamaOracle model = MustLoad("toy");
  const auto tokens = SomeTokens(20);
  const auto width = static_cast<std::size_t>(model.vocab_size());
  const auto whole = model.Logits(tokens);
  const auto chunks = model.Logits(tokens, 7);
  ASSERT_TRUE(whole && chunks);
  EXPECT_TRUE(test::SameBits(*whole, *chunks, width));
  EXPECT_GT(*std::ranges::max_element(*whole), 0.1f);
}

TEST(LlamaOracle, RefusesWhatItCannotEvaluate) {
  EXPECT_EQ(LlamaOracle::Load("/nowhere.gguf").error().kind, base::ErrorKind::kCorruptModel);
  const LlamaOracle model = MustLoad("tiny-f32");
  EXPECT_FALSE(model.Logits({}));
  EXPECT_FALSE(model.Logits(std::vector<std::int32_t>{272}));
  EXPECT_FALSE(model.Logits(std::vector<std::int32_t>(257, 1)));
  EXPECT_FALSE(model.Greedy(std::vector<std::int32_t>(250, 1), 7));
}

}  // namespace
}  // namespace oracle
