// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: products.
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/k_quants.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/super_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

struct NoOffset {
  static constexpr int kSumsWord = -1;
  static constexpr int kColumnsPerSum = 32;
  static constexpr int kFactor = 1;
};

struct FormatQ4K : NoOffset {
  static constexpr SlabLayout kLayout = kQ4K;
  static constexpr int kMaxWeight = 15;
  static constexpr int kMagnitude = 15;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return FourBits<k>(planes, row);
  }
};

struct FormatQ5K : NoOffset {
  static constexpr SlabLayout kLayout = kQ5K;
  static constexpr int kMaxWeight = 31;
  static constexpr int kMagnitude = 31;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return hn::Or(FourBits<k>(planes + kGroupBytes, row), OneBit<k, 4>(planes, row));
  }
};

struct FormatQ2K : NoOffset {
  static constexpr SlabLayout kLayout = kQ2K;
  static constexpr int kMaxWeight = 3;
  static constexpr int kMagnitude = 3;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return TwoBits<k, 0>(planes, row);
  }
};

struct FormatQ6K {
  static constexpr SlabLayout kLayout = kQ6K;
  static constexpr int kMaxWeight = 63;
  static constexpr int kSumsWord = block256::kMinus32Sum8;
  static constexpr int kColumnsPerSum = 8;
  static constexpr int kFactor = 1;
  static constexpr int kMagnitude = 32;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return hn::Or(FourBits<k>(planes + 2 * kGroupBytes, row), TwoBits<k, 4>(planes, row));
  }
};

// Eight times the weights, so that the offset of 4 becomes the 32 that Q6_K has.
struct FormatQ3K {
  static constexpr SlabLayout kLayout = kQ3K;
  static constexpr int kMaxWeight = 56;
  static constexpr int kSumsWord = block256::kMinus32Sum8;
  static constexpr int kColumnsPerSum = 8;
  static constexpr int kFactor = 8;
  static constexpr int kMagnitude = 32;
  template <int k>
  HWY_INLINE VU8 Weights(const std::uint8_t* planes, std::size_t row) const {
    return hn::Or(TwoBits<k, 3>(planes + kGroupBytes, row), OneBit<k, 5>(planes, row));
  }
};

StripFunctions Q4K() { return SuperBlockStrips<FormatQ4K>(); }
StripFunctions Q5K() { return SuperBlockStrips<FormatQ5K>(); }
StripFunctions Q6K() { return SuperBlockStrips<FormatQ6K>(); }
StripFunctions Q3K() { return SuperBlockStrips<FormatQ3K>(); }
StripFunctions Q2K() { return SuperBlockStrips<FormatQ2K>(); }

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

StripFunctions Q4KStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Q4K)(); }
StripFunctions Q5KStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Q5K)(); }
StripFunctions Q6KStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Q6K)(); }
StripFunctions Q3KStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Q3K)(); }
StripFunctions Q2KStrips(InstructionSet set) { return ES_KERNELS_FOR(set, Q2K)(); }

}  // namespace kernels
#endif  // HWY_ONCE
