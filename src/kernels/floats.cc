// F32, F16, BF16: products. Activations stay floats; weights become floats on their way.
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/floats.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

struct FormatF32 {
  static constexpr std::size_t kBytes = 4;
  HWY_INLINE static VF32 Load(const std::uint8_t* p, std::size_t row) {
    return hn::LoadU(F32(), reinterpret_cast<const float*>(p) + row);
  }
};

struct FormatF16 {
  static constexpr std::size_t kBytes = 2;
  HWY_INLINE static VF32 Load(const std::uint8_t* p, std::size_t row) { return LoadHalves(p, row); }
};

struct FormatBf16 {
  static constexpr std::size_t kBytes = 2;
  HWY_INLINE static VF32 Load(const std::uint8_t* p, std::size_t row) {
    const hn::Rebind<std::uint16_t, I32> d16;
    const auto halves = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p) + row);
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(I32(), halves)));
  }
};

// Long sums lose digits: products are added up in groups of 16, 64 and 256 columns.
inline constexpr std::size_t kGroup = 16;
inline constexpr std::size_t kSuperGroup = 64;

// sums += up to kGroup columns of kLanes rows times T activation rows.
template <class Format, int T>
HWY_INLINE void AddGroup(const std::uint8_t* columns, std::size_t num_columns, std::size_t row,
                         const std::int32_t* panel, VF32* sums) {
  VF32 acc[T];
  const VF32 first = Format::Load(columns, row);
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) acc[t] = hn::Mul(first, BroadcastFloat(panel + t));
  for (std::size_t i = 1; i < num_columns; ++i) {
    const VF32 weights = Format::Load(columns + i * kStripRows * Format::kBytes, row);
    const std::int32_t* x = panel + i * static_cast<std::size_t>(T);
    HWY_UNROLL(12)
    for (int t = 0; t < T; ++t) acc[t] = hn::MulAdd(weights, BroadcastFloat(x + t), acc[t]);
  }
  HWY_UNROLL(12)
  for (int t = 0; t < T; ++t) sums[t] = hn::Add(sums[t], acc[t]);
}

// A StripFunction for panels of T rows.
template <class Format, int T>
HWY_NOINLINE void MultiplyFloatStrip(const std::byte* strip, std::size_t row_width,
                                     const std::int32_t* panel, float* sums) {
  constexpr std::size_t kColumnBytes = kStripRows * Format::kBytes;
  const auto* weights = reinterpret_cast<const std::uint8_t*>(strip);
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    VF32 totals[T];
    LoadTotals<T>(sums, row, totals);
    for (std::size_t slab = 0; slab < row_width; slab += kSlabColumns) {
      const std::size_t slab_end = std::min(row_width, slab + kSlabColumns);
      VF32 slab_sums[T];
      HWY_UNROLL(12)
      for (int t = 0; t < T; ++t) slab_sums[t] = hn::Zero(F32());
      for (std::size_t begin = slab; begin < slab_end; begin += kSuperGroup) {
        const std::size_t end = std::min(slab_end, begin + kSuperGroup);
        VF32 group_sums[T];
        HWY_UNROLL(12)
        for (int t = 0; t < T; ++t) group_sums[t] = hn::Zero(F32());
        for (std::size_t i = begin; i < end; i += kGroup) {
          AddGroup<Format, T>(weights + i * kColumnBytes, std::min(kGroup, end - i), row,
                              panel + i * static_cast<std::size_t>(T), group_sums);
        }
        HWY_UNROLL(12)
        for (int t = 0; t < T; ++t) slab_sums[t] = hn::Add(slab_sums[t], group_sums[t]);
      }
      HWY_UNROLL(12)
      for (int t = 0; t < T; ++t) totals[t] = hn::Add(totals[t], slab_sums[t]);
    }
    StoreTotals<T>(totals, row, sums);
  }
}

template <class Format, int... T>
constexpr std::array<StripFunction, sizeof...(T)> FloatStripsOf(std::integer_sequence<int, T...>) {
  return {MultiplyFloatStrip<Format, T + 1>...};
}

template <class Format>
StripFunctions FloatStrips() {
  static constexpr auto kStrips =
      FloatStripsOf<Format>(std::make_integer_sequence<int, kPanelRows>());
  return {kStrips.data(), kStrips.size()};
}

StripFunctions AllF32() { return FloatStrips<FormatF32>(); }
StripFunctions AllF16() { return FloatStrips<FormatF16>(); }
StripFunctions AllBf16() { return FloatStrips<FormatBf16>(); }

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

StripFunctions F32Strips(InstructionSet set) { return ES_KERNELS_FOR(set, AllF32)(); }
StripFunctions F16Strips(InstructionSet set) { return ES_KERNELS_FOR(set, AllF16)(); }
StripFunctions Bf16Strips(InstructionSet set) { return ES_KERNELS_FOR(set, AllBf16)(); }

}  // namespace kernels
#endif  // HWY_ONCE
