#include "engine/speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/fake_backend.h"

namespace engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(SpeedTest, EveryRepeatFeedsItsTokensAfterOneWarmUp) {
  FakeBackend backend(/*vocab_size=*/50, /*context_length=*/64, /*max_batch_rows=*/8);
  std::vector<std::size_t> seen;
  const auto speed = MeasureSpeed(
      backend, {.prompt_tokens = 20, .decode_tokens = 3, .repeats = 2, .batch_rows = 100},
      [&](std::size_t done, std::size_t total) {
        EXPECT_EQ(total, 6u);
        seen.push_back(done);
      },
      {});
  ASSERT_TRUE(speed) << speed.error().message;
  EXPECT_THAT(speed->prompt, SizeIs(2));
  EXPECT_THAT(speed->prompt, Each(Gt(0.0)));
  EXPECT_THAT(speed->decode, SizeIs(2));
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(backend.batch_sizes,
              ElementsAre(8, 8, 4, 1, 1, 1, 8, 8, 4, 1, 1, 1, 8, 8, 4, 1, 1, 1));
  EXPECT_EQ(backend.slot_length(0), 0u);
}

TEST(SpeedTest, ProfileIsOfOnePromptAndOneStep) {
  FakeBackend backend(50, 64, 8);
  const auto profile = ProfileNodes(
      backend, {.prompt_tokens = 20, .decode_tokens = 4, .depth = 3, .batch_rows = 100}, {});
  ASSERT_TRUE(profile) << profile.error().message;
  ASSERT_THAT(profile->prompt, SizeIs(1));
  EXPECT_EQ(profile->prompt[0].num_nodes, 20u);
  ASSERT_THAT(profile->decode, SizeIs(1));
  EXPECT_EQ(profile->decode[0].num_nodes, 1u);
  EXPECT_DOUBLE_EQ(profile->decode[0].ms, 1.0);
  EXPECT_EQ(backend.slot_length(0), 0u);
}

TEST(SpeedTest, DepthIsFilledBeforeEachMeasurement) {
  FakeBackend backend(50, 64, 8);
  const auto speed = MeasureSpeed(
      backend, {.prompt_tokens = 0, .decode_tokens = 2, .depth = 10, .repeats = 1}, {}, {});
  ASSERT_TRUE(speed) << speed.error().message;
  EXPECT_THAT(speed->prompt, SizeIs(0));
  EXPECT_THAT(speed->decode, SizeIs(1));
  EXPECT_THAT(backend.batch_sizes, ElementsAre(8, 2, 1, 1, 8, 2, 1, 1));
}

TEST(SpeedTest, SequencesGenerateTogether) {
  FakeBackend backend(50, 64, 8, /*num_slots=*/3);
  const auto speed = MeasureSpeed(
      backend, {.prompt_tokens = 5, .decode_tokens = 2, .depth = 4, .sequences = 3, .repeats = 1},
      {}, {});
  ASSERT_TRUE(speed) << speed.error().message;
  EXPECT_THAT(speed->decode, SizeIs(1));
  EXPECT_THAT(backend.batch_sizes, ElementsAre(4, 5, 4, 4, 4, 3, 3, 4, 5, 4, 4, 4, 3, 3));
  for (const std::uint32_t slot : {0u, 1u, 2u}) EXPECT_EQ(backend.slot_length(slot), 0u);
}

TEST(SpeedTest, RefusesWhatCannotBeMeasured) {
  FakeBackend backend(50, 64, 8);
  const auto message = [&](const SpeedRequest& request) {
    const auto speed = MeasureSpeed(backend, request, {}, {});
    EXPECT_FALSE(speed);
    return speed ? std::string() : speed.error().message;
  };
  EXPECT_THAT(message({.prompt_tokens = 60, .depth = 5}), HasSubstr("context of 64"));
  EXPECT_THAT(message({.sequences = 2}), HasSubstr("2 sequences"));
  EXPECT_THAT(message({.prompt_tokens = 0, .decode_tokens = 0}), HasSubstr("nothing to measure"));
  EXPECT_THAT(message({.prompt_tokens = 1, .repeats = 0}), HasSubstr("nothing to measure"));
  EXPECT_TRUE(backend.batch_sizes.empty());
}

TEST(SpeedTest, StopsWhenAsked) {
  FakeBackend backend(50, 64, 8);
  std::stop_source stop;
  const auto speed = MeasureSpeed(
      backend, {.prompt_tokens = 8, .decode_tokens = 0, .repeats = 3},
      [&](std::size_t done, std::size_t) {
        if (done == 2) stop.request_stop();
      },
      stop.get_token());
  ASSERT_FALSE(speed);
  EXPECT_EQ(speed.error().kind, base::ErrorKind::kCancelled);
  EXPECT_THAT(backend.batch_sizes, SizeIs(2));
}

TEST(SpeedTest, SummaryIsMedianLeastAndMost) {
  EXPECT_EQ(Summarize({}).median, 0);
  const SampleSummary odd = Summarize({5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(Summarize({4, 1, 2, 100}).median, 3);
}

}  // namespace
}  // namespace engine
