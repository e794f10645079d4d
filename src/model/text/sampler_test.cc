#include "model/text/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <format>
#include <limits>

namespace model {
namespace {

using ::testing::HasSubstr;

class SamplerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
    ASSERT_TRUE(loaded) << loaded.error().message;
    vocabulary_ = std::make_unique<Vocabulary>(*std::move(loaded));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  // Logits that fall from the first of `order` to the last; every other token is far below.
  static std::vector<float> Prefer(const std::vector<Token>& order) {
    std::vector<float> logits(vocabulary_->size(), -20.0F);
    float logit = 1.0F;
    for (const Token token : order) logits[static_cast<std::size_t>(token)] = logit -= 0.1F;
    return logits;
  }
  static Token Pick(const SamplingSettings& settings, const std::vector<Token>& prompt,
                    const std::vector<float>& logits) {
    auto sampler = Sampler::Make(settings, *vocabulary_);
    EXPECT_TRUE(sampler) << sampler.error().message;
    sampler->Prime(prompt);
    auto token = sampler->Next(logits);
    EXPECT_TRUE(token) << token.error().message;
    return token.value_or(-1);
  }
  static std::string Refusal(const SamplingSettings& settings) {
    auto sampler = Sampler::Make(settings, *vocabulary_);
    EXPECT_FALSE(sampler);
    if (sampler) return "accepted";
    EXPECT_EQ(sampler.error().kind, base::ErrorKind::kInvalidInput);
    return sampler.error().message;
  }

  static std::unique_ptr<Vocabulary> vocabulary_;
};

std::unique_ptr<Vocabulary> SamplerTest::vocabulary_;

TEST_F(SamplerTest, GreedyTakesTheLowestOfEqualTokens) {
  std::vector<float> logits(vocabulary_->size(), 0.0F);
  logits[9] = logits[7] = 2;
  EXPECT_EQ(Pick({.temperature = 0}, {}, logits), 7);
  SamplingSettings biased = {.temperature = 0};
  biased.logit_bias = {{100, -1}};
  EXPECT_EQ(Pick(biased, {}, logits), 7);
}

TEST_F(SamplerTest, BiasRaisesAndForbidsTokens) {
  SamplingSettings settings = {.temperature = 0};
  settings.logit_bias = {{5, -std::numeric_limits<float>::infinity()}, {8, 0.15F}};
  EXPECT_EQ(Pick(settings, {}, Prefer({5, 6, 8})), 8);
  settings.temperature = 1;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    settings.seed = seed;
    EXPECT_NE(Pick(settings, {}, Prefer({5, 6, 8})), 5);
  }
}

TEST_F(SamplerTest, PenaltiesLookAtThePromptsLastTokens) {
  SamplingSettings settings = {.temperature = 0};
  settings.penalty_last_n = 3;
  settings.repeat_penalty = 2;
  EXPECT_EQ(Pick(settings, {1, 2, 3}, Prefer({5, 6})), 5);
  EXPECT_EQ(Pick(settings, {5, 2, 3}, Prefer({5, 6})), 6);
  EXPECT_EQ(Pick(settings, {5, 1, 2, 3}, Prefer({5, 6})), 5) << "too long ago";
  settings.penalty_last_n = -1;
  EXPECT_EQ(Pick(settings, {5, 1, 2, 3}, Prefer({5, 6})), 6);
  settings.penalty_last_n = 0;
  EXPECT_EQ(Pick(settings, {5, 1, 2, 3}, Prefer({5, 6})), 5);
}

TEST_F(SamplerTest, FrequencyCountsAndPresenceDoesNot) {
  SamplingSettings settings = {.temperature = 0};
  settings.frequency_penalty = 0.06F;
  EXPECT_EQ(Pick(settings, {5}, Prefer({5, 6})), 5);
  EXPECT_EQ(Pick(settings, {5, 5}, Prefer({5, 6})), 6);
  settings.frequency_penalty = 0;
  settings.presence_penalty = 0.06F;
  EXPECT_EQ(Pick(settings, {5, 5}, Prefer({5, 6})), 5);
  settings.presence_penalty = 0.12F;
  EXPECT_EQ(Pick(settings, {5}, Prefer({5, 6})), 6);
}

