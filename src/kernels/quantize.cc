// Activation rows to int8 with scales, or rounded to floats of 16 bits.
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

// Quantises `n` floats to int8 [n] at `q` and returns the scale; NaN, with all of q 0, when one is
// not finite. Elements are rounded to nearest, ties to even, on every instruction set.
HWY_INLINE float QuantizeBlock(const float* in, std::size_t n, std::int32_t* q) {
  const hn::CappedTag<float, 16> df;
  const std::size_t lanes = hn::Lanes(df);
  const auto limit = hn::Set(df, std::numeric_limits<float>::max());
  auto largest = hn::Zero(df);
  auto finite = hn::Le(largest, limit);
  for (std::size_t i = 0; i < n; i += lanes) {
    const auto magnitude = hn::Abs(hn::LoadU(df, in + i));
    largest = hn::Max(largest, magnitude);
    finite = hn::And(finite, hn::Le(magnitude, limit));
  }
  const float max = hn::ReduceMax(df, largest);
  const bool usable = hn::AllTrue(df, finite);
  // Blocks so small that 127 / max overflows count as 0.
  const float inverse = usable && max > 127 / std::numeric_limits<float>::max() ? 127 / max : 0.0f;
  const hn::Rebind<std::int8_t, decltype(df)> d8;
  const auto factor = hn::Set(df, inverse);
  auto* bytes = reinterpret_cast<std::int8_t*>(q);
  for (std::size_t i = 0; i < n; i += lanes) {
    auto value = hn::Mul(hn::LoadU(df, in + i), factor);
    if (!usable) value = hn::Zero(df);
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(value)), d8, bytes + i);
  }
  return !usable ? std::numeric_limits<float>::quiet_NaN() : inverse == 0.0f ? 0.0f : max / 127;
}

HWY_INLINE std::int32_t SumBytes(const std::int32_t* q, std::size_t words) {
  const auto* bytes = reinterpret_cast<const std::int8_t*>(q);
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < 4 * words; ++i) sum += bytes[i];
  return sum;
}

HWY_INLINE std::int32_t Pair(std::int32_t low, std::int32_t high) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(low) & 0xffffu) |
                                   (static_cast<std::uint32_t>(high) << 16));
}

void Row256(const float* in, std::size_t row_width, std::int32_t* out) {
  using namespace block256;
  for (std::size_t i = 0; i < row_width; i += kSlabColumns, out += kWords) {
    out[kScale] = std::bit_cast<std::int32_t>(QuantizeBlock(in + i, kSlabColumns, out + kQ));
    std::int32_t sums[16];
    for (int s = 0; s < 16; ++s) {
      const std::int32_t first = SumBytes(out + kQ + 4 * s, 2);
      const std::int32_t second = SumBytes(out + kQ + 4 * s + 2, 2);
      sums[s] = first + second;
      out[kMinus32Sum8 + 2 * s] = -32 * first;
      out[kMinus32Sum8 + 2 * s + 1] = -32 * second;
    }
    for (int s = 0; s < 8; ++s) {
      out[kMinus128Sum32 + s] = -128 * (sums[2 * s] + sums[2 * s + 1]);
      out[kPairs16 + s] = Pair(sums[2 * s], sums[2 * s + 1]);
    }
    for (int s = 0; s < 4; ++s) {
      out[kPairs32 + s] = Pair(sums[4 * s] + sums[4 * s + 1], sums[4 * s + 2] + sums[4 * s + 3]);
    }
  }
}

void Row32(const float* in, std::size_t row_width, std::int32_t* out) {
  using namespace block32;
  for (std::size_t i = 0; i < row_width; i += kUnitColumns, out += kWords) {
    out[kScale] = std::bit_cast<std::int32_t>(QuantizeBlock(in + i, kUnitColumns, out + kQ));
    const std::int32_t halves[] = {SumBytes(out + kQ, 4), SumBytes(out + kQ + 4, 4)};
    const std::int32_t sum = halves[0] + halves[1];
    out[kSum] = std::bit_cast<std::int32_t>(static_cast<float>(sum));
    out[kMinus128Sum] = -128 * sum;
    out[kMinus16Sum] = -16 * sum;
    out[kMinus12Sum] = -12 * sum;
    out[kMinus8Sum] = -8 * sum;
    out[kMinus12Sum16] = -12 * halves[0];
    out[kMinus12Sum16 + 1] = -12 * halves[1];
  }
}

// Applies `round` to vectors of floats.
template <class Round>
HWY_INLINE void RoundRow(const float* in, std::size_t row_width, std::int32_t* out, Round round) {
  const hn::CappedTag<float, 16> df;
  const std::size_t lanes = hn::Lanes(df);
  auto* floats = reinterpret_cast<float*>(out);
  std::size_t i = 0;
  for (; i + lanes <= row_width; i += lanes) {
    hn::StoreU(round(df, hn::LoadU(df, in + i)), df, floats + i);
  }
  const std::size_t rest = row_width - i;
  if (rest != 0) hn::StoreN(round(df, hn::LoadN(df, in + i, rest)), df, floats + i, rest);
}

// To nearest, ties to even; what is too large becomes infinite; NaN stays NaN.
void Float16Row(const float* in, std::size_t row_width, std::int32_t* out) {
  RoundRow(in, row_width, out, [](auto df, auto values) {
    constexpr float kTooLarge = 65520.0f;  // halfway beyond the largest
    const hn::Rebind<hwy::float16_t, decltype(df)> d16;
    const auto rounded = hn::PromoteTo(df, hn::DemoteTo(d16, values));
    const auto infinite = hn::CopySign(hn::Inf(df), values);
    // Not less: NaN as well.
    const auto in_range = hn::Lt(hn::Abs(values), hn::Set(df, kTooLarge));
    return hn::IfThenElse(in_range, rounded, hn::IfThenElse(hn::IsNaN(values), values, infinite));
  });
}

// To nearest, ties to even; NaN stays NaN.
void Bfloat16Row(const float* in, std::size_t row_width, std::int32_t* out) {
  RoundRow(in, row_width, out, [](auto df, auto values) {
    const hn::RebindToUnsigned<decltype(df)> du;
    const auto bits = hn::BitCast(du, values);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto upper = hn::And(rounded, hn::Set(du, 0xffff0000));
    return hn::IfThenElse(hn::IsNaN(values), values, hn::BitCast(df, upper));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

QuantizeFunction Quantize256(InstructionSet set) { return ES_KERNELS_FOR(set, Row256); }
QuantizeFunction Quantize32(InstructionSet set) { return ES_KERNELS_FOR(set, Row32); }

QuantizeFunction RoundToFloat16(InstructionSet set) { return ES_KERNELS_FOR(set, Float16Row); }
QuantizeFunction RoundToBfloat16(InstructionSet set) { return ES_KERNELS_FOR(set, Bfloat16Row); }

QuantizeFunction KeepFloats() {
  return [](const float* in, std::size_t row_width, std::int32_t* out) {
    std::memcpy(out, in, row_width * sizeof(float));
  };
}

}  // namespace kernels
#endif  // HWY_ONCE
