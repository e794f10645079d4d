// Packing of IQ4_XS and IQ2_XXS.
#include <ggml.h>

#include "kernels/pack.h"

namespace kernels {
namespace {

struct BlockIq4Xs {
  std::uint16_t d;
  std::uint16_t scales_high;
  std::uint8_t scales_low[4];
  std::uint8_t qs[128];
};
// A unit of 32 columns is two words: four indices of 8 magnitudes, then four times 7 signs and the
// scale. An eighth sign makes the number of minuses even.
struct BlockIq2Xxs {
  std::uint16_t d;
  std::uint16_t qs[32];
};
static_assert(sizeof(BlockIq4Xs) == 136 && sizeof(BlockIq2Xxs) == 66);

void StoreUnitScale(const SlabLayout& layout, std::size_t unit, std::size_t row, unsigned scale,
                    std::byte* slab) {
  slab[layout.scales_offset() + unit * kStripRows + row] = static_cast<std::byte>(scale);
}

void FillIq4Xs(const BlockIq4Xs& block, std::size_t row, std::byte* slab) {
  std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    const unsigned low = (unsigned{block.scales_low[unit / 2]} >> (4 * (unit % 2))) & 15u;
    const unsigned high = (unsigned{block.scales_high} >> (2 * unit)) & 3u;
    StoreUnitScale(kIq4Xs, unit, row, (low | high << 4) - 32u, slab);
    UnitCodes codes;
    for (std::size_t i = 0; i < 4; ++i) {
      codes[i] = LoadWord(block.qs + unit * 16 + 4 * i);
      codes[i + 4] = codes[i] >> 4;
    }
    StoreFourBits(codes, slab + kIq4Xs.planes_offset() + unit * kIq4Xs.unit_bytes + 4 * row);
  }
}

// Codes of the magnitudes that each index of IQ2_XXS stands for, 8 columns in two words. ggml has
// that table inside only, so it is read off blocks that it decodes.
class Iq2Grid {
 public:
  static const Iq2Grid& Get() {
    static const Iq2Grid grid;
    return grid;
  }
  const std::array<std::uint32_t, 2>& operator[](std::size_t index) const { return words_[index]; }

 private:
  Iq2Grid() {
    const auto decode = ggml_get_type_traits(GGML_TYPE_IQ2_XXS)->to_float;
    BlockIq2Xxs block{};
    block.d = 0x4800;  // 8.0: with scale 0 decoded values are the magnitudes
    for (std::size_t index = 0; index < words_.size(); ++index) {
      block.qs[0] = static_cast<std::uint16_t>(index);
      float values[kSlabColumns];
      decode(&block, values, kSlabColumns);
      for (std::size_t i = 0; i < 8; ++i) {
        const std::uint32_t code = values[i] > 40 ? 2 : values[i] > 20 ? 1 : 0;
        words_[index][i / 4] |= code << (8 * (i % 4));
      }
    }
  }

  std::array<std::array<std::uint32_t, 2>, 256> words_{};
};

void FillIq2Xxs(const BlockIq2Xxs& block, std::size_t row, std::byte* slab) {
  const Iq2Grid& grid = Iq2Grid::Get();
  std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    std::uint32_t indices, signs;
    std::memcpy(&indices, block.qs + 4 * unit, sizeof indices);
    std::memcpy(&signs, block.qs + 4 * unit + 2, sizeof signs);
    StoreUnitScale(kIq2Xxs, unit, row, 2 * (signs >> 28) + 1, slab);
    UnitCodes codes;
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint32_t minus = (signs >> (7 * i)) & 127u;
      minus |= static_cast<std::uint32_t>(__builtin_parity(minus)) << 7;
      const auto& magnitudes = grid[(indices >> (8 * i)) & 255u];
      for (std::size_t half = 0; half < 2; ++half) {
        // Four sign bits to bit 2 of four bytes.
        const std::uint32_t four = (minus >> (4 * half)) & 15u;
        codes[2 * i + half] = magnitudes[half] | (((four * 0x00204081u) & 0x01010101u) << 2);
      }
    }
    std::byte* planes = slab + kIq2Xxs.planes_offset() + unit * kIq2Xxs.unit_bytes + 4 * row;
    StoreOneBits(codes, 2, planes);
    StoreTwoBits(codes, 0, planes + kGroupBytes);
  }
}

}  // namespace

void PackIq4Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed) {
  PackSlabs<BlockIq4Xs>(rows, num_rows, row_width, kIq4Xs.bytes(), packed, FillIq4Xs);
}

void PackIq2Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
                std::byte* packed) {
  PackSlabs<BlockIq2Xxs>(rows, num_rows, row_width, kIq2Xxs.bytes(), packed, FillIq2Xxs);
}

}  // namespace kernels
