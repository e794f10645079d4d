#include "support/logits_compare.h"

#include <gmock/gmock.h>

#include <limits>
#include <vector>

namespace test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CompareLogits, EqualLogitsHaveNoError) {
  const std::vector<float> logits = {1, -2, 3, 0.5f};
  const auto compared = CompareLogits(logits, logits, 2, 0);
  EXPECT_EQ(compared.rows, 2u);
  EXPECT_EQ(compared.median_nmse, 0);
  EXPECT_EQ(compared.worst_nmse, 0);
  EXPECT_EQ(compared.fraction_above, 0);
  EXPECT_EQ(compared.relative_error, 0);
}

TEST(CompareLogits, ErrorIsRelativeToTheRowsPower) {
  const std::vector<float> reference = {3, 4, 30, 40};
  const std::vector<float> actual = {3, 5, 30, 41};
  const auto compared = CompareLogits(reference, actual, 2, 0.01);
  EXPECT_DOUBLE_EQ(compared.worst_nmse, 1.0 / 25);
  EXPECT_DOUBLE_EQ(compared.median_nmse, (1.0 / 25 + 1.0 / 2500) / 2);
  EXPECT_DOUBLE_EQ(compared.fraction_above, 0.5);
  EXPECT_DOUBLE_EQ(compared.relative_error, 1.0 / 40);
}

TEST(CompareLogits, FindsTheWorstValue) {
  const std::vector<float> reference = {1, 1, 1, 1, 1, 1};
  const std::vector<float> actual = {1, 1.5f, 1, 1, -3, 1};
  const auto compared = CompareLogits(reference, actual, 3, 1);
  EXPECT_EQ(compared.worst_row, 1u);
  EXPECT_EQ(compared.worst_column, 1u);
  EXPECT_EQ(compared.worst_actual, -3);
  EXPECT_THAT(compared.Describe(), testing::HasSubstr("row 1 column 1: -3 instead of 1"));
}

TEST(CompareLogits, NotANumberIsAnInfiniteError) {
  const std::vector<float> reference = {1, 2, 3, 4, 5, 6};
  const std::vector<float> actual = {1, 2, kNan, 4, 5, 6};
  const auto compared = CompareLogits(reference, actual, 2, 1);
  EXPECT_EQ(compared.worst_nmse, std::numeric_limits<double>::infinity());
  EXPECT_EQ(compared.median_nmse, 0);
  EXPECT_EQ(compared.worst_row, 1u);
  EXPECT_DOUBLE_EQ(compared.fraction_above, 1.0 / 3);
}

TEST(LogitsAgree, PassesWithinTheTolerance) {
  const std::vector<float> reference = {1, 2, 1, 2, 1, 2};
  const std::vector<float> actual = {1, 2, 1, 2.001f, 1, 2};
  EXPECT_TRUE(LogitsAgree(reference, actual, 2, {.median_nmse = 1e-9, .row_nmse = 1e-6}));
}

TEST(LogitsAgree, FailsWhenTooManyRowsAreOff) {
  const std::vector<float> reference = {1, 2, 1, 2, 1, 2};
  const std::vector<float> actual = {1, 2, 1, 9, 1, 2};
  const LogitsTolerance tolerance{.median_nmse = 1e-9, .row_nmse = 1e-6};
  EXPECT_FALSE(LogitsAgree(reference, actual, 2, tolerance));
  EXPECT_TRUE(LogitsAgree(reference, actual, 2,
                          {.median_nmse = 1e-9, .row_nmse = 1e-6, .fraction_above = 0.4}));
}

TEST(LogitsAgree, FailsWhenTheMedianRowIsOff) {
  const std::vector<float> reference = {1, 2, 1, 2, 1, 2};
  const std::vector<float> actual = {1, 2.1f, 1, 2.1f, 1, 2};
  EXPECT_FALSE(LogitsAgree(reference, actual, 2, {.median_nmse = 1e-6, .row_nmse = 1}));
}

TEST(LogitsAgree, FailsWhenAllRowsAreNotANumber) {
  const std::vector<float> reference = {1, 2};
  const std::vector<float> actual = {kNan, kNan};
  EXPECT_FALSE(LogitsAgree(reference, actual, 2, {.median_nmse = 1, .row_nmse = 1}));
}

TEST(LogitsAgree, FailsOnNothingAndOnOtherSizes) {
  const std::vector<float> one = {1, 2}, two = {1, 2, 3, 4};
  EXPECT_FALSE(LogitsAgree({}, {}, 2, {.median_nmse = 1, .row_nmse = 1}));
  EXPECT_FALSE(LogitsAgree(one, two, 2, {.median_nmse = 1, .row_nmse = 1}));
  EXPECT_FALSE(LogitsAgree(one, one, 4, {.median_nmse = 1, .row_nmse = 1}));
}

TEST(SameBits, TellsZeroesApartAndNamesTheFirstDifference) {
  const std::vector<float> reference = {1, 0, 2, 3};
  EXPECT_TRUE(SameBits(reference, reference, 2));
  const auto result = SameBits(reference, std::vector<float>{1, -0.0f, 2, 4}, 2);
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message(), testing::HasSubstr("2 of 2 rows differ, first at row 0 column 1"));
}

TEST(SameBits, TheSameNotANumberIsTheSame) {
  const std::vector<float> values = {kNan, 1};
  EXPECT_TRUE(SameBits(values, values, 2));
}

}  // namespace
}  // namespace test