TEST_F(SamplerTest, GeneratedTokensArePenalisedToo) {
  SamplingSettings settings = {.temperature = 0};
  settings.presence_penalty = 0.12F;
  auto sampler = Sampler::Make(settings, *vocabulary_);
  ASSERT_TRUE(sampler);
  EXPECT_EQ(*sampler->Next(Prefer({5, 6})), 5);
  EXPECT_EQ(*sampler->Next(Prefer({5, 6})), 6);
}

TEST_F(SamplerTest, DryStopsALongRepetition) {
  SamplingSettings settings = {.temperature = 0};
  settings.dry_multiplier = 1;
  settings.dry_breakers = {};
  EXPECT_EQ(Pick(settings, {1, 2, 3, 5, 9, 1, 2, 3}, Prefer({5, 6})), 6);
  EXPECT_EQ(Pick(settings, {1, 2, 3, 7, 9, 1, 2, 3}, Prefer({5, 6})), 5);
  settings.dry_allowed_length = 8;
  EXPECT_EQ(Pick(settings, {1, 2, 3, 5, 9, 1, 2, 3}, Prefer({5, 6})), 5);
}

TEST_F(SamplerTest, FiltersCutTheTail) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> flat(vocabulary_->size(), 0.0F);
    std::vector<float> logits = flat;
    logits[5] = 0.5F;
    EXPECT_EQ(Pick({.temperature = 50, .top_k = 1, .seed = seed}, {}, logits), 5);
    EXPECT_EQ(Pick({.temperature = 1, .top_k = 0, .top_p = 1e-4F, .seed = seed}, {}, logits), 5);
    EXPECT_EQ(Pick({.temperature = 1, .top_k = 0, .min_p = 0.9F, .seed = seed}, {}, logits), 5);
  }
}

TEST_F(SamplerTest, TopKDrawsTheSameFromTheWholeVocabularyAndFromItsTop) {
  const SamplingSettings settings = {.temperature = 2, .top_k = 20, .top_p = 0.9F, .seed = 5};
  SamplingSettings adjusted = settings;
  adjusted.logit_bias = {{0, 0.0F}};  // changes nothing, but takes every token into account
  auto few = Sampler::Make(settings, *vocabulary_);
  auto all = Sampler::Make(adjusted, *vocabulary_);
  ASSERT_TRUE(few && all);
  std::uint32_t x = 1;
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<float> logits(vocabulary_->size());
    for (float& logit : logits) {
      x = x * 1664525U + 1013904223U;
      logit = static_cast<float>(x >> 8) * 4e-7F;
    }
    ASSERT_EQ(*few->Next(logits), *all->Next(logits)) << "draw " << draw;
  }
}

TEST_F(SamplerTest, SameSeedSameTokens) {
  const auto draw = [](std::uint32_t seed) {
    auto sampler = Sampler::Make({.temperature = 3, .top_k = 0, .seed = seed}, *vocabulary_);
    std::vector<Token> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(*sampler->Next(Prefer({1, 2, 3, 4, 5, 6})));
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST_F(SamplerTest, TheTextMatchesTheGrammar) {
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingSettings settings = {.temperature = temperature};
    settings.grammar = "root ::= (\"abc\" | \"xyz\") [0-3]";
    auto sampler = Sampler::Make(settings, *vocabulary_);
    ASSERT_TRUE(sampler) << sampler.error().message;
    std::string text;
    Token token = 0;
    while (text.size() < 10) {
      auto next = sampler->Next(Prefer(*vocabulary_->Tokenize("qx9", false)));
      ASSERT_TRUE(next) << next.error().message;
      token = *next;
      if (vocabulary_->IsEndOfGeneration(token)) break;
      text += vocabulary_->Piece(token);
    }
    EXPECT_TRUE(vocabulary_->IsEndOfGeneration(token)) << text;
    EXPECT_THAT(text, ::testing::MatchesRegex("xyz[0-3]"));
  }
}

TEST_F(SamplerTest, RefusesGrammarsThatCannotBeUsed) {
  SamplingSettings settings;
  settings.grammar = "root ::= \"a\"\nb ::= (";
  EXPECT_THAT(Refusal(settings), HasSubstr("line 2, column 7"));
  settings.grammar = "root ::= root \"a\" | \"b\"";
  EXPECT_THAT(Refusal(settings), HasSubstr("begins with itself"));
  settings.grammar = "root ::= <|im_end|> <nothing like it>";
  EXPECT_THAT(Refusal(settings), HasSubstr("<nothing like it>"));
}

// libllama prints its refusals, so what it would refuse must not reach it.
TEST_F(SamplerTest, LibllamaTakesAndSurvivesWhatTheCheckTakes) {
  const std::string deep = std::string(200, '(') + "\"a\"" + std::string(200, ')');
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 16000; ++i) chain += std::format("r{} ::= r{}\n", i, i + 1);
  chain += "r16000 ::= \"a\"";
  for (const std::string& grammar :
       {"root ::= " + deep, chain, std::string("root ::= \"a\"{3,1999}"),
        std::string("root ::= (\"a\" | b){2,}{3} [^a-z\\]\\x41-]* . # end\r\n b ::= !<[3]>?\n\n"),
        std::string("root ::= \"\\u00e4\\U0001F680\\\"\" |\n \"ö\"? | # nothing\n")}) {
    SamplingSettings settings;
    settings.grammar = grammar;
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(Sampler::Make(settings, *vocabulary_)) << grammar.substr(0, 100);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << grammar.substr(0, 100);
  }
}

