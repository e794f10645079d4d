// Vector pieces of all kernels, compiled once an instruction set. Internal to this folder.
//
// A vector is kLanes rows of a strip: 16 with AVX-512, else the strip is done in several passes of
// which `row` is the first row.
#if defined(ES_KERNELS_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ES_KERNELS_VECTOR_INL_H
#undef ES_KERNELS_VECTOR_INL_H
#else
#define ES_KERNELS_VECTOR_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using I32 = hn::CappedTag<std::int32_t, kStripRows>;
using F32 = hn::RebindToFloat<I32>;
using I16 = hn::Repartition<std::int16_t, I32>;
using I8 = hn::Repartition<std::int8_t, I32>;
using U8 = hn::Repartition<std::uint8_t, I32>;
using U16 = hn::Repartition<std::uint16_t, I32>;
using VI32 = hn::Vec<I32>;
using VF32 = hn::Vec<F32>;
using VU8 = hn::Vec<U8>;

inline constexpr std::size_t kLanes = hn::MaxLanes(I32());

#if HWY_TARGET == HWY_AVX3_DL
inline constexpr bool kHasQuadDot = true;  // u8 x i8, 4 products summed in 32 bits
inline constexpr int kPanelRows = 12;
#else
inline constexpr bool kHasQuadDot = false;
inline constexpr int kPanelRows = 4;
#endif
#if HWY_TARGET == HWY_AVX2
inline constexpr bool kHasPairDot = true;  // u8 x i8, 2 products summed in 16 bits
#else
inline constexpr bool kHasPairDot = false;
#endif

HWY_INLINE VF32 LoadHalves(const std::uint8_t* p, std::size_t row) {
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(F32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p) + row));
}
HWY_INLINE VI32 LoadSigned(const std::uint8_t* p, std::size_t row) {
  const hn::Rebind<std::int8_t, I32> d8;
  return hn::PromoteTo(I32(), hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p) + row));
}
// Pairs of bytes of each row as pairs of 16 bits.
HWY_INLINE hn::Vec<I16> LoadPairs(const std::uint8_t* p, std::size_t row) {
  const hn::Rebind<std::uint8_t, I16> d8;
  return hn::PromoteTo(I16(), hn::LoadU(d8, p + 2 * row));
}
// A vector of a plane.
HWY_INLINE VU8 LoadPlane(const std::uint8_t* plane, std::size_t row) {
  return hn::LoadU(U8(), plane + 4 * row);
}

// As a bit matrix for GF2P8AFFINEQB, whose byte 7 - i selects the bits that output bit i is made
// of.
template <int kFrom, int kTo, int kBits>
constexpr std::int64_t MoveMatrix() {
  std::uint64_t matrix = 0;
  for (int i = 0; i < kBits; ++i) {
    matrix |= std::uint64_t{1} << (8 * (7 - (kTo + i)) + kFrom + i);
  }
  return static_cast<std::int64_t>(matrix);
}

// Bits kFrom.. (kBits of them) of each byte, moved to kTo; all others are 0.
template <int kFrom, int kTo, int kBits>
HWY_INLINE VU8 MoveBits(VU8 bytes) {
  constexpr auto kMask = static_cast<std::uint8_t>(((1 << kBits) - 1) << kTo);
  const auto wide = hn::BitCast(U16(), bytes);
  if constexpr (kFrom == kTo) {
    return hn::And(bytes, hn::Set(U8(), kMask));
#if HWY_TARGET == HWY_AVX3_DL
  } else {
    static_cast<void>(wide);  // one instruction instead of a shift and a mask
    return VU8{_mm512_gf2p8affine_epi64_epi8(
        bytes.raw, _mm512_set1_epi64(MoveMatrix<kFrom, kTo, kBits>()), 0)};
  }
#else
  } else if constexpr (kFrom > kTo) {
    return hn::And(hn::BitCast(U8(), hn::ShiftRight<kFrom - kTo>(wide)), hn::Set(U8(), kMask));
  } else {
    return hn::And(hn::BitCast(U8(), hn::ShiftLeft<kTo - kFrom>(wide)), hn::Set(U8(), kMask));
  }
#endif
}

// Group k of a unit, from planes of four, two and one bits a weight; moved to bit kTo.
template <int k>
HWY_INLINE VU8 FourBits(const std::uint8_t* planes, std::size_t row) {
  return MoveBits<4 * (k % 2), 0, 4>(LoadPlane(planes + k / 2 * kGroupBytes, row));
}
template <int k, int kTo>
HWY_INLINE VU8 TwoBits(const std::uint8_t* planes, std::size_t row) {
  return MoveBits<2 * (k % 4), kTo, 2>(LoadPlane(planes + k / 4 * kGroupBytes, row));
}
template <int k, int kTo>
HWY_INLINE VU8 OneBit(const std::uint8_t* planes, std::size_t row) {
  return MoveBits<k, kTo, 1>(LoadPlane(planes, row));
}

