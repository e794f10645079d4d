// IQ4_XS, IQ3_*, IQ2_*, IQ1_*, TQ*: packing. 256 columns a block.
//
// Most hold indices into a grid, a table of magnitudes of 4 or 8 columns, and signs. Their weights
// have few magnitudes, so each gets a code of its own: the magnitude's number and the sign. IQ1
// types' grids hold -1, 0 and 1, and what is added to all of some columns has the sign.
#include <ggml.h>

#include <vector>

#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_i_quants.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/pack-inl.h"

#ifndef ES_KERNELS_PACK_I_QUANTS_GRIDS
#define ES_KERNELS_PACK_I_QUANTS_GRIDS
namespace kernels {
namespace {

// A grid as codes: word i * columns / 4 holds those of the first columns of index i. ggml keeps its
// tables to itself, so they are read off blocks that it decodes: the block is 0 but for `d`, the
// float16 at its start, which makes decoded values magnitudes, and for the index of its first
// columns, of which the lower 8 bits are at `low` and the others at `high`. Magnitudes less
// `smallest`, divided by `step`, are their numbers.
struct GridSource {
  ggml_type type;
  std::size_t size;
  std::size_t columns;
  std::uint16_t d;
  float smallest;
  unsigned step;
  std::size_t low;
  std::size_t high;
};

std::vector<std::uint32_t> ReadGrid(const GridSource& source) {
  const ggml_type_traits* traits = ggml_get_type_traits(source.type);
  std::vector<std::uint8_t> block(traits->type_size);
  std::vector<std::uint32_t> words(source.size * source.columns / 4);
  for (std::size_t index = 0; index < source.size; ++index) {
    std::memcpy(block.data(), &source.d, sizeof source.d);
    block[source.low] = static_cast<std::uint8_t>(index);
    block[source.high] = static_cast<std::uint8_t>(index >> 8);
    float values[kSlabColumns];
    traits->to_float(block.data(), values, kSlabColumns);
    for (std::size_t i = 0; i < source.columns; ++i) {
      const auto number = static_cast<unsigned>(values[i] - source.smallest) / source.step;
      words[(index * source.columns + i) / 4] |= number << (8 * (i % 4));
    }
  }
  return words;
}

constexpr std::uint16_t kHalfOne = 0x3c00;
constexpr std::uint16_t kHalfFour = 0x4400;
constexpr std::uint16_t kHalfEight = 0x4800;

const std::uint32_t* Iq3SGrid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ3_S, 512, 4, kHalfOne, 0, 2, 2, 66});
  return grid.data();
}
const std::uint32_t* Iq3XxsGrid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ3_XXS, 256, 4, kHalfFour, 0, 8, 2, 3});
  return grid.data();
}
const std::uint32_t* Iq2SGrid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ2_S, 1024, 8, kHalfEight, 0, 20, 2, 66});
  return grid.data();
}
const std::uint32_t* Iq2XsGrid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ2_XS, 512, 8, kHalfEight, 0, 20, 2, 3});
  return grid.data();
}
const std::uint32_t* Iq2XxsGrid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ2_XXS, 256, 8, kHalfEight, 0, 20, 2, 3});
  return grid.data();
}
const std::uint32_t* Iq1Grid() {
  static const auto grid = ReadGrid({GGML_TYPE_IQ1_S, 2048, 8, kHalfEight, -7, 8, 2, 34});
  return grid.data();
}

}  // namespace
}  // namespace kernels
#endif  // ES_KERNELS_PACK_I_QUANTS_GRIDS

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

// Eight signs of seven: the eighth makes the number of minuses even.
HWY_INLINE VU32 EvenSigns(VU32 word) {
  const VU32 seven = Bits(word, 0x7f);
  VU32 parity = hn::Xor(seven, hn::ShiftRight<4>(seven));
  parity = hn::Xor(parity, hn::ShiftRight<2>(parity));
  parity = hn::Xor(parity, hn::ShiftRight<1>(parity));
  return hn::Or(seven, hn::ShiftLeft<7>(Bits(parity, 1)));
}

// Scales s of IQ2 and IQ3 types count as 1 + 2 s.
HWY_INLINE VU32 OddScale(VU32 scale, std::uint32_t mask) {
  return hn::Add(hn::ShiftLeft<1>(Bits(scale, mask)), hn::Set(U32(), 1));
}

