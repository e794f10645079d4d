#include "engine/statistics.h"

#include <gtest/gtest.h>

namespace engine {
namespace {

TEST(DurationHistogramTest, BoundsAreInclusiveAndTheRestHasABucket) {
  DurationHistogram histogram;
  for (const double seconds : {0.001, 0.01, 0.011, 250.0, 251.0}) histogram.Add(seconds);
  EXPECT_EQ(histogram.counts().front(), 2U);
  EXPECT_EQ(histogram.counts()[1], 1U);
  EXPECT_EQ(histogram.counts()[13], 1U);
  EXPECT_EQ(histogram.counts().back(), 1U);
  EXPECT_EQ(histogram.count(), 5U);
  EXPECT_NEAR(histogram.sum_seconds(), 501.022, 1e-9);
}

}  // namespace
}  // namespace engine
