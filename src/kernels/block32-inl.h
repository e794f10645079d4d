// Strips of 32-column blocks times panels. Internal to this folder; see layout.h.
//
// A Format says how a type's weights are unpacked:
//   kLayout                      its BlockLayout
//   kMaxWeight, kMagnitude       bounds of the unsigned weights, and with their offset taken away
//   kSumsWord                    the word of the panel that takes the weights' offset away, the
//                                first of as many as a block has scales; < 0 for none
//   Format()                     loads tables, if any
//   Scale(scales, row)           scales of a block
//   Weights<k>(plane, row)       group k of a block
#if defined(ES_KERNELS_BLOCK32_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ES_KERNELS_BLOCK32_INL_H
#undef ES_KERNELS_BLOCK32_INL_H
#else
#define ES_KERNELS_BLOCK32_INL_H
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

// Groups of 4 columns that have a scale.
template <class Format>
inline constexpr int kScaleGroups = 8 / static_cast<int>(Format::kLayout.scales_per_block);

// Groups k.. up to kEnd of a block. Accumulators that cannot hold them all are added up in `sums`.
template <class Format, int T, int k, int kEnd>
HWY_INLINE void BlockGroups(const Format& format, const std::uint8_t* plane, std::size_t row,
                            const std::int32_t* q, VI32* acc, VI32* sums) {
  if constexpr (k < kEnd) {
    constexpr int kGroups = std::min(AccumulatorGroups<Format>(), kScaleGroups<Format>);
    const VU8 weights = format.template Weights<k>(plane, row);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const VI32 word = Broadcast(q + k * T + t);
      if constexpr (kHasPairDot) {
        acc[t] = Dot<Format>(k % kGroups == 0 ? hn::Zero(I32()) : acc[t], weights, word);
      } else {
        sums[t] = Dot<Format>(sums[t], weights, word);
      }
    }
    if constexpr (kHasPairDot && (k + 1) % kGroups == 0) {
      const VI32 ones = hn::Set(I32(), 0x00010001);
      HWY_UNROLL(12)
      for (int t = 0; t < T; ++t) sums[t] = AddScaled<false>(sums[t], acc[t], ones);
    }
    BlockGroups<Format, T, k + 1, kEnd>(format, plane, row, q, acc, sums);
  }
}

// Adds the columns of scale s of a block and those that follow.
template <class Format, int T, int s>
HWY_INLINE void MultiplyBlock(const Format& format, const std::uint8_t* scales,
                              const std::uint8_t* plane, std::size_t row, const std::int32_t* panel,
                              VF32* totals) {
  constexpr BlockLayout kLayout = Format::kLayout;
  if constexpr (s < static_cast<int>(kLayout.scales_per_block)) {
    constexpr int kGroups = kScaleGroups<Format>;
    VI32 acc[T];
    VI32 sums[T];
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      if constexpr (Format::kSumsWord < 0 || kMultipliesSigned<Format>) {
        sums[t] = hn::Zero(I32());
      } else {
        sums[t] = Broadcast(panel + (Format::kSumsWord + s) * T + t);
      }
    }
    BlockGroups<Format, T, s * kGroups, (s + 1) * kGroups>(format, plane, row,
                                                           panel + block32::kQ * T, acc, sums);
    const VF32 d = format.Scale(scales + s * kStripRows * kLayout.scale_bytes, row);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) {
      const VF32 x_scale = BroadcastFloat(panel + block32::kScale * T + t);
      const VF32 sum = hn::ConvertTo(F32(), sums[t]);
      if constexpr (kLayout.has_mins) {
        const VF32 min = LoadHalves(scales + kStripRows * kLayout.scale_bytes, row);
        const VF32 mins = hn::Mul(min, BroadcastFloat(panel + block32::kSum * T + t));
        totals[t] = hn::MulAdd(hn::MulAdd(d, sum, mins), x_scale, totals[t]);
      } else {
        totals[t] = hn::MulAdd(hn::Mul(d, x_scale), sum, totals[t]);
      }
    }
    MultiplyBlock<Format, T, s + 1>(format, scales, plane, row, panel, totals);
  }
}

// A StripFunction for panels of T rows.
template <class Format, int T>
HWY_NOINLINE void MultiplyBlockStrip(const std::byte* strip, std::size_t row_width,
                                     const std::int32_t* panel, float* sums) {
  constexpr BlockLayout kLayout = Format::kLayout;
  const Format format;
  const std::size_t num_blocks = row_width / kUnitColumns;
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    VF32 totals[T];
    LoadTotals<T>(sums, row, totals);
    const auto* slab = reinterpret_cast<const std::uint8_t*>(strip);
    const std::int32_t* words = panel;
    for (std::size_t first = 0; first < num_blocks; first += kUnits) {
      const std::size_t blocks = std::min(kUnits, num_blocks - first);
      const std::uint8_t* plane = slab + kLayout.scales_bytes(blocks);
      for (std::size_t i = 0; i < blocks; ++i) {
        MultiplyBlock<Format, T, 0>(format, slab + i * kLayout.block_scales_bytes(), plane, row,
                                    words, totals);
        plane += kLayout.plane_bytes;
        words += block32::kWords * T;
      }
      slab = plane;
    }
    StoreTotals<T>(totals, row, sums);
  }
}

template <class Format, int... T>
constexpr std::array<StripFunction, sizeof...(T)> BlockStripsOf(std::integer_sequence<int, T...>) {
  return {MultiplyBlockStrip<Format, T + 1>...};
}

template <class Format>
StripFunctions BlockStrips() {
  static constexpr auto kStrips =
      BlockStripsOf<Format>(std::make_integer_sequence<int, kPanelRows>());
  return {kStrips.data(), kStrips.size()};
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