// Columns 8 i.. of a unit of IQ2 and IQ1 types; `signs` are eight.
HWY_INLINE void SetEight(const std::uint32_t* grid, std::size_t i, VU32 index, VU32 signs,
                         UnitCodes& codes) {
  VU32 first, second;
  LookupPairs(grid, index, first, second);
  const VU32 high = hn::ShiftRight<4>(signs);
  codes.group[2 * i] = hn::Or(first, hn::ShiftLeft<2>(SpreadBits(signs)));
  codes.group[2 * i + 1] = hn::Or(second, hn::ShiftLeft<2>(SpreadBits(high)));
}
// Columns 4 i.. of a unit of IQ3 types; `signs` are four.
HWY_INLINE void SetFour(const std::uint32_t* grid, std::size_t i, VU32 index, VU32 signs,
                        UnitCodes& codes) {
  codes.group[i] = hn::Or(LookupWords(grid, index), hn::ShiftLeft<3>(SpreadBits(signs)));
}

// Three bits a weight: the sign's plane, then the magnitudes'.
HWY_INLINE void StoreThreeBits(const UnitCodes& codes, Place planes) {
  StoreOneBits(codes, 2, planes);
  StoreTwoBits(codes, 0, planes.At(kGroupBytes));
}

// d; two upper bits of each unit's scale in 16; four lower ones; codes.
void Iq4Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  PackSlabs(kIq4Xs, 136, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              const VU32 first = block.Word(0);
              const VU32 low = block.Word(4);
              slab.StoreD(first);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                const VU32 high = Bits(Right(first, 16 + 2 * unit), 3);
                const VU32 scale = hn::Or(Bits(Right(low, 4 * unit), 15), hn::ShiftLeft<4>(high));
                slab.StoreScale(unit, hn::Sub(scale, hn::Set(U32(), 32)));
                StoreNibbles(block, 8 + 16 * unit, slab.Planes(unit));
              }
            });
}

// d; 64 indices of 4 columns, 8 ninth bits; 32 bytes of signs; 4 of scales.
void Iq3S(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  const std::uint32_t* grid = Iq3SGrid();
  PackSlabs(kIq3, 110, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              const VU32 scales = block.Word(106);
              VU32 signs[8], indices[8];
              block.Words(74, signs);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                slab.StoreScale(unit, OddScale(Right(scales, 4 * unit), 15));
                const VU32 high = Right(block.Word(66 + unit / 4 * 4), 8 * (unit % 4));
                if (unit % 4 == 0) block.Words(2 + 8 * unit, indices);
                UnitCodes codes;
                for (std::size_t i = 0; i < 8; ++i) {
                  const VU32 low = Right(indices[unit % 4 * 2 + i / 4], 8 * (i % 4));
                  const VU32 index = hn::Or(Bits(low, 0xff), Left(Bits(Right(high, i), 1), 8));
                  SetFour(grid, i, index, Right(signs[unit], 4 * i), codes);
                }
                StoreFourBits(codes, slab.Planes(unit));
              }
            });
}

// d; 64 indices of 4 columns; of each unit a word of 4 x 7 signs and the scale.
void Iq3Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
            std::size_t row_width, std::byte* packed) {
  const std::uint32_t* grid = Iq3XxsGrid();
  PackSlabs(kIq3, 98, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              VU32 words[8], indices[8];
              block.Words(66, words);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                const VU32 word = words[unit];
                slab.StoreScale(unit, OddScale(hn::ShiftRight<28>(word), 15));
                if (unit % 4 == 0) block.Words(2 + 8 * unit, indices);
                UnitCodes codes;
                for (std::size_t i = 0; i < 8; ++i) {
                  const VU32 low = Right(indices[unit % 4 * 2 + i / 4], 8 * (i % 4));
                  const VU32 signs = EvenSigns(Right(word, 7 * (i / 2)));
                  SetFour(grid, i, Bits(low, 0xff), Right(signs, 4 * (i % 2)), codes);
                }
                StoreFourBits(codes, slab.Planes(unit));
              }
            });
}

// The scales of 16 columns, a nibble each: two units in 16 bits.
HWY_INLINE void StoreScalesOf16(const FileRows& block, std::size_t offset, const Slab& slab) {
  for (std::size_t i = 0; i < 2 * kUnits; ++i) {
    const VU32 eight = block.Word(offset + i / 8 * 4);
    slab.StoreScale(i, OddScale(Right(eight, 4 * (i % 8)), 15));
  }
}

