// One row of a matrix in the file's layout times one activation row, for types whose packing takes
// much longer than reading them. (For Q4_K and Q6_K this was tried: in a model 16 rows at a time,
// packed on the way, keep more of memory busy and are a tenth faster.)
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

FileRowFunction Tq20Row() { return MultiplyRow<BlockTq20>; }
FileRowFunction Tq10Row() { return MultiplyRow<BlockTq10>; }

#else

FileRowFunction Tq20Row() { return nullptr; }
FileRowFunction Tq10Row() { return nullptr; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

FileRowFunction Tq20FileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Tq20Row)(); }
FileRowFunction Tq10FileRow(InstructionSet set) { return ES_KERNELS_FOR(set, Tq10Row)(); }

}  // namespace kernels
#endif  // HWY_ONCE
