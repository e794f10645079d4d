// Packing of the I quantisations of 256-column blocks.
//
// All but IQ4_XS hold indices into a grid, a table of magnitudes of 4 or 8 columns, and signs.
// Their weights have few magnitudes, so each gets a code of its own: the magnitude's number and the
// sign.
#include <ggml.h>

#include <vector>

#include "kernels/pack.h"

namespace kernels {
namespace {

struct BlockIq4Xs {
  std::uint16_t d;
  std::uint16_t scales_high;
  std::uint8_t scales_low[4];
  std::uint8_t qs[128];
};
// Of each unit: four indices of 8 columns, then a word of 4 x 7 signs and the scale.
struct BlockIq2Xxs {
  std::uint16_t d;
  std::uint8_t qs[64];
};
// Indices of 9 bits with 7 signs above.
struct BlockIq2Xs {
  std::uint16_t d;
  std::uint16_t qs[32];
  std::uint8_t scales[8];
};
// Indices of 10 bits, the upper 2 in qh.
struct BlockIq2S {
  std::uint16_t d;
  std::uint8_t qs[32];
  std::uint8_t signs[32];
  std::uint8_t qh[8];
  std::uint8_t scales[8];
};
// Indices of 4 columns; of each unit a word of 4 x 7 signs and the scale.
struct BlockIq3Xxs {
  std::uint16_t d;
  std::uint8_t qs[64];
  std::uint8_t signs[32];
};
// Indices of 9 bits, the upper one in qh.
struct BlockIq3S {
  std::uint16_t d;
  std::uint8_t qs[64];
  std::uint8_t qh[8];
  std::uint8_t signs[32];
  std::uint8_t scales[4];
};
static_assert(sizeof(BlockIq4Xs) == 136 && sizeof(BlockIq2Xxs) == 66 && sizeof(BlockIq2Xs) == 74 &&
              sizeof(BlockIq2S) == 82 && sizeof(BlockIq3Xxs) == 98 && sizeof(BlockIq3S) == 110);

constexpr std::uint16_t kHalfOne = 0x3c00;
constexpr std::uint16_t kHalfFour = 0x4400;
constexpr std::uint16_t kHalfEight = 0x4800;

// A grid as codes: word i * columns / 4 holds those of the first columns of index i. ggml keeps its
// tables to itself, so they are read off blocks that it decodes: `put(block, index)` sets the index
// of the block's first columns, signs and scales are 0, and `d` makes decoded values magnitudes.
// Magnitudes divided by `step` are their numbers.
template <class Block, class Put>
std::vector<std::uint32_t> ReadGrid(ggml_type type, std::size_t size, std::size_t columns,
                                    std::uint16_t d, unsigned step, Put put) {
  const auto decode = ggml_get_type_traits(type)->to_float;
  std::vector<std::uint32_t> words(size * columns / 4);
  for (std::size_t index = 0; index < size; ++index) {
    Block block{};
    block.d = d;
    put(block, index);
    float values[kSlabColumns];
    decode(&block, values, kSlabColumns);
    for (std::size_t i = 0; i < columns; ++i) {
      words[(index * columns + i) / 4] |= (static_cast<unsigned>(values[i]) / step)
                                          << (8 * (i % 4));
    }
  }
  return words;
}

const std::uint32_t* Iq2XxsGrid() {
  static const auto grid = ReadGrid<BlockIq2Xxs>(
      GGML_TYPE_IQ2_XXS, 256, 8, kHalfEight, 20,
      [](auto& block, std::size_t index) { block.qs[0] = static_cast<std::uint8_t>(index); });
  return grid.data();
}

const std::uint32_t* Iq2XsGrid() {
  static const auto grid = ReadGrid<BlockIq2Xs>(
      GGML_TYPE_IQ2_XS, 512, 8, kHalfEight, 20,
      [](auto& block, std::size_t index) { block.qs[0] = static_cast<std::uint16_t>(index); });
  return grid.data();
}

const std::uint32_t* Iq2SGrid() {
  static const auto grid = ReadGrid<BlockIq2S>(
      GGML_TYPE_IQ2_S, 1024, 8, kHalfEight, 20, [](auto& block, std::size_t index) {
        block.qs[0] = static_cast<std::uint8_t>(index);
        block.qh[0] = static_cast<std::uint8_t>(index >> 8);
      });
  return grid.data();
}

const std::uint32_t* Iq3XxsGrid() {
  static const auto grid = ReadGrid<BlockIq3Xxs>(
      GGML_TYPE_IQ3_XXS, 256, 4, kHalfFour, 8,
      [](auto& block, std::size_t index) { block.qs[0] = static_cast<std::uint8_t>(index); });
  return grid.data();
}

const std::uint32_t* Iq3SGrid() {
  static const auto grid =
      ReadGrid<BlockIq3S>(GGML_TYPE_IQ3_S, 512, 4, kHalfOne, 2, [](auto& block, std::size_t index) {
        block.qs[0] = static_cast<std::uint8_t>(index);
        block.qh[0] = static_cast<std::uint8_t>(index >> 8);
      });
  return grid.data();
}

// Eight signs of seven: the eighth makes the number of minuses even.
std::uint32_t EvenSigns(std::uint32_t seven) {
  seven &= 127u;
  std::uint32_t parity = seven ^ (seven >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1u) << 7;
}

// Four sign bits, from `first` on, as bit `to` of four codes.
std::uint32_t SignCodes(std::uint32_t signs, std::size_t first, int to) {
  return ((((signs >> first) & 15u) * 0x00204081u) & 0x01010101u) << to;
}

void StoreScale(const SlabLayout& layout, std::size_t index, std::size_t row, unsigned scale,
                std::byte* slab) {
  slab[layout.scales_offset() + index * kStripRows + row] = static_cast<std::byte>(scale);
}

std::byte* PlanesOf(const SlabLayout& layout, std::size_t unit, std::size_t row, std::byte* slab) {
  return slab + layout.planes_offset() + unit * layout.unit_bytes + 4 * row;
}

// A unit of IQ2 types: `index(i)` and `signs(i)` are of columns 8 i...
template <class Index, class Signs>
void StoreEights(const std::uint32_t* grid, Index index, Signs signs, std::byte* planes) {
  UnitCodes codes;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint32_t* magnitudes = grid + 2 * index(i);
    const std::uint32_t eight = signs(i);
    codes[2 * i] = magnitudes[0] | SignCodes(eight, 0, 2);
    codes[2 * i + 1] = magnitudes[1] | SignCodes(eight, 4, 2);
  }
  StoreOneBits(codes, 2, planes);
  StoreTwoBits(codes, 0, planes + kGroupBytes);
}

// A unit of IQ3 types: `index(i)` is of columns 4 i.., `signs(i)` of columns 8 i...
template <class Index, class Signs>
void StoreFours(const std::uint32_t* grid, Index index, Signs signs, std::byte* planes) {
  UnitCodes codes;
  for (std::size_t i = 0; i < 8; ++i) {
    codes[i] = grid[index(i)] | SignCodes(signs(i / 2), 4 * (i % 2), 3);
  }
  StoreFourBits(codes, planes);
}

void FillIq4Xs(const BlockIq4Xs& block, std::size_t row, std::byte* slab) {
  std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    const unsigned low = (unsigned{block.scales_low[unit / 2]} >> (4 * (unit % 2))) & 15u;
    const unsigned high = (unsigned{block.scales_high} >> (2 * unit)) & 3u;
    StoreScale(kIq4Xs, unit, row, (low | high << 4) - 32u, slab);
    std::byte* plane = PlanesOf(kIq4Xs, unit, row, slab);
    StoreFourBitHalves<2>(block.qs + unit * 16, plane, plane + 2 * kGroupBytes);
  }
}

