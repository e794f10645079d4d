// One row of a matrix in the file's layout times one activation row, for types whose packing would
// take longer than reading them.
//
// Vectors are 32 consecutive columns, so a row is read once, in order. The integers that a block of
// 256 columns comes to are those of the packed layout, and so are the roundings behind them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/file_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2

using RowU8 = hn::FixedTag<std::uint8_t, kUnitColumns>;
using RowI8 = hn::FixedTag<std::int8_t, kUnitColumns>;
using RowI16 = hn::FixedTag<std::int16_t, kUnitColumns / 2>;
using RowU16 = hn::FixedTag<std::uint16_t, kUnitColumns / 2>;
using RowI32 = hn::FixedTag<std::int32_t, kUnitColumns / 4>;
using Scalar = hn::FixedTag<float, 1>;
using RowBytes = hn::Vec<RowU8>;
using RowSums = hn::Vec<RowI32>;

HWY_INLINE RowBytes LoadBytes(const std::uint8_t* p) { return hn::LoadU(RowU8(), p); }
HWY_INLINE RowSums LoadWords(const std::int32_t* p) { return hn::LoadU(RowI32(), p); }

template <int kShift, int kMask>
HWY_INLINE RowBytes BitsFrom(RowBytes bytes) {
  const auto shifted = hn::ShiftRight<kShift>(hn::BitCast(RowU16(), bytes));
  return hn::And(hn::BitCast(RowU8(), shifted), hn::Set(RowU8(), kMask));
}

// sums + products of weights of at most 63 with a unit's activations; four columns a lane.
HWY_INLINE RowSums AddProducts(RowSums sums, RowBytes weights, const std::int32_t* x,
                               std::size_t unit) {
  const auto q = hn::BitCast(RowI8(), LoadWords(x + block256::kQ + unit * kUnits));
#if HWY_TARGET == HWY_AVX3_DL
  return hn::SumOfMulQuadAccumulate(RowI32(), weights, q, sums);
#else
  const auto pairs = hn::SatWidenMulPairwiseAdd(RowI16(), weights, q);
  return hn::Add(sums, hn::WidenMulPairwiseAdd(RowI32(), pairs, hn::Set(RowI16(), 1)));
#endif
}

