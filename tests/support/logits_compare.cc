#include "support/logits_compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <format>
#include <limits>
#include <optional>
#include <vector>

namespace test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double Median(std::vector<double> values) {
  const std::size_t half = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(half));
  if (values.size() % 2 == 1) return values[half];
  const double below =
      *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half));
  return below == values[half] ? below : (below + values[half]) / 2;
}

std::optional<testing::AssertionResult> SizeMismatch(std::span<const float> reference,
                                                     std::span<const float> actual,
                                                     std::size_t width) {
  if (reference.size() == actual.size() && !actual.empty() && width > 0 &&
      actual.size() % width == 0) {
    return std::nullopt;
  }
  return testing::AssertionFailure() << reference.size() << " reference and " << actual.size()
                                     << " actual logits are no two sets of rows of " << width;
}

}  // namespace

std::string LogitsComparison::Describe() const {
  return std::format(
      "{} rows: median NMSE {:.3g}, worst {:.3g}, {:.1f} % above the bound, relative error {:.3g}; "
      "largest difference at row {} column {}: {} instead of {}",
      rows, median_nmse, worst_nmse, 100 * fraction_above, relative_error, worst_row, worst_column,
      worst_actual, worst_reference);
}

LogitsComparison CompareLogits(std::span<const float> reference, std::span<const float> actual,
                               std::size_t width, double row_bound) {
  LogitsComparison result;
  result.rows = actual.size() / width;
  std::vector<double> nmse;
  double largest_difference = -1, largest_reference = 0;
  for (std::size_t row = 0; row < result.rows; ++row) {
    double error = 0, power = 0;
    for (std::size_t column = 0; column < width; ++column) {
      const double wanted = reference[row * width + column], got = actual[row * width + column];
      const double difference = std::isfinite(got - wanted) ? std::abs(got - wanted) : kInfinite;
      error += difference * difference;
      power += wanted * wanted;
      largest_reference = std::max(largest_reference, std::abs(wanted));
      if (difference > largest_difference) {
        largest_difference = difference;
        result.worst_row = row;
        result.worst_column = column;
        result.worst_reference = wanted;
        result.worst_actual = got;
      }
    }
    nmse.push_back(error == 0 ? 0 : std::isfinite(error) && power > 0 ? error / power : kInfinite);
  }
  result.median_nmse = Median(nmse);
  result.worst_nmse = std::ranges::max(nmse);
  const auto above = std::ranges::count_if(nmse, [&](double value) { return value > row_bound; });
  result.fraction_above = static_cast<double>(above) / static_cast<double>(result.rows);
  result.relative_error = largest_difference == 0 ? 0
                          : largest_reference > 0 ? largest_difference / largest_reference
                                                  : kInfinite;
  return result;
}

testing::AssertionResult LogitsAgree(std::span<const float> reference,
                                     std::span<const float> actual, std::size_t width,
                                     const LogitsTolerance& tolerance) {
  if (auto mismatch = SizeMismatch(reference, actual, width)) return *mismatch;
  const auto compared = CompareLogits(reference, actual, width, tolerance.row_nmse);
  if (compared.median_nmse < tolerance.median_nmse &&
      compared.fraction_above <= tolerance.fraction_above) {
    return testing::AssertionSuccess() << compared.Describe();
  }
  return testing::AssertionFailure()
         << compared.Describe()
         << std::format("; allowed: median below {:.3g}, {:.1f} % of rows above {:.3g}",
                        tolerance.median_nmse, 100 * tolerance.fraction_above, tolerance.row_nmse);
}

testing::AssertionResult SameBits(std::span<const float> reference, std::span<const float> actual,
                                  std::size_t width) {
  if (auto mismatch = SizeMismatch(reference, actual, width)) return *mismatch;
  std::optional<std::size_t> first;
  std::size_t rows_differing = 0, last_row = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(reference[i]) == std::bit_cast<std::uint32_t>(actual[i])) {
      continue;
    }
    if (!first || i / width != last_row) ++rows_differing;
    if (!first) first = i;
    last_row = i / width;
  }
  if (!first) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << std::format("{} of {} rows differ, first at row {} column {}: {} instead of {}",
                        rows_differing, actual.size() / width, *first / width, *first % width,
                        actual[*first], reference[*first]);
}

}  // namespace test
