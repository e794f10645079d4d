// Types of 32-column scales, in blocks of 32 to 128 columns: packing.
#include <ggml.h>

#include <array>

#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_block32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/pack-inl.h"

#ifndef ES_KERNELS_PACK_BLOCK32_SCALES
#define ES_KERNELS_PACK_BLOCK32_SCALES
namespace kernels {
namespace {

// NVFP4's scales, 8-bit floats, as float16, which holds them exactly: what ggml decodes a block to
// that has the scale and, in its first column, the code of half.
const std::uint32_t* Nvfp4Scales() {
  static const auto scales = [] {
    std::array<std::uint32_t, 256> halves{};
    for (std::size_t i = 0; i < halves.size(); ++i) {
      std::array<std::uint8_t, 36> block{};
      block[0] = static_cast<std::uint8_t>(i);
      block[4] = 1;
      float values[64];
      ggml_get_type_traits(GGML_TYPE_NVFP4)->to_float(block.data(), values, 64);
      halves[i] = ggml_fp32_to_fp16(values[0]);
    }
    return halves;
  }();
  return scales.data();
}

}  // namespace
}  // namespace kernels
#endif  // ES_KERNELS_PACK_BLOCK32_SCALES

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

// d; 32 signed bytes.
void Q80(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(
      kQ80, rows, num_rows, row_bytes, row_width, packed,
      [](const FileRows& row, std::size_t i, Place scales, Place planes) {
        scales.StoreHalves(Bits(row.Word(34 * i), 0xffff));
        VU32 words[8];
        row.Words(34 * i + 2, words);
        for (std::size_t k = 0; k < 8; ++k) {
          planes.At(k * kGroupBytes).StoreWords(hn::Xor(words[k], hn::Set(U32(), 0x80808080)));
        }
      });
}

// d; codes.
void Nibbles(const BlockLayout& layout, const std::byte* rows, std::size_t num_rows,
             std::size_t row_bytes, std::size_t row_width, std::byte* packed) {
  PackBlocks(layout, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               scales.StoreHalves(Bits(row.Word(18 * i), 0xffff));
               StoreNibbles(row, 18 * i + 2, planes);
             });
}
void Q40(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  Nibbles(kQ40, rows, num_rows, row_bytes, row_width, packed);
}
void Iq4Nl(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  Nibbles(kIq4Nl, rows, num_rows, row_bytes, row_width, packed);
}

HWY_INLINE void StoreScaleAndMin(VU32 word, Place scales) {
  scales.StoreHalves(Bits(word, 0xffff));
  scales.At(2 * kStripRows).StoreHalves(hn::ShiftRight<16>(word));
}

// d, min; codes.
void Q41(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(kQ41, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               StoreScaleAndMin(row.Word(20 * i), scales);
               StoreNibbles(row, 20 * i + 4, planes);
             });
}

// A word of the columns' bits, lowest first, as a plane.
HWY_INLINE void StoreBits(VU32 bits, Place plane) {
  UnitCodes codes;
  for (std::size_t k = 0; k < 8; ++k) codes.group[k] = SpreadBits(Right(bits, 4 * k));
  StoreOneBits(codes, 0, plane);
}

// d; a word of fifth bits; codes.
void Q50(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(kQ50, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               scales.StoreHalves(Bits(row.Word(22 * i), 0xffff));
               StoreBits(row.Word(22 * i + 2), planes);
               StoreNibbles(row, 22 * i + 6, planes.At(kGroupBytes));
             });
}

// d, min; a word of fifth bits; codes.
void Q51(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(kQ51, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               StoreScaleAndMin(row.Word(24 * i), scales);
               StoreBits(row.Word(24 * i + 4), planes);
               StoreNibbles(row, 24 * i + 8, planes.At(kGroupBytes));
             });
}

// d; codes of 64 columns, four a byte.
void Q20(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(kQ20, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               const std::size_t block = i / 2 * 18;
               scales.StoreHalves(Bits(row.Word(block), 0xffff));
               UnitCodes codes;
               for (std::size_t k = 0; k < 8; ++k) {
                 const VU32 word = row.Word(block + 2 + i % 2 * 8 + k / 4 * 4);
                 codes.group[k] = SpreadPairs(Right(word, 8 * (k % 4)));
               }
               StoreTwoBits(codes, 0, planes);
             });
}

// d; bits of 128 columns.
void Q10(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackBlocks(kQ10, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               const std::size_t block = i / 4 * 18;
               scales.StoreHalves(Bits(row.Word(block), 0xffff));
               StoreBits(row.Word(block + 2 + i % 4 * 4), planes);
             });
}

// An exponent e of a scale 2^(e - 127); codes. Half of the scale, as the upper bits of a float, is
// what is stored; what has none is 0.
void Mxfp4(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  PackBlocks(kMxfp4, rows, num_rows, row_bytes, row_width, packed,
             [](const FileRows& row, std::size_t i, Place scales, Place planes) {
               const VU32 exponent = ByteOf<0>(row.Word(17 * i));
               scales.StoreBytes(hn::Sub(hn::Max(exponent, hn::Set(U32(), 1)), hn::Set(U32(), 1)));
               StoreNibbles(row, 17 * i + 1, planes);
             });
}

// Four scales of 16 columns; codes of 64 columns. Of each 16, i and i + 8 share a byte.
void Nvfp4(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  const std::uint32_t* halves = Nvfp4Scales();
  PackBlocks(kNvfp4, rows, num_rows, row_bytes, row_width, packed,
             [halves](const FileRows& row, std::size_t i, Place scales, Place planes) {
               const std::size_t block = i / 2 * 36;
               const VU32 bytes = Right(row.Word(block), 16 * (i % 2));
               scales.StoreHalves(LookupWords(halves, ByteOf<0>(bytes)));
               scales.At(2 * kStripRows).StoreHalves(LookupWords(halves, ByteOf<1>(bytes)));
               VU32 words[4];
               row.Words(block + 4 + i % 2 * 16, words);
               for (std::size_t s = 0; s < 2; ++s) {
                 const Place low = planes.At(2 * s * kGroupBytes);
                 StoreHalvesOfTwo(words[2 * s], words[2 * s + 1], low, low.At(kGroupBytes));
               }
             });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

PackStripFunction PackQ80(InstructionSet set) { return ES_KERNELS_FOR(set, Q80); }
PackStripFunction PackQ51(InstructionSet set) { return ES_KERNELS_FOR(set, Q51); }
PackStripFunction PackQ50(InstructionSet set) { return ES_KERNELS_FOR(set, Q50); }
PackStripFunction PackQ41(InstructionSet set) { return ES_KERNELS_FOR(set, Q41); }
PackStripFunction PackQ40(InstructionSet set) { return ES_KERNELS_FOR(set, Q40); }
PackStripFunction PackQ20(InstructionSet set) { return ES_KERNELS_FOR(set, Q20); }
PackStripFunction PackQ10(InstructionSet set) { return ES_KERNELS_FOR(set, Q10); }
PackStripFunction PackIq4Nl(InstructionSet set) { return ES_KERNELS_FOR(set, Iq4Nl); }
PackStripFunction PackMxfp4(InstructionSet set) { return ES_KERNELS_FOR(set, Mxfp4); }
PackStripFunction PackNvfp4(InstructionSet set) { return ES_KERNELS_FOR(set, Nvfp4); }

}  // namespace kernels
#endif  // HWY_ONCE