TEST_F(SamplerTest, RefusesSettingsByName) {
  const auto refusal = [](auto change) {
    SamplingSettings settings;
    change(settings);
    return Refusal(settings);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal([](auto& s) { s.temperature = -1; }), HasSubstr("temperature is -1"));
  EXPECT_THAT(refusal([=](auto& s) { s.temperature = nan; }), HasSubstr("temperature is nan"));
  EXPECT_THAT(refusal([](auto& s) { s.top_k = -1; }), HasSubstr("top-k is -1"));
  EXPECT_THAT(refusal([](auto& s) { s.top_p = 1.5F; }), HasSubstr("top-p is 1.5"));
  EXPECT_THAT(refusal([](auto& s) { s.min_p = -0.5F; }), HasSubstr("min-p is -0.5"));
  EXPECT_THAT(refusal([](auto& s) { s.typical_p = 2; }), HasSubstr("typical is 2"));
  EXPECT_THAT(refusal([](auto& s) { s.repeat_penalty = 0; }), HasSubstr("repeat-penalty is 0"));
  EXPECT_THAT(refusal([](auto& s) { s.penalty_last_n = 1 << 30; }), HasSubstr("repeat-last-n"));
  EXPECT_THAT(refusal([](auto& s) { s.frequency_penalty = 1e6F; }), HasSubstr("frequency"));
  EXPECT_THAT(refusal([=](auto& s) { s.presence_penalty = nan; }), HasSubstr("presence"));
  EXPECT_THAT(refusal([](auto& s) { s.dry_multiplier = -1; }), HasSubstr("dry-multiplier"));
  EXPECT_THAT(refusal([](auto& s) { s.dry_base = 0; }), HasSubstr("dry-base"));
  EXPECT_THAT(refusal([](auto& s) { s.dry_allowed_length = -2; }), HasSubstr("allowed-length"));
  EXPECT_THAT(refusal([](auto& s) { s.dry_last_n = -2; }), HasSubstr("dry-penalty-last-n"));
  EXPECT_THAT(refusal([](auto& s) { s.dry_breakers = {""}; }), HasSubstr("breaker"));
  EXPECT_THAT(refusal([=](auto& s) { s.logit_bias = {{1, nan}}; }), HasSubstr("token 1"));
  EXPECT_THAT(refusal([](auto& s) { s.logit_bias = {{-1, 0}}; }), HasSubstr("token -1"));
  EXPECT_THAT(refusal([](auto& s) { s.logit_bias = {{1 << 30, 0}}; }), HasSubstr("1073741824"));
}

TEST_F(SamplerTest, LogitsThatAreNoNumbersAreAnError) {
  const std::vector<float> logits(vocabulary_->size(), std::numeric_limits<float>::quiet_NaN());
  auto sampler = Sampler::Make({}, *vocabulary_);
  ASSERT_TRUE(sampler);
  auto token = sampler->Next(logits);
  ASSERT_FALSE(token);
  EXPECT_EQ(token.error().kind, base::ErrorKind::kInternal);
}

}  // namespace
}  // namespace model
