#include "engine/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/fake_backend.h"

namespace engine {
namespace {

TEST(ProbeTest, LogitsOfEveryTokenWhateverTheSteps) {
  FakeBackend whole(50, 32, 16);
  FakeBackend steps(50, 32, 3);
  const ProbeRequest request{.prompt_tokens = 10, .single_tokens = 4};
  const auto a = ProbeLogits(whole, request, {});
  const auto b = ProbeLogits(steps, request, {});
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->size(), 14u * 50);
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(whole.batch_sizes, (std::vector<std::size_t>{10, 1, 1, 1, 1}));
  EXPECT_EQ(steps.batch_sizes, (std::vector<std::size_t>{3, 3, 3, 1, 1, 1, 1, 1}));
  EXPECT_EQ(whole.slot_length(0), 0u);
}

TEST(ProbeTest, RefusesATooShortContextAndStops) {
  FakeBackend backend(50, 8, 8);
  const auto refused = ProbeLogits(backend, {.prompt_tokens = 8, .single_tokens = 1}, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, base::ErrorKind::kInvalidInput);
  std::stop_source stop;
  stop.request_stop();
  const auto stopped =
      ProbeLogits(backend, {.prompt_tokens = 4, .single_tokens = 1}, stop.get_token());
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, base::ErrorKind::kCancelled);
}

TEST(ProbeTest, NormalisedErrorIsRelativeToTheReference) {
  const std::vector<float> reference = {3, 4};
  EXPECT_EQ(NormalisedError(reference, reference), 0);
  EXPECT_DOUBLE_EQ(NormalisedError(std::vector<float>{3, 5}, reference), 1.0 / 25);
  EXPECT_TRUE(std::isinf(NormalisedError(std::vector<float>{3}, reference)));
  EXPECT_TRUE(std::isinf(NormalisedError(std::vector<float>{0}, std::vector<float>{0})));
}

}  // namespace
}  // namespace engine
