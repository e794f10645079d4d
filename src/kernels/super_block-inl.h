// Strips of 256-column slabs times panels. Internal to this folder; see layout.h.
//
// A Format says how a type's weights are unpacked:
//   kLayout                      its SlabLayout
//   kMaxWeight, kMagnitude       bounds of the unsigned weights, and with their offset taken away
//   kSumsWord, kColumnsPerSum    what the weights' offset takes: a word of the panel for so many
//                                columns (kMinus128Sum32 for 16 or 8: made of kMinus32Sum8);
//                                kSumsWord < 0 for none
//   kFactor                      weights are this many times the type's own
//   Format()                     loads tables, if any
//   Weights<k>(planes, row)      group k of a unit
#if defined(ES_KERNELS_SUPER_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ES_KERNELS_SUPER_BLOCK_INL_H
#undef ES_KERNELS_SUPER_BLOCK_INL_H
#else
#define ES_KERNELS_SUPER_BLOCK_INL_H
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

// Where accumulators are multiplied with scales.
template <class Format>
struct Scaling {
  static constexpr bool kHasOffset = Format::kSumsWord >= 0;
  static constexpr int kScaleGroups = Format::kLayout.scales_per_unit == 2 ? 4 : 8;
  // Groups whose sum is below 2^15 and may be multiplied in 16 bits: one instruction, of three.
  static constexpr int kSmallGroups = kHasOffset ? 2 : 4;
  static constexpr bool kSmall = kHasQuadDot &&
                                 Format::kMagnitude * 127 * 4 * kSmallGroups < (1 << 15) &&
                                 kScaleGroups < 3 * kSmallGroups;
  static constexpr int kGroups = std::min({kScaleGroups, AccumulatorGroups<Format>(),
                                           kSmall ? kSmallGroups : 8, Format::kColumnsPerSum / 4});
  // Accumulators start with the offset, or it is taken away at a slab's end.
  static constexpr bool kStartsWithOffset = kHasOffset && !kHasPairDot;
  static constexpr bool kEndsWithOffset = kHasOffset && kHasPairDot && !kMultipliesSigned<Format>;
  static_assert(!kEndsWithOffset || Format::kSumsWord == block256::kMinus32Sum8);
};

template <class Format, int T>
HWY_INLINE void StartRows(const std::int32_t* panel, std::size_t unit, int k, VI32* acc) {
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) {
    if constexpr (Scaling<Format>::kStartsWithOffset &&
                  Format::kSumsWord == block256::kMinus128Sum32 && Format::kColumnsPerSum < 32) {
      // Of -32 x sums of 8.
      const std::int32_t* sums = panel + (block256::kMinus32Sum8 + 4 * unit) * T + t;
      const std::int32_t* first = sums + k / 2 * T;
      VI32 sum = Broadcast(first);
      if constexpr (Format::kColumnsPerSum == 16) sum = hn::Add(sum, Broadcast(first + T));
      acc[t] = hn::ShiftLeft<2>(sum);
    } else if constexpr (Scaling<Format>::kStartsWithOffset) {
      constexpr std::size_t kPerUnit = kUnitColumns / Format::kColumnsPerSum;
      const std::size_t sum =
          kPerUnit * unit + static_cast<std::size_t>(k) * 4 / Format::kColumnsPerSum;
      acc[t] = Broadcast(panel + (static_cast<std::size_t>(Format::kSumsWord) + sum) * T + t);
    } else {
      acc[t] = hn::Zero(I32());
    }
  }
}

template <class Format>
HWY_INLINE VI32 LoadScale(const std::uint8_t* slab, std::size_t index, std::size_t row) {
  return LoadSigned(slab + Format::kLayout.scales_offset() + index * kStripRows, row);
}

// Groups k.. of a unit; `q` is the unit's first word of activations.
template <class Format, int T, int k>
HWY_INLINE void UnitGroups(const Format& format, const std::uint8_t* slab, std::size_t unit,
                           std::size_t row, const std::int32_t* panel, const std::int32_t* q,
                           VI32* acc, VI32* sums) {
  if constexpr (k < 8) {
    using S = Scaling<Format>;
    constexpr SlabLayout kLayout = Format::kLayout;
    if constexpr (k % S::kGroups == 0) StartRows<Format, T>(panel, unit, k, acc);
    const std::uint8_t* planes = slab + kLayout.planes_offset() + unit * kLayout.unit_bytes;
    const VU8 weights = format.template Weights<k>(planes, row);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      acc[t] = Dot<Format>(acc[t], weights, Broadcast(q + k * T + t));
    }
    if constexpr ((k + 1) % S::kGroups == 0) {
      const std::size_t index = unit * kLayout.scales_per_unit + k / S::kScaleGroups;
      const VI32 scale = ScaleFor<S::kSmall>(LoadScale<Format>(slab, index, row));
      HWY_UNROLL(12)
      for (int t = 0; t < T; ++t) sums[t] = AddScaled<S::kSmall>(sums[t], acc[t], scale);
    }
    UnitGroups<Format, T, k + 1>(format, slab, unit, row, panel, q, acc, sums);
  }
}

