// F32, F16, BF16: packing. Rows become columns.
#include "kernels/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_floats.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

void Words(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
           std::size_t row_width, std::byte* packed) {
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    const FileRows file(rows, num_rows, row, row_bytes);
    std::size_t i = 0;
    for (; i + 8 <= row_width; i += 8) {
      VU32 words[8];
      file.Words(4 * i, words);
      for (std::size_t k = 0; k < 8; ++k) {
        Place{packed + (i + k) * kStripRows * 4, row}.StoreWords(words[k]);
      }
    }
    for (; i < row_width; ++i) {
      Place{packed + i * kStripRows * 4, row}.StoreWords(file.Word(4 * i));
    }
  }
}

void Halves(const std::byte* rows, std::size_t num_rows, std::size_t row_bytes,
            std::size_t row_width, std::byte* packed) {
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    const FileRows file(rows, num_rows, row, row_bytes);
    const Place place{packed, row};
    const auto store_pair = [place](std::size_t column, VU32 pair) {
      place.At(column * kStripRows * 2).StoreHalves(Bits(pair, 0xffff));
      place.At((column + 1) * kStripRows * 2).StoreHalves(hn::ShiftRight<16>(pair));
    };
    std::size_t i = 0;
    for (; i + 16 <= row_width; i += 16) {
      VU32 pairs[8];
      file.Words(2 * i, pairs);
      for (std::size_t k = 0; k < 8; ++k) store_pair(i + 2 * k, pairs[k]);
    }
    for (; i + 2 <= row_width; i += 2) store_pair(i, file.Word(2 * i));
    if (i < row_width) place.At(i * kStripRows * 2).StoreHalves(file.Half(2 * i));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

PackStripFunction PackWords(InstructionSet set) { return ES_KERNELS_FOR(set, Words); }
PackStripFunction PackHalves(InstructionSet set) { return ES_KERNELS_FOR(set, Halves); }

}  // namespace kernels
#endif  // HWY_ONCE
