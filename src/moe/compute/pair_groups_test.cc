#include "moe/compute/pair_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PairGroupsTest : public testing::Test {
 protected:
  void Build(std::size_t num_rows, std::size_t num_used, const std::vector<std::int32_t>& ids,
             const std::vector<std::uint8_t>& owned) {
    groups_.Reserve(ids.size(), owned.size());
    groups_.Build({.num_rows = num_rows, .num_used = num_used, .ids = ids.data()}, owned);
  }

  PairGroups groups_;
};

TEST_F(PairGroupsTest, LargestGroupsComeFirstAndPairsAscend) {
  Build(3, 2, {3, 1, 1, 0, 1, 3}, {1, 1, 1, 1});
  ASSERT_EQ(groups_.groups().size(), 3u);
  EXPECT_EQ(groups_.groups()[0].expert, ExpertId(1));
  EXPECT_EQ(groups_.groups()[1].expert, ExpertId(3));
  EXPECT_EQ(groups_.groups()[2].expert, ExpertId(0));
  EXPECT_EQ(groups_.groups()[0].size(), 3u);
  EXPECT_EQ(groups_.groups()[2].end, 6u);
  EXPECT_THAT(groups_.pairs(), ElementsAre(1, 2, 4, 0, 5, 3));
}

TEST_F(PairGroupsTest, LeavesOutWhatIsNotOwnedOrNoExpert) {
  Build(2, 3, {0, 1, 2, -1, 4, 2}, {0, 1, 1, 1});
  EXPECT_THAT(groups_.pairs(), ElementsAre(2, 5, 1));
  Build(1, 2, {0, 0}, {0, 1, 1, 1});
  EXPECT_THAT(groups_.groups(), IsEmpty());
  EXPECT_THAT(groups_.pairs(), IsEmpty());
}

TEST_F(PairGroupsTest, TheSameExpertTwiceInARowIsTwoPairs) {
  Build(1, 3, {2, 2, 1}, {1, 1, 1});
  EXPECT_THAT(groups_.pairs(), ElementsAre(0, 1, 2));
  EXPECT_EQ(groups_.groups()[0].size(), 2u);
}

}  // namespace
}  // namespace moe