// Takes away what an offset of 32 adds: 32 x scale x sum of activations.
template <class Format, int T>
HWY_INLINE void TakeOffset(const std::uint8_t* slab, std::size_t row, const std::int32_t* panel,
                           VI32* sums) {
  VI32 offsets[T];
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) offsets[t] = hn::Zero(I32());
  for (std::size_t i = 0; i < kUnits; ++i) {
    const VI32 scales =
        MakePairs(LoadScale<Format>(slab, 2 * i, row), LoadScale<Format>(slab, 2 * i + 1, row));
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const auto pair = hn::BitCast(I16(), Broadcast(panel + (block256::kPairs16 + i) * T + t));
      offsets[t] =
          hn::Add(offsets[t], hn::WidenMulPairwiseAdd(I32(), hn::BitCast(I16(), scales), pair));
    }
  }
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) sums[t] = hn::Sub(sums[t], hn::ShiftLeft<5>(offsets[t]));
}

// out[t] = what the mins take: sum over sub-blocks of min x sum of activations.
template <class Format, int T>
HWY_INLINE void MinSums(const std::uint8_t* slab, std::size_t row, const std::int32_t* panel,
                        VI32* out) {
  constexpr SlabLayout kLayout = Format::kLayout;
  constexpr int kWord = kLayout.scales_per_unit == 2 ? block256::kPairs16 : block256::kPairs32;
  constexpr std::size_t kPairs = kUnits * kLayout.scales_per_unit / 2;
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) out[t] = hn::Zero(I32());
  for (std::size_t i = 0; i < kPairs; ++i) {
    const auto mins = LoadPairs(slab + kLayout.mins_offset() + i * 2 * kStripRows, row);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const auto pair = hn::BitCast(I16(), Broadcast(panel + (kWord + i) * T + t));
      out[t] = hn::Add(out[t], hn::WidenMulPairwiseAdd(I32(), mins, pair));
    }
  }
}

template <class Format, int T>
HWY_INLINE void MultiplySlab(const Format& format, const std::uint8_t* slab, std::size_t row,
                             const std::int32_t* panel, VF32* totals) {
  VI32 sums[T];
  VI32 acc[T];
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) sums[t] = hn::Zero(I32());
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    UnitGroups<Format, T, 0>(format, slab, unit, row, panel, panel + (block256::kQ + unit * 8) * T,
                             acc, sums);
  }
  if constexpr (Scaling<Format>::kEndsWithOffset) TakeOffset<Format, T>(slab, row, panel, sums);
  VF32 d = LoadHalves(slab, row);
  if constexpr (Format::kFactor != 1) d = hn::Mul(d, hn::Set(F32(), 1.0f / Format::kFactor));
  if constexpr (Format::kLayout.has_mins) {
    const VF32 dmin = LoadHalves(slab + 2 * kStripRows, row);
    MinSums<Format, T>(slab, row, panel, acc);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const VF32 mins = hn::Mul(dmin, hn::ConvertTo(F32(), acc[t]));
      const VF32 value = hn::MulSub(d, hn::ConvertTo(F32(), sums[t]), mins);
      totals[t] = hn::MulAdd(value, BroadcastFloat(panel + block256::kScale * T + t), totals[t]);
    }
  } else {
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const VF32 value = hn::Mul(d, hn::ConvertTo(F32(), sums[t]));
      totals[t] = hn::MulAdd(value, BroadcastFloat(panel + block256::kScale * T + t), totals[t]);
    }
  }
}

// A StripFunction for panels of T rows.
template <class Format, int T>
HWY_NOINLINE void MultiplyStrip(const std::byte* strip, std::size_t row_width,
                                const std::int32_t* panel, float* sums) {
  const Format format;
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    VF32 totals[T];
    LoadTotals<T>(sums, row, totals);
    const auto* slab = reinterpret_cast<const std::uint8_t*>(strip);
    const std::int32_t* words = panel;
    for (std::size_t i = 0; i < row_width / kSlabColumns; ++i) {
      MultiplySlab<Format, T>(format, slab, row, words, totals);
      slab += Format::kLayout.bytes();
      words += block256::kWords * T;
    }
    StoreTotals<T>(totals, row, sums);
  }
}

template <class Format, int... T>
constexpr std::array<StripFunction, sizeof...(T)> StripsOf(std::integer_sequence<int, T...>) {
  return {MultiplyStrip<Format, T + 1>...};
}

template <class Format>
StripFunctions SuperBlockStrips() {
  static constexpr auto kStrips = StripsOf<Format>(std::make_integer_sequence<int, kPanelRows>());
  return {kStrips.data(), kStrips.size()};
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
