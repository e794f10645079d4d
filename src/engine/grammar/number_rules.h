// GBNF bodies for numbers between bounds, written as JSON writes them. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace engine {

struct NumberBounds {
  std::optional<std::int64_t> least;  // inclusive unless least_is_exclusive
  std::optional<std::int64_t> most;   // inclusive unless most_is_exclusive
  bool least_is_exclusive = false;
  bool most_is_exclusive = false;

  bool any() const { return least || most; }
};

// Bounds must not exceed this in either direction.
inline constexpr std::int64_t kMaxBound = 1'000'000'000'000'000;

// Whole numbers without fraction and exponent, of at most 18 digits. Empty when none fits.
std::string IntegerBody(const NumberBounds& bounds);

// Decimal numbers, without an exponent when there are bounds, of at most 16 decimal places. Empty
// when none fits.
std::string NumberBody(const NumberBounds& bounds);

}  // namespace engine
