// Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, Q2_0, Q1_0, IQ4_NL, MXFP4, NVFP4: products.
#include "kernels/codes.h"
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

struct NibbleWeights : HalfScales {
  static constexpr int kMaxWeight = 15;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return FourBits<k>(plane, row);
  }
};

struct FormatQ40 : NibbleWeights {
  static constexpr BlockLayout kLayout = kQ40;
  static constexpr int kMagnitude = 8;
  static constexpr int kSumsWord = block32::kMinus8Sum;
};

struct FormatQ41 : NibbleWeights {
  static constexpr BlockLayout kLayout = kQ41;
  static constexpr int kMagnitude = 15;
  static constexpr int kSumsWord = -1;
};

struct FiveBitWeights : HalfScales {
  static constexpr int kMaxWeight = 31;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return hn::Or(FourBits<k>(plane + kGroupBytes, row), OneBit<k, 4>(plane, row));
  }
};

struct FormatQ50 : FiveBitWeights {
  static constexpr BlockLayout kLayout = kQ50;
  static constexpr int kMagnitude = 16;
  static constexpr int kSumsWord = block32::kMinus16Sum;
};

struct FormatQ51 : FiveBitWeights {
  static constexpr BlockLayout kLayout = kQ51;
  static constexpr int kMagnitude = 31;
  static constexpr int kSumsWord = -1;
};

// Weights with 128 added, looked up from codes.
struct LookedUp : HalfScales {
  static constexpr int kMaxWeight = 255;
  static constexpr int kSumsWord = block32::kMinus128Sum;
  VU8 table;
  HWY_INLINE explicit LookedUp(const std::uint8_t* values) : table(LoadTable(values)) {}
};

struct FormatIq4Nl : LookedUp {
  static constexpr BlockLayout kLayout = kIq4Nl;
  static constexpr int kMagnitude = 127;
  HWY_INLINE FormatIq4Nl() : LookedUp(kIq4Table.data()) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, FourBits<k>(plane, row));
  }
};

struct FormatQ20 : LookedUp {
  static constexpr BlockLayout kLayout = kQ20;
  static constexpr int kMagnitude = 2;
  HWY_INLINE FormatQ20() : LookedUp(kTernaryTable.data()) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, TwoBits<k, 0>(plane, row));
  }
};

struct FormatQ10 : LookedUp {
  static constexpr BlockLayout kLayout = kQ10;
  static constexpr int kMagnitude = 1;
  HWY_INLINE FormatQ10() : LookedUp(kQ10Table.data()) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, OneBit<k, 0>(plane, row));
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

// Scales of 16 columns, halved as well.
struct FormatNvfp4 : HalfScales {
  static constexpr BlockLayout kLayout = kNvfp4;
  static constexpr int kMaxWeight = 24;
  static constexpr int kMagnitude = 12;
  static constexpr int kSumsWord = block32::kMinus12Sum16;
  VU8 table;
  HWY_INLINE FormatNvfp4() : table(LoadTable(kMxfp4Table.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* plane, std::size_t row) const {
    return Lookup(table, FourBits<k>(plane, row));
  }
};

StripFunctions Q80() { return BlockStrips<FormatQ80>(); }
StripFunctions Q40() { return BlockStrips<FormatQ40>(); }
StripFunctions Iq4Nl() { return BlockStrips<FormatIq4Nl>(); }
StripFunctions Q51() { return BlockStrips<FormatQ51>(); }
StripFunctions Q50() { return BlockStrips<FormatQ50>(); }
StripFunctions Q41() { return BlockStrips<FormatQ41>(); }
StripFunctions Q20() { return BlockStrips<FormatQ20>(); }
StripFunctions Q10() { return BlockStrips<FormatQ10>(); }
StripFunctions Nvfp4() { return BlockStrips<FormatNvfp4>(); }
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
StripFunctions Q51Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q51)(); }
StripFunctions Q50Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q50)(); }
StripFunctions Q41Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q41)(); }
StripFunctions Q20Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q20)(); }
StripFunctions Q10Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Q10)(); }
StripFunctions Nvfp4Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Nvfp4)(); }
StripFunctions Mxfp4Strips(InstructionSet set) { return ES_KERNELS_FOR(set, Mxfp4)(); }

}  // namespace kernels
#endif  // HWY_ONCE