// Scales s of IQ2 and IQ3 types count as 1 + 2 s.
unsigned OddScale(unsigned four_bits) { return 2 * (four_bits & 15u) + 1; }

}  // namespace

void PackIq4Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed) {
  PackSlabs<BlockIq4Xs>(rows, num_rows, row_width, kIq4Xs.bytes(), packed, FillIq4Xs);
}

void PackIq2Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
                std::byte* packed) {
  const auto fill = [grid = Iq2XxsGrid()](const BlockIq2Xxs& block, std::size_t row,
                                          std::byte* slab) {
    std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const std::uint8_t* indices = block.qs + 8 * unit;
      const std::uint32_t word = LoadWord(indices + 4);
      StoreScale(kIq2Xxs, unit, row, OddScale(word >> 28), slab);
      StoreEights(
          grid, [&](std::size_t i) { return std::size_t{indices[i]}; },
          [&](std::size_t i) { return EvenSigns(word >> (7 * i)); },
          PlanesOf(kIq2Xxs, unit, row, slab));
    }
  };
  PackSlabs<BlockIq2Xxs>(rows, num_rows, row_width, kIq2Xxs.bytes(), packed, fill);
}

void PackIq2Xs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed) {
  const auto fill = [grid = Iq2XsGrid()](const BlockIq2Xs& block, std::size_t row,
                                         std::byte* slab) {
    std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const std::uint16_t* qs = block.qs + 4 * unit;
      StoreScale(kIq2Xs, 2 * unit, row, OddScale(block.scales[unit]), slab);
      StoreScale(kIq2Xs, 2 * unit + 1, row, OddScale(unsigned{block.scales[unit]} >> 4), slab);
      StoreEights(
          grid, [&](std::size_t i) { return std::size_t{qs[i]} & 511u; },
          [&](std::size_t i) { return EvenSigns(std::uint32_t{qs[i]} >> 9); },
          PlanesOf(kIq2Xs, unit, row, slab));
    }
  };
  PackSlabs<BlockIq2Xs>(rows, num_rows, row_width, kIq2Xs.bytes(), packed, fill);
}

