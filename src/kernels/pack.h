// From the file's blocks to packed strips, per weight type. Internal to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/layout.h"

namespace kernels {

// Pack functions as PackStripFunction says.
void PackQ4K(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackQ5K(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackQ6K(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackQ3K(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackQ2K(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackIq4Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed);
void PackIq2Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
                std::byte* packed);
void PackIq2Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed);
void PackIq2S(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
              std::byte* packed);
void PackIq3Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
                std::byte* packed);
void PackIq3S(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
              std::byte* packed);
void PackQ80(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackQ40(const std::byte* rows, std::size_t num_rows, std::size_t row_width, std::byte* packed);
void PackIq4Nl(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed);
void PackMxfp4(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed);

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

// Eight groups of one row: each word is 4 weights of a byte, first column lowest.
using UnitCodes = std::array<std::uint32_t, 8>;

inline std::uint32_t LoadWord(const std::uint8_t* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
inline void StoreWord(std::byte* p, std::uint32_t word) { std::memcpy(p, &word, sizeof word); }

// Each writes one row of a plane; `plane` is that row's word of the plane's first vector. Bits are
// taken from `shift` on.
inline void StoreFourBits(const UnitCodes& codes, std::byte* plane) {
  for (std::size_t v = 0; v < 4; ++v) {
    StoreWord(plane + v * kGroupBytes,
              (codes[2 * v] & 0x0f0f0f0fu) | ((codes[2 * v + 1] & 0x0f0f0f0fu) << 4));
  }
}
// `n` vectors of either half of 8 n bytes: codes that lie beside each other, in the lower and in
// the upper bits.
template <std::size_t n>
void StoreFourBitHalves(const std::uint8_t* bytes, std::byte* low, std::byte* high) {
  constexpr std::uint64_t kLow = 0x0f0f0f0f0f0f0f0fu;
  for (std::size_t v = 0; v < n; ++v) {
    std::uint64_t pair;  // of groups, whose codes end up in one word
    std::memcpy(&pair, bytes + 8 * v, sizeof pair);
    const std::uint64_t lows = pair & kLow;
    const std::uint64_t highs = (pair >> 4) & kLow;
    StoreWord(low + v * kGroupBytes, static_cast<std::uint32_t>(lows | (lows >> 28)));
    StoreWord(high + v * kGroupBytes, static_cast<std::uint32_t>(highs | (highs >> 28)));
  }
}
inline void StoreTwoBits(const UnitCodes& codes, int shift, std::byte* plane) {
  for (std::size_t v = 0; v < 2; ++v) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      word |= ((codes[4 * v + i] >> shift) & 0x03030303u) << (2 * i);
    }
    StoreWord(plane + v * kGroupBytes, word);
  }
}
inline void StoreOneBits(const UnitCodes& codes, int shift, std::byte* plane) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) word |= ((codes[i] >> shift) & 0x01010101u) << i;
  StoreWord(plane, word);
}

// Packs the slabs of one strip: `fill(block, row, slab)` writes one block of the file as one row of
// a zeroed slab.
template <class Block, class Fill>
void PackSlabs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::size_t slab_bytes, std::byte* packed, Fill fill) {
  const std::size_t num_slabs = row_width / kSlabColumns;
  for (std::size_t slab = 0; slab < num_slabs; ++slab, packed += slab_bytes) {
    if (num_rows < kStripRows) std::memset(packed, 0, slab_bytes);
    for (std::size_t row = 0; row < num_rows; ++row) {
      Block block;
      std::memcpy(&block, rows + (row * num_slabs + slab) * sizeof(Block), sizeof block);
      fill(block, row, packed);
    }
  }
}

}  // namespace kernels
