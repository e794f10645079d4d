// Q8_0, Q4_0, IQ4_NL, MXFP4: products.
#include "kernels/pack.h"
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/block32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

struct HalfScales {
  HWY_INLINE VF32 Scale(const std::uint8_t* scales, std::size_t row) const {
    return LoadHalves(scales, row);
  }
};

struct FormatQ80 : HalfScales {
  static constexpr BlockLayout kLayout = kQ80;
  static constexpr int kMaxWeight = 255;
  static constexpr int kMagnitude = 128;
  static constexpr int kSumsWord = block32::kMinus128Sum;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return LoadPlane(plane + k * kGroupBytes, row);
  }
};

struct FormatQ40 : HalfScales {
  static constexpr BlockLayout kLayout = kQ40;
  static constexpr int kMaxWeight = 15;
  static constexpr int kMagnitude = 8;
  static constexpr int kSumsWord = block32::kMinus8Sum;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return FourBits<k>(plane, row);
  }
};

struct FormatIq4Nl : HalfScales {
  static constexpr BlockLayout kLayout = kIq4Nl;
  static constexpr int kMaxWeight = 255;
  static constexpr int kMagnitude = 127;
  static constexpr int kSumsWord = block32::kMinus128Sum;
  VU8 table;
  HWY_INLINE FormatIq4Nl() : table(LoadTable(kIq4Table.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, FourBits<k>(plane, row));
  }
};

struct FormatMxfp4 {
  static constexpr BlockLayout kLayout = kMxfp4;
  static constexpr int kMaxWeight = 24;
  static constexpr int kMagnitude = 12;
  static constexpr int kSumsWord = block32::kMinus12Sum;
  VU8 table;
  HWY_INLINE FormatMxfp4() : table(LoadTable(kMxfp4Table.data())) {}
  // Half of two to the stored exponent, for twice the values.
  HWY_INLINE VF32 Scale(const std::uint8_t* scales, std::size_t row) const {
    const hn::Rebind<std::uint8_t, I32> d8;
    return hn::BitCast(F32(), hn::ShiftLeft<23>(hn::PromoteTo(I32(), hn::LoadU(d8, scales + row))));
  }
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, FourBits<k>(plane, row));
  }
};

StripFunctions Q80() { return BlockStrips<FormatQ80>(); }
StripFunctions Q40() { return BlockStrips<FormatQ40>(); }
StripFunctions Iq4Nl() { return BlockStrips<FormatIq4Nl>(); }
StripFunctions Mxfp4() { return BlockStrips<FormatMxfp4>(); }

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

StripFunctions Q80Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q80)(); }
StripFunctions Q40Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q40)(); }
StripFunctions Iq4NlStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq4Nl)(); }
StripFunctions Mxfp4Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Mxfp4)(); }

}  // namespace kernels
#endif  // HWY_ONCE
