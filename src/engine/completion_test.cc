#include "engine/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/fake_backend.h"

namespace engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CompletionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
    ASSERT_TRUE(loaded) << loaded.error().message;
    vocabulary_ = std::make_unique<model::Vocabulary>(std::move(*loaded));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static std::unique_ptr<model::Vocabulary> vocabulary_;
  FakeBackend backend_{vocabulary_->size(), /*context_length=*/64, /*max_batch_rows=*/16};
};

std::unique_ptr<model::Vocabulary> CompletionTest::vocabulary_;

// What greedy decoding of FakeBackend gives.
std::vector<model::Token> Expected(std::vector<model::Token> history, std::size_t count,
                                   std::size_t vocab_size) {
  std::vector<model::Token> generated;
  while (generated.size() < count) {
    const auto next = static_cast<model::Token>(FakeBackend::Likeliest(history, vocab_size));
    history.push_back(next);
    generated.push_back(next);
  }
  return generated;
}

TEST_F(CompletionTest, GreedyFollowsTheLikeliestTokenWhateverThePromptStep) {
  const std::vector<model::Token> prompt = {3, 1, 4, 1, 5};
  for (const std::size_t step : {1, 2, 5, 512}) {
    CompletionRequest request{.prompt = prompt, .max_tokens = 4, .batch_rows = step};
    request.ignore_end = true;
    request.sampling.temperature = 0;
    std::string streamed;
    auto completion = Complete(backend_, *vocabulary_, request,
                               {.token = [&](std::string_view piece) { streamed += piece; }}, {});
    ASSERT_TRUE(completion) << completion.error().message;
    EXPECT_EQ(completion->tokens, Expected(prompt, 4, vocabulary_->size())) << "step " << step;
    EXPECT_EQ(streamed, completion->text);
    EXPECT_EQ(completion->text, vocabulary_->Text(completion->tokens));
  }
}

TEST_F(CompletionTest, PromptGoesInStepsAndTheLastTokenIsNotFedBack) {
  CompletionRequest request{.prompt = {1, 2, 3, 4, 5}, .max_tokens = 2, .batch_rows = 2};
  request.ignore_end = true;
  std::vector<std::size_t> progress;
  auto completion = Complete(
      backend_, *vocabulary_, request,
      {.prompt_progress = [&](std::size_t done, std::size_t) { progress.push_back(done); }}, {});
  ASSERT_TRUE(completion) << completion.error().message;
  EXPECT_THAT(progress, ElementsAre(2, 4, 5));
  EXPECT_THAT(backend_.batch_sizes, ElementsAre(2, 2, 1, 1));
}

TEST_F(CompletionTest, StopsAtEndOfGenerationUnlessToldToGoOn) {
  model::Token end = -1;
  for (std::size_t t = 0; t < vocabulary_->size(); ++t) {
    if (vocabulary_->IsEndOfGeneration(static_cast<model::Token>(t))) {
      end = static_cast<model::Token>(t);
    }
  }
  ASSERT_GE(end, 0);
  CompletionRequest request{.prompt = {end}, .max_tokens = 3};
  request.sampling.temperature = 0;
  auto ended = Complete(backend_, *vocabulary_, request, {}, {});
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->ended);
  EXPECT_TRUE(ended->tokens.empty());
  request.ignore_end = true;
  auto went_on = Complete(backend_, *vocabulary_, request, {}, {});
  ASSERT_TRUE(went_on);
  EXPECT_FALSE(went_on->ended);
  EXPECT_EQ(went_on->tokens.size(), 3u);
}

TEST_F(CompletionTest, SameSeedSameTokens) {
  CompletionRequest request{.prompt = {7}, .max_tokens = 20};
  request.ignore_end = true;
  request.sampling = {.temperature = 5, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 11};
  auto one = Complete(backend_, *vocabulary_, request, {}, {});
  auto two = Complete(backend_, *vocabulary_, request, {}, {});
  request.sampling.seed = 12;
  auto other = Complete(backend_, *vocabulary_, request, {}, {});
  ASSERT_TRUE(one && two && other);
  EXPECT_EQ(one->tokens, two->tokens);
  EXPECT_NE(one->tokens, other->tokens);
}

TEST_F(CompletionTest, RefusesWhatDoesNotFitWithBothNumbers) {
  CompletionRequest request{.prompt = std::vector<model::Token>(60, 1), .max_tokens = 6};
  auto completion = Complete(backend_, *vocabulary_, request, {}, {});
  ASSERT_FALSE(completion);
  EXPECT_EQ(completion.error().kind, base::ErrorKind::kInvalidInput);
  EXPECT_THAT(completion.error().message, HasSubstr("65"));
  EXPECT_THAT(completion.error().message, HasSubstr("64"));
  EXPECT_FALSE(Complete(backend_, *vocabulary_, {.prompt = {}}, {}, {}));
  request = {.prompt = {1}, .max_tokens = 1};
  request.sampling.top_p = 1.5F;
  auto bad = Complete(backend_, *vocabulary_, request, {}, {});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, HasSubstr("top-p is 1.5"));
}

TEST_F(CompletionTest, StopRequestCancels) {
  std::stop_source stop;
  CompletionRequest request{.prompt = {1}, .max_tokens = 30};
  request.ignore_end = true;
  auto completion =
      Complete(backend_, *vocabulary_, request,
               {.token = [&](std::string_view) { stop.request_stop(); }}, stop.get_token());
  ASSERT_FALSE(completion);
  EXPECT_EQ(completion.error().kind, base::ErrorKind::kCancelled);
}

TEST_F(CompletionTest, TokenisesBytesThereAndBack) {
  const std::string text = "Grüße, 世界!\n";
  auto tokens = vocabulary_->Tokenize(text, /*add_special=*/false);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(vocabulary_->Text(*tokens), text);
  auto empty = vocabulary_->Tokenize("", false);
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->empty());
}

}  // namespace
}  // namespace engine