// A table of 16 codes' weights, for Lookup.
HWY_INLINE VU8 LoadTable(const std::uint8_t* table) { return hn::LoadDup128(U8(), table); }
HWY_INLINE VU8 Lookup(VU8 table, VU8 codes) { return hn::TableLookupBytes(table, codes); }

// How a type's unsigned weights w (at most kMaxWeight; |w - offset| at most kMagnitude) are
// multiplied with int8. Accumulators of 32 bits hold any number of groups. AVX2 sums pairs of
// products in 16 bits, which few groups fit into, and pairs of large weights do not: then w - 128
// is multiplied, 128 being the offset of all such types.
template <class Format>
inline constexpr bool kMultipliesSigned = kHasPairDot && (Format::kMaxWeight > 128);

// 8, 4, 2 or 1: groups whose products one accumulator may hold.
template <class Format>
constexpr int AccumulatorGroups() {
  if (!kHasPairDot) return 8;
  const int pair = 2 * 127 * (kMultipliesSigned<Format> ? Format::kMagnitude : Format::kMaxWeight);
  const int groups = ((1 << 15) - 1) / pair;
  return groups >= 8 ? 8 : groups >= 4 ? 4 : groups >= 2 ? 2 : 1;
}

// acc += 4 columns of each row; `word` is 4 activations.
template <class Format>
HWY_INLINE VI32 Dot(VI32 acc, VU8 weights, VI32 word) {
  const auto q = hn::BitCast(I8(), word);
#if HWY_TARGET == HWY_AVX2
  if constexpr (kMultipliesSigned<Format>) {
    const auto signed_weights = hn::BitCast(I8(), hn::Xor(weights, hn::Set(U8(), 0x80)));
    const auto pairs =
        hn::SatWidenMulPairwiseAdd(I16(), hn::BitCast(U8(), hn::Abs(signed_weights)),
                                   hn::IfNegativeThenNegOrUndefIfZero(signed_weights, q));
    return hn::BitCast(I32(), hn::Add(hn::BitCast(I16(), acc), pairs));
  } else {
    const auto pairs = hn::SatWidenMulPairwiseAdd(I16(), weights, q);
    return hn::BitCast(I32(), hn::Add(hn::BitCast(I16(), acc), pairs));
  }
#else
  return hn::SumOfMulQuadAccumulate(I32(), weights, q, acc);
#endif
}

// sums + accumulator * scale. With kSmall the accumulator is below 2^15 in magnitude.
template <bool kSmall>
HWY_INLINE VI32 AddScaled(VI32 sums, VI32 acc, VI32 scale) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kSmall) return VI32{_mm512_dpwssd_epi32(sums.raw, acc.raw, scale.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(
      sums, hn::WidenMulPairwiseAdd(I32(), hn::BitCast(I16(), acc), hn::BitCast(I16(), scale)));
#endif
  return hn::Add(sums, hn::Mul(acc, scale));
}

// `low` and `high`, which fit 16 bits, as pairs.
HWY_INLINE VI32 MakePairs(VI32 low, VI32 high) {
  return hn::Or(hn::And(low, hn::Set(I32(), 0xffff)), hn::ShiftLeft<16>(high));
}

// What AddScaled wants for a scale.
template <bool kSmall>
HWY_INLINE VI32 ScaleFor(VI32 scale) {
  if constexpr (kHasPairDot) return MakePairs(scale, scale);
  if constexpr (kSmall && kHasQuadDot) return hn::And(scale, hn::Set(I32(), 0xffff));
  return scale;
}

// The sums of kLanes rows and T activation rows, [T, kStripRows].
template <int T>
HWY_INLINE void LoadTotals(const float* sums, std::size_t row, VF32* totals) {
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) {
    totals[t] = hn::LoadU(F32(), sums + static_cast<std::size_t>(t) * kStripRows + row);
  }
}
template <int T>
HWY_INLINE void StoreTotals(const VF32* totals, std::size_t row, float* sums) {
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) {
    hn::StoreU(totals[t], F32(), sums + static_cast<std::size_t>(t) * kStripRows + row);
  }
}

HWY_INLINE VI32 Broadcast(const std::int32_t* word) { return hn::Set(I32(), *word); }
HWY_INLINE VF32 BroadcastFloat(const std::int32_t* word) {
  return hn::BitCast(F32(), hn::Set(I32(), *word));
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