// d; 32 lower bytes of indices of 8 columns; 32 bytes of signs; 8 of upper bits; 8 of scales.
void Iq2S(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  const std::uint32_t* grid = Iq2SGrid();
  PackSlabs(kIq2Xs, 82, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              StoreScalesOf16(block, 74, slab);
              VU32 low[8], signs[8];
              block.Words(2, low);
              block.Words(34, signs);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                const VU32 high = Right(block.Word(66 + unit / 4 * 4), 8 * (unit % 4));
                UnitCodes codes;
                for (std::size_t i = 0; i < 4; ++i) {
                  const VU32 index = hn::Or(Bits(Right(low[unit], 8 * i), 0xff),
                                            hn::ShiftLeft<8>(Bits(Right(high, 2 * i), 3)));
                  SetEight(grid, i, index, Right(signs[unit], 8 * i), codes);
                }
                StoreThreeBits(codes, slab.Planes(unit));
              }
            });
}

// d; 32 x 16 bits: an index of 8 columns with 7 signs above; 8 bytes of scales.
void Iq2Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  const std::uint32_t* grid = Iq2XsGrid();
  PackSlabs(kIq2Xs, 74, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              StoreScalesOf16(block, 66, slab);
              VU32 words[8];
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                if (unit % 4 == 0) block.Words(2 + 8 * unit, words);
                UnitCodes codes;
                for (std::size_t i = 0; i < 4; ++i) {
                  const VU32 half = Right(words[unit % 4 * 2 + i / 2], 16 * (i % 2));
                  SetEight(grid, i, Bits(half, 511), EvenSigns(hn::ShiftRight<9>(half)), codes);
                }
                StoreThreeBits(codes, slab.Planes(unit));
              }
            });
}

// d; of each unit four indices of 8 columns, then a word of 4 x 7 signs and the scale.
void Iq2Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
            std::size_t row_width, std::byte* packed) {
  const std::uint32_t* grid = Iq2XxsGrid();
  PackSlabs(kIq2Xxs, 66, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              VU32 words[8];
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                if (unit % 4 == 0) block.Words(2 + 8 * unit, words);
                const VU32 indices = words[unit % 4 * 2];
                const VU32 word = words[unit % 4 * 2 + 1];
                slab.StoreScale(unit, OddScale(hn::ShiftRight<28>(word), 15));
                UnitCodes codes;
                for (std::size_t i = 0; i < 4; ++i) {
                  SetEight(grid, i, Bits(Right(indices, 8 * i), 0xff),
                           EvenSigns(Right(word, 7 * i)), codes);
                }
                StoreThreeBits(codes, slab.Planes(unit));
              }
            });
}

// All eight signs, where a bit is set.
HWY_INLINE VU32 EightOf(VU32 bit) { return hn::Sub(hn::ShiftLeft<8>(bit), bit); }

// 32 lower bytes of indices of 8 columns; of each 8 columns three upper bits and the sign; 4 x 16
// bits: four scales of 3 bits, above them a part of d.
void Iq1M(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  const std::uint32_t* grid = Iq1Grid();
  PackSlabs(kIq2Xs, 56, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              const VU32 scales[] = {block.Word(48), block.Word(52)};
              VU32 d = hn::Zero(U32());
              for (std::size_t i = 0; i < 4; ++i) {
                d = hn::Or(d, Left(Bits(Right(scales[i / 2], 16 * (i % 2) + 12), 15), 4 * i));
              }
              slab.StoreD(d);
              for (std::size_t i = 0; i < 2 * kUnits; ++i) {
                const VU32 scale = Right(scales[i / 8], 16 * (i / 4 % 2) + 3 * (i % 4));
                slab.StoreScale(i, OddScale(scale, 7));
              }
              VU32 low[8], highs[4];
              block.Words(0, low);
              block.Words(32, highs);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                const VU32 high = Right(highs[unit / 2], 16 * (unit % 2));
                UnitCodes codes;
                for (std::size_t i = 0; i < 4; ++i) {
                  const VU32 four = Right(high, 4 * i);
                  const VU32 index =
                      hn::Or(Bits(Right(low[unit], 8 * i), 0xff), hn::ShiftLeft<8>(Bits(four, 7)));
                  SetEight(grid, i, index, EightOf(Bits(hn::ShiftRight<3>(four), 1)), codes);
                }
                StoreThreeBits(codes, slab.Planes(unit));
              }
            });
}

// d; 32 lower bytes of indices of 8 columns; of each unit 16 bits: 4 x 3 upper ones, the scale, the
// sign of what is added.
void Iq1S(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  const std::uint32_t* grid = Iq1Grid();
  PackSlabs(kIq2Xxs, 50, rows, num_rows, row_bytes, row_width, packed,
            [grid](const FileRows& block, const Slab& slab) {
              slab.StoreD(block.Word(0));
              VU32 low[8], highs[4];
              block.Words(2, low);
              block.Words(34, highs);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                const VU32 high = Right(highs[unit / 2], 16 * (unit % 2));
                slab.StoreScale(unit, OddScale(hn::ShiftRight<12>(high), 7));
                const VU32 signs = EightOf(Bits(hn::ShiftRight<15>(high), 1));
                UnitCodes codes;
                for (std::size_t i = 0; i < 4; ++i) {
                  const VU32 index = hn::Or(Bits(Right(low[unit], 8 * i), 0xff),
                                            hn::ShiftLeft<8>(Bits(Right(high, 3 * i), 7)));
                  SetEight(grid, i, index, signs, codes);
                }
                StoreThreeBits(codes, slab.Planes(unit));
              }
            });
}

