// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: packing. 256 columns a block, sub-blocks of 32 or 16 with scales.
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_k_quants.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

// What Q4_K and Q5_K start with: d, dmin; 12 bytes of 6-bit scales and mins, those of
// sub-blocks 4.. having their upper bits above the first ones.
HWY_INLINE void PackScalesAndMins(const FileRows& rows, const Slab& slab) {
  VU32 words[4];
  rows.Words(0, words);
  slab.StoreScaleAndMin(words[0]);
  const auto [d, first, second, third] = words;
  const auto high = [](VU32 word) { return Bits(hn::ShiftRight<2>(word), 0x30303030); };
  const VU32 scales[] = {Bits(first, 0x3f3f3f3f), hn::Or(Bits(third, 0x0f0f0f0f), high(first))};
  const VU32 mins[] = {Bits(second, 0x3f3f3f3f),
                       hn::Or(Bits(hn::ShiftRight<4>(third), 0x0f0f0f0f), high(second))};
  for (std::size_t i = 0; i < 8; ++i) slab.StoreScale(i, Right(scales[i / 4], 8 * (i % 4)));
  for (std::size_t i = 0; i < 4; ++i) {
    const VU32 pair = Right(mins[i / 2], 16 * (i % 2));
    slab.StoreMins(i, ByteOf<0>(pair), ByteOf<1>(pair));
  }
}

// float16 d, dmin; 12 bytes of scales and mins; 128 of codes: of each 32 the lower bits are a unit,
// the upper ones the next.
void Q4K(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackSlabs(kQ4K, 144, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              PackScalesAndMins(block, slab);
              for (std::size_t unit = 0; unit < kUnits; unit += 2) {
                StoreFourBitHalves<4>(block, 16 + 16 * unit, slab.Planes(unit),
                                      slab.Planes(unit + 1));
              }
            });
}

// As Q4_K, with 32 bytes before the codes: bit u of each is the fifth bit of unit u.
void Q5K(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackSlabs(kQ5K, 176, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              PackScalesAndMins(block, slab);
              const UnitCodes high = UnitCodes::Of(block, 16);
              for (std::size_t unit = 0; unit < kUnits; ++unit) {
                StoreOneBits(high, unit, slab.Planes(unit));
              }
              for (std::size_t unit = 0; unit < kUnits; unit += 2) {
                StoreFourBitHalves<4>(block, 48 + 16 * unit, slab.Planes(unit).At(kGroupBytes),
                                      slab.Planes(unit + 1).At(kGroupBytes));
              }
            });
}

// 128 bytes of lower bits, 64 of upper ones, 16 scales, d. Of either half, 128 columns: 64 bytes
// whose lower bits are units 0 and 1, the upper ones units 2 and 3.
void Q6K(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackSlabs(kQ6K, 210, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              slab.StoreD(hn::ShiftRight<16>(block.Word(206)));
              VU32 scales[4];
              block.Words(192, scales);
              for (std::size_t i = 0; i < 16; ++i) {
                slab.StoreScale(i, Right(scales[i / 4], 8 * (i % 4)));
              }
              for (std::size_t half = 0; half < 2; ++half) {
                const UnitCodes high = UnitCodes::Of(block, 128 + half * 32);
                for (std::size_t part = 0; part < 4; ++part) {
                  StoreTwoBits(high, 2 * part, slab.Planes(4 * half + part));
                }
                for (std::size_t part = 0; part < 2; ++part) {
                  StoreFourBitHalves<4>(block, half * 64 + part * 32,
                                        slab.Planes(4 * half + part).At(2 * kGroupBytes),
                                        slab.Planes(4 * half + part + 2).At(2 * kGroupBytes));
                }
              }
            });
}

// 32 bytes of high bits, one a unit; 64 of low bits; 12 of scales; d. Scale i of 16 has its lower
// four bits in one of the first 8 bytes, and two in the last four.
void Q3K(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackSlabs(kQ3K, 110, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              slab.StoreD(hn::ShiftRight<16>(block.Word(106)));
              const VU32 low[] = {block.Word(96), block.Word(100)};
              const VU32 high = block.Word(104);
              for (std::size_t i = 0; i < 16; i += 4) {
                const VU32 four = hn::Or(Bits(Right(low[i / 4 % 2], i < 8 ? 0 : 4), 0x0f0f0f0f),
                                         hn::ShiftLeft<4>(Bits(Right(high, i / 2), 0x03030303)));
                for (std::size_t k = 0; k < 4; ++k) {
                  slab.StoreScale(i + k,
                                  hn::Sub(Bits(Right(four, 8 * k), 0xff), hn::Set(U32(), 32)));
                }
              }
              const UnitCodes ones = UnitCodes::Of(block, 0);
              for (std::size_t half = 0; half < 2; ++half) {
                const UnitCodes twos = UnitCodes::Of(block, 32 + half * 32);
                for (std::size_t part = 0; part < 4; ++part) {
                  const std::size_t unit = 4 * half + part;
                  StoreOneBits(ones, unit, slab.Planes(unit));
                  StoreTwoBits(twos, 2 * part, slab.Planes(unit).At(kGroupBytes));
                }
              }
            });
}

// 16 bytes of a scale and a min each, 64 of codes, d, dmin.
void Q2K(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
         std::byte* packed) {
  PackSlabs(kQ2K, 84, rows, num_rows, row_bytes, row_width, packed,
            [](const FileRows& block, const Slab& slab) {
              slab.StoreScaleAndMin(block.Word(80));
              VU32 words[4];
              block.Words(0, words);
              for (std::size_t i = 0; i < 16; ++i) {
                slab.StoreScale(i, Bits(Right(words[i / 4], 8 * (i % 4)), 0x0f));
              }
              for (std::size_t i = 0; i < 8; ++i) {
                const VU32 mins = Bits(Right(words[i / 2], 16 * (i % 2) + 4), 0x0f0f);
                slab.StoreMins(i, ByteOf<0>(mins), ByteOf<1>(mins));
              }
              for (std::size_t half = 0; half < 2; ++half) {
                const UnitCodes codes = UnitCodes::Of(block, 16 + half * 32);
                for (std::size_t part = 0; part < 4; ++part) {
                  StoreTwoBits(codes, 2 * part, slab.Planes(4 * half + part));
                }
              }
            });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

PackStripFunction PackQ4K(InstructionSet set) { return ES_KERNELS_FOR(set, Q4K); }
PackStripFunction PackQ5K(InstructionSet set) { return ES_KERNELS_FOR(set, Q5K); }
PackStripFunction PackQ6K(InstructionSet set) { return ES_KERNELS_FOR(set, Q6K); }
PackStripFunction PackQ3K(InstructionSet set) { return ES_KERNELS_FOR(set, Q3K); }
PackStripFunction PackQ2K(InstructionSet set) { return ES_KERNELS_FOR(set, Q2K); }

}  // namespace kernels
#endif  // HWY_ONCE
