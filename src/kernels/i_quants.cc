// IQ4_XS, IQ3_*, IQ2_*, IQ1_*, TQ*: products. Weights are looked up from small codes.
#include "kernels/codes.h"
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/i_quants.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/super_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

struct OffsetOf128 {
  static constexpr int kMaxWeight = 255;
  static constexpr int kSumsWord = block256::kMinus128Sum32;
  static constexpr int kColumnsPerSum = 32;
};

struct FormatIq4Xs : OffsetOf128 {
  static constexpr SlabLayout kLayout = kIq4Xs;
  static constexpr int kFactor = 1;
  static constexpr int kMagnitude = 127;
  VU8 table;
  HWY_INLINE FormatIq4Xs() : table(LoadTable(kIq4Table.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return Lookup(table, FourBits<k>(planes, row));
  }
};

// Three bits a weight; IQ2 and IQ1 types.
struct ThreeBitCodes : OffsetOf128 {
  static constexpr int kFactor = 8;
  VU8 table;
  HWY_INLINE explicit ThreeBitCodes(const std::uint8_t* values) : table(LoadTable(values)) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return Lookup(table,
                  hn::Or(TwoBits<k, 0>(planes + kGroupBytes, row), OneBit<k, 2>(planes, row)));
  }
};

// d * (1/2 + s) / 4 = d * (1 + 2 s) / 8, and 1 + 2 s is what is stored.
struct FormatIq2Xxs : ThreeBitCodes {
  static constexpr SlabLayout kLayout = kIq2Xxs;
  static constexpr int kMagnitude = 43;
  HWY_INLINE FormatIq2Xxs() : ThreeBitCodes(kIq2Table.data()) {}
};

// Scales of 16 columns.
struct FormatIq2Xs : ThreeBitCodes {
  static constexpr SlabLayout kLayout = kIq2Xs;
  static constexpr int kColumnsPerSum = 16;
  static constexpr int kMagnitude = 43;
  HWY_INLINE FormatIq2Xs() : ThreeBitCodes(kIq2Table.data()) {}
};

struct FormatIq1S : ThreeBitCodes {
  static constexpr SlabLayout kLayout = kIq2Xxs;
  static constexpr int kMagnitude = 9;
  HWY_INLINE FormatIq1S() : ThreeBitCodes(kIq1Table.data()) {}
};

struct FormatIq1M : ThreeBitCodes {
  static constexpr SlabLayout kLayout = kIq2Xs;
  static constexpr int kColumnsPerSum = 8;
  static constexpr int kMagnitude = 9;
  HWY_INLINE FormatIq1M() : ThreeBitCodes(kIq1Table.data()) {}
};

struct FormatTernary : OffsetOf128 {
  static constexpr SlabLayout kLayout = kTernary;
  static constexpr int kFactor = 1;
  static constexpr int kMagnitude = 2;
  VU8 table;
  HWY_INLINE FormatTernary() : table(LoadTable(kTernaryTable.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return Lookup(table, TwoBits<k, 0>(planes, row));
  }
};

// d * (1/2 + s) / 2 = d * (1 + 2 s) / 4.
struct FormatIq3Xxs : OffsetOf128 {
  static constexpr SlabLayout kLayout = kIq3;
  static constexpr int kFactor = 4;
  static constexpr int kMagnitude = 62;
  VU8 table;
  HWY_INLINE FormatIq3Xxs() : table(LoadTable(kIq3XxsTable.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return Lookup(table, FourBits<k>(planes, row));
  }
};

struct FormatIq3S : OffsetOf128 {
  static constexpr SlabLayout kLayout = kIq3;
  static constexpr int kFactor = 1;
  static constexpr int kMagnitude = 15;
  VU8 table;
  HWY_INLINE FormatIq3S() : table(LoadTable(kIq3STable.data())) {}
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return Lookup(table, FourBits<k>(planes, row));
  }
};

StripFunctions Iq4Xs() { return SuperBlockStrips<FormatIq4Xs>(); }
StripFunctions Iq2Xxs() { return SuperBlockStrips<FormatIq2Xxs>(); }
StripFunctions Iq2Xs() { return SuperBlockStrips<FormatIq2Xs>(); }
StripFunctions Iq3Xxs() { return SuperBlockStrips<FormatIq3Xxs>(); }
StripFunctions Iq3S() { return SuperBlockStrips<FormatIq3S>(); }
StripFunctions Iq1S() { return SuperBlockStrips<FormatIq1S>(); }
StripFunctions Iq1M() { return SuperBlockStrips<FormatIq1M>(); }
StripFunctions Ternary() { return SuperBlockStrips<FormatTernary>(); }

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

StripFunctions Iq4XsStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq4Xs)(); }
StripFunctions Iq2XxsStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq2Xxs)(); }
StripFunctions Iq2XsStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq2Xs)(); }
StripFunctions Iq3XxsStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq3Xxs)(); }
StripFunctions Iq3SStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq3S)(); }
StripFunctions Iq1SStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq1S)(); }
StripFunctions Iq1MStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Iq1M)(); }
StripFunctions TernaryStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Ternary)(); }

}  // namespace kernels
#endif  // HWY_ONCE