HWY_INLINE hn::Vec<Scalar> LoadHalf(const std::uint8_t* p) {
  const hn::Rebind<hwy::float16_t, Scalar> d16;
  return hn::PromoteTo(Scalar(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}
HWY_INLINE hn::Vec<Scalar> ToFloat(std::int32_t sum) {
  return hn::ConvertTo(Scalar(), hn::Set(hn::RebindToSigned<Scalar>(), sum));
}
HWY_INLINE hn::Vec<Scalar> ActivationScale(const std::int32_t* x) {
  return hn::BitCast(Scalar(), hn::Set(hn::RebindToSigned<Scalar>(), x[block256::kScale]));
}

// A Block's kBytes are those of 256 columns, and Value() their part of the product before the
// activations' scale. What Value() does is what MultiplySlab does of super_block-inl.h.
template <class Block>
HWY_NOINLINE float MultiplyRow(const std::byte* row, std::size_t row_width,
                               const std::int32_t* activations) {
  const auto* block = reinterpret_cast<const std::uint8_t*>(row);
  const std::int32_t* x = activations;
  auto total = hn::Zero(Scalar());
  for (std::size_t column = 0; column < row_width; column += kSlabColumns) {
    total = hn::MulAdd(Block::Value(block, x), ActivationScale(x), total);
    block += Block::kBytes;
    x += block256::kWords;
  }
  return hn::GetLane(total);
}

// Codes are the weights and 1, so sums start at what the ones take.
struct Ternary {
  static HWY_INLINE RowSums Start(const std::int32_t* x) {
    return hn::ShiftRight<7>(LoadWords(x + block256::kMinus128Sum32));
  }
  static HWY_INLINE hn::Vec<Scalar> Scaled(RowSums sums, const std::uint8_t* d) {
    return hn::Mul(LoadHalf(d), ToFloat(hn::ReduceSum(RowI32(), sums)));
  }
};

struct BlockTq20 : Ternary {
  static constexpr std::size_t kBytes = 66;
  static HWY_INLINE hn::Vec<Scalar> Value(const std::uint8_t* block, const std::int32_t* x) {
    RowSums sums = Start(x);
    for (std::size_t half = 0; half < 2; ++half) {
      const RowBytes bytes = LoadBytes(block + half * 32);
      sums = AddProducts(sums, BitsFrom<0, 3>(bytes), x, 4 * half);
      sums = AddProducts(sums, BitsFrom<2, 3>(bytes), x, 4 * half + 1);
      sums = AddProducts(sums, BitsFrom<4, 3>(bytes), x, 4 * half + 2);
      sums = AddProducts(sums, BitsFrom<6, 3>(bytes), x, 4 * half + 3);
    }
    return Scaled(sums, block + 64);
  }
};

// A byte is a fraction of 256 to the base 3: a digit is what three times it has above 256.
struct BlockTq10 : Ternary {
  static constexpr std::size_t kBytes = 54;

  static HWY_INLINE RowBytes Digits(RowBytes bytes) {
    const RowBytes one = hn::Set(RowU8(), 1);
    const RowBytes above_third = hn::SaturatedSub(bytes, hn::Set(RowU8(), 85));
    const RowBytes above_two = hn::SaturatedSub(bytes, hn::Set(RowU8(), 170));
    return hn::Add(hn::Min(above_third, one), hn::Min(above_two, one));
  }
  template <class V>
  static HWY_INLINE V Thrice(V bytes) {
    return hn::Add(hn::Add(bytes, bytes), bytes);
  }
  // The last 16 columns: four bytes, of each digits 0 to 3.
  static HWY_INLINE hn::Vec<hn::FixedTag<std::uint8_t, 16>> LastBytes(const std::uint8_t* p) {
    const hn::FixedTag<std::uint16_t, 8> d16;
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
    const auto bytes = hn::BitCast(d16, hn::Set(hn::FixedTag<std::uint32_t, 4>(), word));
    const auto powers = hn::Dup128VecFromValues(d16, 1, 1, 3, 3, 9, 9, 27, 27);
    const auto low_byte = hn::Set(d16, 0xff);
    const auto even = hn::And(hn::Mul(hn::And(bytes, low_byte), powers), low_byte);
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(bytes), powers));
    return hn::BitCast(hn::FixedTag<std::uint8_t, 16>(), hn::Or(even, odd));
  }

  static HWY_INLINE hn::Vec<Scalar> Value(const std::uint8_t* block, const std::int32_t* x) {
    RowSums sums = Start(x);
    RowBytes bytes = LoadBytes(block);
    for (std::size_t unit = 0; unit < 5; ++unit) {
      sums = AddProducts(sums, Digits(bytes), x, unit);
      bytes = Thrice(bytes);
    }
    const auto digit0 = hn::LoadU(hn::FixedTag<std::uint8_t, 16>(), block + 32);
    const auto digit1 = Thrice(digit0);
    const auto digit2 = Thrice(digit1);
    const auto digit3 = Thrice(digit2);
    const auto digit4 = Thrice(digit3);
    sums = AddProducts(sums, Digits(hn::Combine(RowU8(), digit1, digit0)), x, 5);
    sums = AddProducts(sums, Digits(hn::Combine(RowU8(), digit3, digit2)), x, 6);
    sums = AddProducts(sums, Digits(hn::Combine(RowU8(), LastBytes(block + 48), digit4)), x, 7);
    return Scaled(sums, block + 52);
  }
};

struct BlockQ4K {
  static constexpr std::size_t kBytes = 144;

  static HWY_INLINE hn::Vec<Scalar> Value(const std::uint8_t* block, const std::int32_t* x) {
    // 6-bit scales and mins; those of units 4 to 7 have their upper bits above the first ones.
    std::uint32_t words[3];
    std::memcpy(words, block + 4, sizeof words);
    const std::uint32_t scales[] = {words[0] & 0x3f3f3f3f,
                                    (words[2] & 0x0f0f0f0f) | ((words[0] >> 2) & 0x30303030)};
    const std::uint32_t mins[] = {words[1] & 0x3f3f3f3f,
                                  ((words[2] >> 4) & 0x0f0f0f0f) | ((words[1] >> 2) & 0x30303030)};
    RowSums sums = hn::Zero(RowI32());
    for (std::size_t unit = 0; unit < kUnits; unit += 2) {
      const RowBytes bytes = LoadBytes(block + 16 + unit * 16);
      sums = AddUnit(sums, BitsFrom<0, 15>(bytes), scales, x, unit);
      sums = AddUnit(sums, BitsFrom<4, 15>(bytes), scales, x, unit + 1);
    }
    const hn::FixedTag<std::int16_t, kUnits> d16;
    const hn::FixedTag<std::int32_t, kUnits / 2> d32;
    const hn::FixedTag<std::uint8_t, kUnits> d8;
    const auto min_pairs =
        hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(mins)));
    const auto sum_pairs = hn::BitCast(d16, hn::LoadU(d32, x + block256::kPairs32));
    const auto min_sums = hn::WidenMulPairwiseAdd(d32, min_pairs, sum_pairs);
    const auto min_part = hn::Mul(LoadHalf(block + 2), ToFloat(hn::ReduceSum(d32, min_sums)));
    return hn::MulSub(LoadHalf(block), ToFloat(hn::ReduceSum(RowI32(), sums)), min_part);
  }

  static HWY_INLINE RowSums AddUnit(RowSums sums, RowBytes weights, const std::uint32_t* scales,
                                    const std::int32_t* x, std::size_t unit) {
    const RowSums products = AddProducts(hn::Zero(RowI32()), weights, x, unit);
    const auto scale = static_cast<std::int32_t>((scales[unit / 4] >> (8 * (unit % 4))) & 0xff);
    // Four products fit 16 bits: their upper halves are multiplied with 0.
    return hn::Add(sums, hn::WidenMulPairwiseAdd(RowI32(), hn::BitCast(RowI16(), products),
                                                 hn::BitCast(RowI16(), hn::Set(RowI32(), scale))));
  }
};

