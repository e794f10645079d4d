// What codes of a few bits stand for, per weight type. Internal to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kernels {

// What Lookup reads: values with their offset (128, MXFP4 12) added.
template <std::size_t n>
constexpr std::array<std::uint8_t, 16> TableOf(const std::array<int, n>& values, int offset) {
  std::array<std::uint8_t, 16> table{};
  for (std::size_t i = 0; i < n; ++i) table[i] = static_cast<std::uint8_t>(values[i] + offset);
  return table;
}

inline constexpr std::array<int, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::array<std::uint8_t, 16> kIq4Table = TableOf(kIq4Values, 128);
// Twice the values of MXFP4's codes.
inline constexpr std::array<int, 16> kMxfp4Values = {0, 1,  2,  3,  4,  6,  8,  12,
                                                     0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr std::array<std::uint8_t, 16> kMxfp4Table = TableOf(kMxfp4Values, 12);
// Our own codes. IQ2 types have three magnitudes, whose number is bits 0 and 1; bit 2 is the sign.
inline constexpr std::array<int, 8> kIq2Values = {8, 25, 43, 0, -8, -25, -43, 0};
inline constexpr std::array<std::uint8_t, 16> kIq2Table = TableOf(kIq2Values, 128);
// IQ3 types have eight: bits 0 to 2; bit 3 is the sign.
inline constexpr std::array<int, 16> kIq3XxsValues = {4,  12,  20,  28,  36,  44,  52,  62,
                                                      -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr std::array<std::uint8_t, 16> kIq3XxsTable = TableOf(kIq3XxsValues, 128);
inline constexpr std::array<int, 16> kIq3SValues = {1,  3,  5,  7,  9,  11,  13,  15,
                                                    -1, -3, -5, -7, -9, -11, -13, -15};
inline constexpr std::array<std::uint8_t, 16> kIq3STable = TableOf(kIq3SValues, 128);

// IQ1 types: eight times the values -1, 0, 1 plus (codes 0 to 2) or minus (4 to 6) an eighth.
inline constexpr std::array<int, 8> kIq1Values = {-7, 1, 9, 0, -9, -1, 7, 0};
inline constexpr std::array<std::uint8_t, 16> kIq1Table = TableOf(kIq1Values, 128);
// Ternary types and Q2_0: a fourth value is possible. Q1_0 has two.
inline constexpr std::array<int, 4> kTernaryValues = {-1, 0, 1, 2};
inline constexpr std::array<std::uint8_t, 16> kTernaryTable = TableOf(kTernaryValues, 128);
inline constexpr std::array<int, 2> kQ10Values = {-1, 1};
inline constexpr std::array<std::uint8_t, 16> kQ10Table = TableOf(kQ10Values, 128);

}  // namespace kernels
