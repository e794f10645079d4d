// How two sets of logits for the same tokens differ, row by row.
//
// A row is one token's logits. A router's near-tie that rounds the other way changes a whole row
// and, through the recurrent state, the rows behind it; so tests bound the median row and the
// fraction of rows above a limit, not the maximum.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>

namespace test {

struct LogitsComparison {
  std::size_t rows = 0;
  double median_nmse = 0;  // of the rows' sum((actual-reference)^2) / sum(reference^2)
  double worst_nmse = 0;
  double fraction_above = 0;  // of rows whose NMSE is above the bound given
  double relative_error = 0;  // largest |actual-reference| over the largest |reference|
  std::size_t worst_row = 0;  // where |actual-reference| is largest, not a number included
  std::size_t worst_column = 0;
  double worst_reference = 0, worst_actual = 0;  // the two values there

  // One line with all of it.
  std::string Describe() const;
};

// Compares `actual` with `reference`, both [rows, width]. A value that is no finite number makes
// its row's NMSE infinite. Preconditions: equal sizes, not empty, divisible by `width`.
LogitsComparison CompareLogits(std::span<const float> reference, std::span<const float> actual,
                               std::size_t width, double row_bound);

struct LogitsTolerance {
  double median_nmse;  // the median row is below this
  double row_nmse;     // at most `fraction_above` of the rows are above this
  double fraction_above = 0.03;
};

// For EXPECT_TRUE: fails with Describe(), also when sizes differ or nothing is compared.
testing::AssertionResult LogitsAgree(std::span<const float> reference,
                                     std::span<const float> actual, std::size_t width,
                                     const LogitsTolerance& tolerance);

// For EXPECT_TRUE: the same bits; says how many rows differ and where the first one does.
testing::AssertionResult SameBits(std::span<const float> reference, std::span<const float> actual,
                                  std::size_t width);

}  // namespace test
