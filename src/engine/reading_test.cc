#include "engine/reading.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/fake_backend.h"

namespace engine {
namespace {

class ReadingTest : public ::testing::Test {
 protected:
  FakeBackend backend_{200, /*context_length=*/16, /*max_batch_rows=*/5};
  const std::vector<model::Token> tokens_ = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10};
};

TEST_F(ReadingTest, EveryTokenIsReadOnceAtItsPlaceInItsChunk) {
  for (const std::size_t chunk : {1, 4, 11, 16}) {
    for (const std::size_t step : {1, 3, 512}) {
      backend_.rows_seen.clear();
      std::vector<std::size_t> progress;
      const auto read =
          ReadTokens(backend_, {.tokens = tokens_, .chunk_tokens = chunk, .batch_rows = step},
                     [&](std::size_t done, std::size_t total) {
                       EXPECT_EQ(total, tokens_.size());
                       progress.push_back(done);
                     },
                     {});
      ASSERT_TRUE(read) << read.error().message;
      ASSERT_EQ(backend_.rows_seen.size(), tokens_.size());
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        EXPECT_EQ(backend_.rows_seen[i].token, tokens_[i]);
        EXPECT_EQ(backend_.rows_seen[i].position, i % chunk);
        EXPECT_FALSE(backend_.rows_seen[i].wants_logits);
      }
      EXPECT_EQ(progress.back(), tokens_.size());
      EXPECT_EQ(backend_.slot_length(0), 0u);
    }
  }
}

TEST_F(ReadingTest, RefusesNothingToReadAndTooLongAChunk) {
  for (const ReadingRequest& request :
       {ReadingRequest{.tokens = {}}, ReadingRequest{.tokens = tokens_, .chunk_tokens = 17},
        ReadingRequest{.tokens = tokens_, .chunk_tokens = 0}}) {
    const auto read = ReadTokens(backend_, request, {}, {});
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, base::ErrorKind::kInvalidInput);
  }
  EXPECT_TRUE(backend_.rows_seen.empty());
}

TEST_F(ReadingTest, StopsBetweenSteps) {
  std::stop_source stop;
  const auto read = ReadTokens(
      backend_, {.tokens = tokens_, .chunk_tokens = 8, .batch_rows = 2},
      [&](std::size_t done, std::size_t) {
        if (done == 4) stop.request_stop();
      },
      stop.get_token());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, base::ErrorKind::kCancelled);
  EXPECT_EQ(backend_.rows_seen.size(), 4u);
}

}  // namespace
}  // namespace engine
