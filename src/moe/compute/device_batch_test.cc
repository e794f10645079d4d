#include "moe/compute/device_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moe {
namespace {

using testing::ElementsAre;

TEST(DeviceBatch, SizesAreFewAndNeverWasteMoreThanHalf) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 1; n <= 4096; ++n) {
    const std::size_t padded = PaddedPairs(n);
    ASSERT_GE(padded, n);
    ASSERT_LE(2 * padded, 3 * n) << n;
    if (sizes.empty() || sizes.back() != padded) sizes.push_back(padded);
  }
  EXPECT_EQ(sizes.size(), 26u);
}

TEST(DeviceBatch, HoldsTheOwnedPairsAndPadsWithTheFirst) {
  // Experts 1, 2 and 4 are local ids 0, 1 and 2.
  const std::vector<std::int32_t> locals = {-1, 0, 1, -1, 2};
  const std::vector<std::int32_t> ids = {1, 2, 4,   // row 0: all
                                         0, 3, 0,   // row 1: none
                                         0, 4, 1,   // row 2
                                         2, 4, 1,   // row 3: all
                                         2, 3, 0};  // row 4
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  DeviceBatch batch;
  batch.Build({.num_rows = 5, .num_used = 3, .ids = ids.data(), .weights = weights.data()}, {},
              locals, 8, 100);
  ASSERT_EQ(batch.launches().size(), 1u);
  EXPECT_EQ(batch.num_pairs(), 9u);
  const DeviceLaunch& launch = batch.launches()[0];
  EXPECT_THAT(launch.rows, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(launch.pair_rows, ElementsAre(0, 0, 0, 1, 1, 2, 2, 2, 3, 0, 0, 0));
  EXPECT_THAT(launch.pair_locals, ElementsAre(0, 1, 2, 2, 0, 1, 2, 0, 1, 0, 0, 0));
  EXPECT_THAT(launch.slot_pairs, ElementsAre(0, 1, 2, 3, 4, 3, 5, 6, 7, 8, 8, 8));
  EXPECT_THAT(launch.slot_weights, ElementsAre(1, 2, 3, 8, 9, 0, 10, 11, 12, 13, 0, 0));
  EXPECT_TRUE(launch.gate_scales.empty());
}

TEST(DeviceBatch, CutsIntoLaunchesByRowsAndStacks) {
  const std::vector<std::int32_t> locals = {0, 1, 2};
  const std::vector<std::int32_t> ids = {0, 1, 2, 0, 0, 1};
  const std::vector<float> weights(6, 1.0f);
  DeviceBatch batch;
  LayerWeights layer;
  layer.gate.scales = {5, 6, 7};
  layer.down.scales = {10};
  batch.Build({.num_rows = 3, .num_used = 2, .ids = ids.data(), .weights = weights.data()}, layer,
              locals, 2, 2);
  ASSERT_EQ(batch.launches().size(), 3u);
  EXPECT_THAT(batch.launches()[0].rows, ElementsAre(0, 1));
  EXPECT_THAT(batch.launches()[0].pair_locals, ElementsAre(0, 1, 0));
  EXPECT_EQ(batch.launches()[1].stack, 1u);
  EXPECT_THAT(batch.launches()[1].rows, ElementsAre(1));
  EXPECT_THAT(batch.launches()[1].pair_locals, ElementsAre(0));
  EXPECT_THAT(batch.launches()[1].gate_scales, ElementsAre(7));
  EXPECT_THAT(batch.launches()[1].slot_weights, ElementsAre(10, 0));
  EXPECT_THAT(batch.launches()[2].rows, ElementsAre(2));
  EXPECT_EQ(batch.num_pairs(), 6u);
}

TEST(DeviceBatch, IsEmptyWithoutOwnedPairs) {
  const std::vector<std::int32_t> locals = {-1, 0};
  const std::vector<std::int32_t> ids = {0, 0};
  const std::vector<float> weights(2, 1.0f);
  DeviceBatch batch;
  batch.Build({.num_rows = 2, .num_used = 1, .ids = ids.data(), .weights = weights.data()}, {},
              locals, 1, 8);
  EXPECT_TRUE(batch.launches().empty());
  batch.Build({.num_rows = 0, .num_used = 1}, {}, locals, 1, 8);
  EXPECT_TRUE(batch.launches().empty());
}

}  // namespace
}  // namespace moe
