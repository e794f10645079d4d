#include "moe/profile/routing_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

TEST(RoutingRecorderTest, CountsAsAProfileDoes) {
  RoutingRecorder recorder(TestShape({10, 10}, 3).identity, "requests");
  EXPECT_TRUE(recorder.CountStep(std::vector<std::int32_t>{0, 2, 1, 2}, 1, 2));
  EXPECT_FALSE(recorder.CountStep(std::vector<std::int32_t>{0, 2, 1, 3}, 1, 2));
  const RoutingProfile profile = recorder.Snapshot();
  EXPECT_EQ(profile.text(), "requests");
  EXPECT_EQ(profile.num_tokens(), 1u);
  EXPECT_EQ(profile.counts(), (std::vector<std::vector<std::uint64_t>>{{1, 0, 1}, {0, 1, 1}}));
}

TEST(RoutingRecorderTest, ASnapshotHoldsWholeSteps) {
  RoutingRecorder recorder(TestShape({10, 10}, 3).identity, "requests");
  constexpr std::uint64_t kSteps = 20'000;
  std::jthread counting([&] {
    const std::vector<std::int32_t> ids = {0, 2, 1, 2};
    for (std::uint64_t i = 0; i < kSteps; ++i) ASSERT_TRUE(recorder.CountStep(ids, 1, 2));
  });
  for (std::uint64_t tokens = 0; tokens < kSteps;) {
    const RoutingProfile profile = recorder.Snapshot();
    EXPECT_GE(profile.num_tokens(), tokens);
    tokens = profile.num_tokens();
    for (const std::vector<std::uint64_t>& layer : profile.counts()) {
      ASSERT_EQ(std::accumulate(layer.begin(), layer.end(), std::uint64_t{0}), 2 * tokens);
    }
  }
}

}  // namespace
}  // namespace moe