void PackIq2S(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
              std::byte* packed) {
  const auto fill = [grid = Iq2SGrid()](const BlockIq2S& block, std::size_t row, std::byte* slab) {
    std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const unsigned high = block.qh[unit];
      StoreScale(kIq2Xs, 2 * unit, row, OddScale(block.scales[unit]), slab);
      StoreScale(kIq2Xs, 2 * unit + 1, row, OddScale(unsigned{block.scales[unit]} >> 4), slab);
      StoreEights(
          grid,
          [&](std::size_t i) {
            return std::size_t{block.qs[4 * unit + i]} | ((high >> (2 * i)) & 3u) << 8;
          },
          [&](std::size_t i) { return std::uint32_t{block.signs[4 * unit + i]}; },
          PlanesOf(kIq2Xs, unit, row, slab));
    }
  };
  PackSlabs<BlockIq2S>(rows, num_rows, row_width, kIq2Xs.bytes(), packed, fill);
}

void PackIq3Xxs(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
                std::byte* packed) {
  const auto fill = [grid = Iq3XxsGrid()](const BlockIq3Xxs& block, std::size_t row,
                                          std::byte* slab) {
    std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const std::uint32_t word = LoadWord(block.signs + 4 * unit);
      StoreScale(kIq3, unit, row, OddScale(word >> 28), slab);
      StoreFours(
          grid, [&](std::size_t i) { return std::size_t{block.qs[8 * unit + i]}; },
          [&](std::size_t i) { return EvenSigns(word >> (7 * i)); },
          PlanesOf(kIq3, unit, row, slab));
    }
  };
  PackSlabs<BlockIq3Xxs>(rows, num_rows, row_width, kIq3.bytes(), packed, fill);
}

void PackIq3S(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
              std::byte* packed) {
  const auto fill = [grid = Iq3SGrid()](const BlockIq3S& block, std::size_t row, std::byte* slab) {
    std::memcpy(slab + 2 * row, &block.d, sizeof block.d);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const unsigned high = block.qh[unit];
      StoreScale(kIq3, unit, row, OddScale(unsigned{block.scales[unit / 2]} >> (4 * (unit % 2))),
                 slab);
      StoreFours(
          grid,
          [&](std::size_t i) {
            return std::size_t{block.qs[8 * unit + i]} | ((high >> i) & 1u) << 8;
          },
          [&](std::size_t i) { return std::uint32_t{block.signs[4 * unit + i]}; },
          PlanesOf(kIq3, unit, row, slab));
    }
  };
  PackSlabs<BlockIq3S>(rows, num_rows, row_width, kIq3.bytes(), packed, fill);
}

}  // namespace kernels
