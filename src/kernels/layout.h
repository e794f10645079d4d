// Layouts that packing, quantising and multiplying agree on. Internal to this folder.
//
// Packed matrices. A strip is 16 rows; a slab is 256 columns of a strip (the last one of a row may
// be narrower for types of 32-column blocks); a unit is 32 columns of a slab. The smallest piece is
// a group: 4 columns of 16 rows, 64 bytes [16 rows, 4 columns], one byte a weight once unpacked.
// Packed weights are kept in planes of a few bits: a 64-byte vector of a plane holds, at growing
// bit positions, the bits of consecutive groups.
//
// 256-column slabs, [] meaning [16 rows] of each:
//   d[] float16, dmin[] float16 (0 for types without mins)              64 bytes
//   scales: 8 or 16 x int8[]                                            128 or 256 bytes
//   mins, types that have them: 4 or 8 x uint8[16 rows, 2]              128 or 256 bytes
//   8 units, each its planes: high bits first
// Weights are stored unsigned, with the type's offset added.
//
// Slabs of 32-column blocks: scales of all blocks (of each: float16[] or exponent uint8[], one or
// two; then float16 mins[], types that have them), rounded up to 64 bytes; then each block's
// planes.
//
// Strips of floats: the elements as they are, [row_width columns, 16 rows].
//
// Quantised activation rows are words of 4 bytes; a panel of T rows holds word w of row t at
// [w * T + t]. q is int8 x 4. What depends on sums alone is computed once, when quantising. Rows
// for strips of floats are floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix_kernel.h"

namespace kernels {

inline constexpr std::size_t kSlabColumns = 256;
inline constexpr std::size_t kUnitColumns = 32;
inline constexpr std::size_t kUnits = kSlabColumns / kUnitColumns;
inline constexpr std::size_t kGroupBytes = 64;

// Words of 256 activations.
namespace block256 {
inline constexpr int kScale = 0;                         // float
inline constexpr int kPairs32 = 1;                       // 4 x 2 int16: sums of 32
inline constexpr int kMinus128Sum32 = kPairs32 + 4;      // 8 x int32: -128 * sum of 32
inline constexpr int kMinus32Sum8 = kMinus128Sum32 + 8;  // 32 x int32: -32 * sum of 8
inline constexpr int kPairs16 = kMinus32Sum8 + 32;       // 8 x 2 int16: sums of 16
inline constexpr int kQ = kPairs16 + 8;                  // 64 x 4 int8
inline constexpr int kWords = kQ + 64;
}  // namespace block256

// Words of 32 activations.
namespace block32 {
inline constexpr int kScale = 0;        // float
inline constexpr int kSum = 1;          // float
inline constexpr int kMinus128Sum = 2;  // int32, as those that follow
inline constexpr int kMinus16Sum = 3;
inline constexpr int kMinus12Sum = 4;
inline constexpr int kMinus8Sum = 5;
inline constexpr int kMinus12Sum16 = 6;  // 2 x: of 16
inline constexpr int kQ = 8;             // 8 x 4 int8
inline constexpr int kWords = kQ + 8;
}  // namespace block32

// What a 256-column slab of a type consists of.
struct SlabLayout {
  std::size_t scales_per_unit = 1;  // 1: of 32 columns, 2: of 16
  bool has_mins = false;            // one for each scale
  std::size_t unit_bytes = 0;       // of its planes

  constexpr std::size_t scales_offset() const { return 64; }
  constexpr std::size_t mins_offset() const {
    return scales_offset() + kUnits * scales_per_unit * kStripRows;
  }
  constexpr std::size_t planes_offset() const {
    return mins_offset() + (has_mins ? kUnits * scales_per_unit * kStripRows : 0);
  }
  constexpr std::size_t bytes() const { return planes_offset() + kUnits * unit_bytes; }
};

// Planes of a unit (8 groups): 4-bit 4 vectors, 2-bit 2 vectors, 1-bit 1 vector.
inline constexpr SlabLayout kQ4K{1, true, 4 * kGroupBytes};
inline constexpr SlabLayout kQ5K{1, true, (1 + 4) * kGroupBytes};
inline constexpr SlabLayout kQ6K{2, false, (2 + 4) * kGroupBytes};
inline constexpr SlabLayout kQ3K{2, false, (1 + 2) * kGroupBytes};
inline constexpr SlabLayout kQ2K{2, true, 2 * kGroupBytes};
inline constexpr SlabLayout kIq4Xs{1, false, 4 * kGroupBytes};
inline constexpr SlabLayout kIq2Xxs{1, false, (1 + 2) * kGroupBytes};  // IQ1_S as well
inline constexpr SlabLayout kIq2Xs{2, false, (1 + 2) * kGroupBytes};   // IQ2_S, IQ1_M as well
inline constexpr SlabLayout kIq3{1, false, 4 * kGroupBytes};           // IQ3_XXS, IQ3_S
inline constexpr SlabLayout kTernary{1, false, 2 * kGroupBytes};       // TQ1_0, TQ2_0

// What a block of 32 columns of a strip consists of.
struct BlockLayout {
  std::size_t scale_bytes = 2;  // of one row's scale
  std::size_t plane_bytes = 0;
  std::size_t scales_per_block = 1;
  bool has_mins = false;

  constexpr std::size_t block_scales_bytes() const {
    return kStripRows * (scales_per_block * scale_bytes + (has_mins ? 2 : 0));
  }
  constexpr std::size_t scales_bytes(std::size_t num_blocks) const {
    return (num_blocks * block_scales_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  constexpr std::size_t slab_bytes(std::size_t num_blocks) const {
    return scales_bytes(num_blocks) + num_blocks * plane_bytes;
  }
  constexpr std::size_t strip_bytes(std::size_t row_width) const {
    return row_width / kSlabColumns * slab_bytes(kUnits) +
           slab_bytes(row_width % kSlabColumns / kUnitColumns);
  }
};

inline constexpr BlockLayout kQ80{2, 8 * kGroupBytes};
inline constexpr BlockLayout kQ40{2, 4 * kGroupBytes};
inline constexpr BlockLayout kQ41{2, 4 * kGroupBytes, 1, true};
inline constexpr BlockLayout kQ50{2, (1 + 4) * kGroupBytes};
inline constexpr BlockLayout kQ51{2, (1 + 4) * kGroupBytes, 1, true};
inline constexpr BlockLayout kMxfp4{1, 4 * kGroupBytes};
inline constexpr BlockLayout kNvfp4{2, 4 * kGroupBytes, 2};
inline constexpr BlockLayout kIq4Nl{2, 4 * kGroupBytes};
inline constexpr BlockLayout kQ20{2, 2 * kGroupBytes};
inline constexpr BlockLayout kQ10{2, kGroupBytes};

}  // namespace kernels