HWY_INLINE void StoreOnes(const Slab& slab) {
  for (std::size_t unit = 0; unit < kUnits; ++unit) slab.StoreScale(unit, hn::Set(U32(), 1));
}

// 64 bytes of codes, as in Q2_K; d.
void Tq20(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  PackSlabs(kTernary, 66, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              slab.StoreD(hn::ShiftRight<16>(block.Word(62)));
              StoreOnes(slab);
              for (std::size_t half = 0; half < 2; ++half) {
                const UnitCodes codes = UnitCodes::Of(block, half * 32);
                for (std::size_t part = 0; part < 4; ++part) {
                  StoreTwoBits(codes, 2 * part, slab.Planes(4 * half + part));
                }
              }
            });
}

// Digit n of each byte's number to the base 3, the highest being 0: a byte is a fraction of 256.
HWY_INLINE VU32 TernaryDigits(VU32 bytes, std::size_t n) {
  constexpr std::uint16_t kPowers[] = {1, 3, 9, 27, 81};
  const U16 d16;
  const auto power = hn::Set(d16, kPowers[n]);
  const auto low_byte = hn::Set(d16, 0xff);
  const auto digits = [&](hn::Vec<U16> values) {
    const auto rest = hn::And(hn::Mul(values, power), low_byte);
    return hn::ShiftRight<8>(hn::Mul(rest, hn::Set(d16, 3)));
  };
  const auto halves = hn::BitCast(d16, bytes);
  const auto even = digits(hn::And(halves, low_byte));
  const auto odd = digits(hn::ShiftRight<8>(halves));
  return hn::BitCast(U32(), hn::Or(even, hn::ShiftLeft<8>(odd)));
}

// 32 bytes hold columns 0 to 159, digit n of byte i being column 32 n + i; 16 bytes columns 160 to
// 239 likewise, 4 bytes the last 16; d.
void Tq10(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
          std::byte* packed) {
  PackSlabs(kTernary, 54, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              slab.StoreD(hn::ShiftRight<16>(block.Word(50)));
              StoreOnes(slab);
              VU32 first[8], second[4];
              block.Words(0, first);
              block.Words(32, second);
              const VU32 last = block.Word(48);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                UnitCodes codes;
                for (std::size_t i = 0; i < 8; ++i) {
                  const std::size_t column = unit * kUnitColumns + 4 * i;
                  if (column < 160) {
                    codes.group[i] = TernaryDigits(first[i], unit);
                  } else if (column < 240) {
                    const std::size_t rest = column - 160;
                    codes.group[i] = TernaryDigits(second[i % 4], rest / 16);
                  } else {
                    codes.group[i] = TernaryDigits(last, (column - 240) / 4);
                  }
                }
                StoreTwoBits(codes, 0, slab.Planes(unit));
              }
            });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

PackStripFunction PackIq4Xs(InstructionSet set) { return ES_KERNELS_FOR(set, Iq4Xs); }
PackStripFunction PackIq3S(InstructionSet set) { return ES_KERNELS_FOR(set, Iq3S); }
PackStripFunction PackIq3Xxs(InstructionSet set) { return ES_KERNELS_FOR(set, Iq3Xxs); }
PackStripFunction PackIq2S(InstructionSet set) { return ES_KERNELS_FOR(set, Iq2S); }
PackStripFunction PackIq2Xs(InstructionSet set) { return ES_KERNELS_FOR(set, Iq2Xs); }
PackStripFunction PackIq2Xxs(InstructionSet set) { return ES_KERNELS_FOR(set, Iq2Xxs); }
PackStripFunction PackIq1M(InstructionSet set) { return ES_KERNELS_FOR(set, Iq1M); }
PackStripFunction PackIq1S(InstructionSet set) { return ES_KERNELS_FOR(set, Iq1S); }
PackStripFunction PackTq20(InstructionSet set) { return ES_KERNELS_FOR(set, Tq20); }
PackStripFunction PackTq10(InstructionSet set) { return ES_KERNELS_FOR(set, Tq10); }

}  // namespace kernels
#endif  // HWY_ONCE