struct BlockQ6K {
  static constexpr std::size_t kBytes = 210;

  static HWY_INLINE hn::Vec<Scalar> Value(const std::uint8_t* block, const std::int32_t* x) {
    const hn::FixedTag<std::int8_t, 2 * kUnits> d8;
    const auto scales = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(block + 192));
    // Weights have 32 added: what that takes is 32 x scale x sum of 16 activations.
    const auto sums16 = hn::BitCast(RowI16(), LoadWords(x + block256::kPairs16));
    const RowSums offsets =
        hn::WidenMulPairwiseAdd(RowI32(), hn::PromoteTo(RowI16(), scales), sums16);
    RowSums sums = hn::Neg(hn::ShiftLeft<5>(offsets));
    const RowBytes table = hn::BitCast(RowU8(), hn::Combine(RowI8(), scales, scales));
    for (std::size_t half = 0; half < 2; ++half) {
      const RowBytes first = LoadBytes(block + half * 64);
      const RowBytes second = LoadBytes(block + half * 64 + 32);
      const RowBytes high = LoadBytes(block + 128 + half * 32);
      const auto upper = [](RowBytes two_bits) {
        return hn::BitCast(RowU8(), hn::ShiftLeft<4>(hn::BitCast(RowU16(), two_bits)));
      };
      const std::size_t unit = 4 * half;
      sums = AddUnit(sums, hn::Or(BitsFrom<0, 15>(first), upper(BitsFrom<0, 3>(high))), table, x,
                     unit);
      sums = AddUnit(sums, hn::Or(BitsFrom<0, 15>(second), upper(BitsFrom<2, 3>(high))), table, x,
                     unit + 1);
      sums = AddUnit(sums, hn::Or(BitsFrom<4, 15>(first), upper(BitsFrom<4, 3>(high))), table, x,
                     unit + 2);
      sums = AddUnit(sums, hn::Or(BitsFrom<4, 15>(second), upper(BitsFrom<6, 3>(high))), table, x,
                     unit + 3);
    }
    return hn::Mul(LoadHalf(block + 208), ToFloat(hn::ReduceSum(RowI32(), sums)));
  }

  static HWY_INLINE RowSums AddUnit(RowSums sums, RowBytes weights, RowBytes table,
                                    const std::int32_t* x, std::size_t unit) {
    // Scale 2 unit for lanes 0 to 3, 2 unit + 1 for the others; sign extended from the upper byte.
    const auto first = static_cast<std::uint32_t>(2 * unit) << 24 | 0x808080;
    const hn::FixedTag<std::uint32_t, kUnits / 2> half;
    const auto indices = hn::Combine(hn::FixedTag<std::uint32_t, kUnits>(),
                                     hn::Set(half, first + (1u << 24)), hn::Set(half, first));
    const auto bytes = hn::TableLookupBytesOr0(table, hn::BitCast(RowU8(), indices));
    const RowSums scale = hn::ShiftRight<24>(hn::BitCast(RowI32(), bytes));
    return hn::Add(sums, hn::Mul(AddProducts(hn::Zero(RowI32()), weights, x, unit), scale));
  }
};

FileRowFunction Tq20Row() { return MultiplyRow<BlockTq20>; }
FileRowFunction Tq10Row() { return MultiplyRow<BlockTq10>; }
FileRowFunction Q4KRow() { return MultiplyRow<BlockQ4K>; }
FileRowFunction Q6KRow() { return MultiplyRow<BlockQ6K>; }

#else

FileRowFunction Tq20Row() { return nullptr; }
FileRowFunction Tq10Row() { return nullptr; }
FileRowFunction Q4KRow() { return nullptr; }
FileRowFunction Q6KRow() { return nullptr; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

FileRowFunction Tq20FileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Tq20Row)(); }
FileRowFunction Tq10FileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Tq10Row)(); }
FileRowFunction Q4KFileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Q4KRow)(); }
FileRowFunction Q6KFileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Q6KRow)(); }

}  // namespace kernels
#endif  // HWY_ONCE
