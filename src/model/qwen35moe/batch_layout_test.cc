#include "model/qwen35moe/batch_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace model::qwen35moe {
namespace {

using testing::ElementsAre;

class BatchLayoutTest : public testing::Test {
 protected:
  BatchLayout LayOut(const std::vector<BatchRow>& rows) {
    auto layout = LayOutBatch(rows, {.max_rows = 8,
                                     .vocab_size = 100,
                                     .context_length = 600,
                                     .num_cells = 640,
                                     .slot_lengths = lengths_});
    EXPECT_TRUE(layout) << layout.error().message;
    return layout ? *layout : BatchLayout();
  }

  std::vector<std::uint32_t> lengths_ = {10, 255, 0, 520};
};

TEST_F(BatchLayoutTest, RowsLieSlotAfterSlotInTheirOwnOrder) {
  const BatchLayout layout =
      LayOut({{5, 2, 0, false}, {6, 0, 10, true}, {7, 2, 1, true}, {8, 0, 11, false}});
  EXPECT_THAT(layout.order, ElementsAre(1, 3, 0, 2));
  EXPECT_THAT(layout.outputs, ElementsAre(0, 3)) << "in the order of the batch";
  EXPECT_THAT(layout.shape.runs, ElementsAre(SlotRun{0, 1, 2}, SlotRun{2, 1, 2}));
  EXPECT_EQ(layout.shape.num_outputs, 2U);
  EXPECT_EQ(layout.shape.num_rows(), 4U);
}

TEST_F(BatchLayoutTest, NeighboursWithEquallyManyRowsAreOneRun) {
  const BatchLayout layout = LayOut(
      {{1, 0, 10, true}, {1, 1, 255, true}, {1, 2, 0, true}, {1, 3, 520, true}, {1, 3, 521, true}});
  EXPECT_THAT(layout.shape.runs, ElementsAre(SlotRun{0, 3, 1}, SlotRun{3, 1, 2}));
}

TEST_F(BatchLayoutTest, CellsGrowInStepsUpToWhatASlotHas) {
  EXPECT_EQ(LayOut({{1, 0, 10, true}}).shape.num_cells, 256U);
  EXPECT_EQ(LayOut({{1, 1, 255, true}}).shape.num_cells, 256U);
  lengths_[1] = 256;
  EXPECT_EQ(LayOut({{1, 1, 256, true}}).shape.num_cells, 512U);
  EXPECT_EQ(LayOut({{1, 3, 520, true}}).shape.num_cells, 640U);
}

TEST_F(BatchLayoutTest, RefusesAnEmptyOrTooLargeBatch) {
  const BatchLimits limits = {.max_rows = 2,
                              .vocab_size = 100,
                              .context_length = 600,
                              .num_cells = 640,
                              .slot_lengths = lengths_};
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}}) {
    const std::vector<BatchRow> rows(count, BatchRow{1, 2, 0, true});
    auto layout = LayOutBatch(rows, limits);
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().kind, base::ErrorKind::kInvalidInput);
  }
}

}  // namespace
}  // namespace model::qwen35moe
