// Packing of the K quantisations: 256 columns a block, sub-blocks of 32 or 16 with scales.
#include <algorithm>

#include "kernels/pack.h"

namespace kernels {
namespace {

struct BlockQ4K {
  std::uint16_t d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[128];
};
struct BlockQ5K {
  std::uint16_t d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];
  std::uint8_t qs[128];
};
struct BlockQ6K {
  std::uint8_t ql[128];
  std::uint8_t qh[64];
  std::int8_t scales[16];
  std::uint16_t d;
};
struct BlockQ3K {
  std::uint8_t hmask[32];
  std::uint8_t qs[64];
  std::uint8_t scales[12];
  std::uint16_t d;
};
struct BlockQ2K {
  std::uint8_t scales[16];
  std::uint8_t qs[64];
  std::uint16_t d, dmin;
};
static_assert(sizeof(BlockQ4K) == 144 && sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210 &&
              sizeof(BlockQ3K) == 110 && sizeof(BlockQ2K) == 84);

void StoreHalves(std::uint16_t d, std::uint16_t dmin, std::size_t row, std::byte* slab) {
  std::memcpy(slab + 2 * row, &d, 2);
  std::memcpy(slab + 2 * (kStripRows + row), &dmin, 2);
}

void StoreScale(const SlabLayout& layout, std::size_t index, std::size_t row, unsigned scale,
                std::byte* slab) {
  slab[layout.scales_offset() + index * kStripRows + row] = static_cast<std::byte>(scale);
}

// Mins of sub-blocks 2i and 2i + 1 of a row lie beside each other.
void StoreMin(const SlabLayout& layout, std::size_t index, std::size_t row, unsigned min,
              std::byte* slab) {
  slab[layout.mins_offset() + index / 2 * 2 * kStripRows + 2 * row + index % 2] =
      static_cast<std::byte>(min);
}

// The 6-bit scales and mins of Q4_K and Q5_K.
void StoreScalesAndMins(const SlabLayout& layout, const std::uint8_t* packed, std::size_t row,
                        std::byte* slab) {
  for (std::size_t i = 0; i < 4; ++i) {
    StoreScale(layout, i, row, packed[i] & 63u, slab);
    StoreMin(layout, i, row, packed[i + 4] & 63u, slab);
    StoreScale(layout, i + 4, row, (packed[i + 8] & 15u) | ((packed[i] >> 6) << 4), slab);
    StoreMin(layout, i + 4, row,
             (static_cast<unsigned>(packed[i + 8]) >> 4) | ((packed[i + 4] >> 6) << 4), slab);
  }
}

std::byte* PlanesOf(const SlabLayout& layout, std::size_t unit, std::size_t row, std::byte* slab) {
  return slab + layout.planes_offset() + unit * layout.unit_bytes + 4 * row;
}

void FillQ4K(const BlockQ4K& block, std::size_t row, std::byte* slab) {
  StoreHalves(block.d, block.dmin, row, slab);
  StoreScalesAndMins(kQ4K, block.scales, row, slab);
  for (std::size_t unit = 0; unit < kUnits; unit += 2) {
    StoreFourBitHalves<4>(block.qs + 16 * unit, PlanesOf(kQ4K, unit, row, slab),
                          PlanesOf(kQ4K, unit + 1, row, slab));
  }
}

void FillQ5K(const BlockQ5K& block, std::size_t row, std::byte* slab) {
  StoreHalves(block.d, block.dmin, row, slab);
  StoreScalesAndMins(kQ5K, block.scales, row, slab);
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    UnitCodes high;
    for (std::size_t i = 0; i < 8; ++i) high[i] = LoadWord(block.qh + 4 * i) >> unit;
    StoreOneBits(high, 0, PlanesOf(kQ5K, unit, row, slab));
  }
  for (std::size_t unit = 0; unit < kUnits; unit += 2) {
    StoreFourBitHalves<4>(block.qs + 16 * unit, PlanesOf(kQ5K, unit, row, slab) + kGroupBytes,
                          PlanesOf(kQ5K, unit + 1, row, slab) + kGroupBytes);
  }
}

void FillQ6K(const BlockQ6K& block, std::size_t row, std::byte* slab) {
  StoreHalves(block.d, 0, row, slab);
  for (std::size_t i = 0; i < 16; ++i) {
    StoreScale(kQ6K, i, row, static_cast<std::uint8_t>(block.scales[i]), slab);
  }
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    const std::size_t half = unit / 4;  // 128 columns
    const std::size_t part = unit % 4;
    UnitCodes high;
    for (std::size_t i = 0; i < 8; ++i) {
      high[i] = LoadWord(block.qh + half * 32 + 4 * i) >> (2 * part);
    }
    std::byte* planes = PlanesOf(kQ6K, unit, row, slab);
    StoreTwoBits(high, 0, planes);
    if (part >= 2) continue;
    StoreFourBitHalves<4>(block.ql + half * 64 + part * 32, planes + 2 * kGroupBytes,
                          planes + 2 * (kQ6K.unit_bytes + kGroupBytes));
  }
}

void FillQ3K(const BlockQ3K& block, std::size_t row, std::byte* slab) {
  StoreHalves(block.d, 0, row, slab);
  for (std::size_t i = 0; i < 16; ++i) {
    const unsigned low = i < 8 ? block.scales[i] & 15u : unsigned{block.scales[i - 8]} >> 4;
    const unsigned high = (unsigned{block.scales[8 + i % 4]} >> (2 * (i / 4))) & 3u;
    StoreScale(kQ3K, i, row, (low | high << 4) - 32u, slab);
  }
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    UnitCodes low, high;
    for (std::size_t i = 0; i < 8; ++i) {
      low[i] = LoadWord(block.qs + unit / 4 * 32 + 4 * i) >> (2 * (unit % 4));
      high[i] = LoadWord(block.hmask + 4 * i) >> unit;
    }
    std::byte* planes = PlanesOf(kQ3K, unit, row, slab);
    StoreOneBits(high, 0, planes);
    StoreTwoBits(low, 0, planes + kGroupBytes);
  }
}

void FillQ2K(const BlockQ2K& block, std::size_t row, std::byte* slab) {
  StoreHalves(block.d, block.dmin, row, slab);
  for (std::size_t i = 0; i < 16; ++i) {
    StoreScale(kQ2K, i, row, block.scales[i] & 15u, slab);
    StoreMin(kQ2K, i, row, unsigned{block.scales[i]} >> 4, slab);
  }
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    UnitCodes codes;
    for (std::size_t i = 0; i < 8; ++i) {
      codes[i] = LoadWord(block.qs + unit / 4 * 32 + 4 * i) >> (2 * (unit % 4));
    }
    StoreTwoBits(codes, 0, PlanesOf(kQ2K, unit, row, slab));
  }
}

}  // namespace

void PackQ4K(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackSlabs<BlockQ4K>(rows, num_rows, row_width, kQ4K.bytes(), packed, FillQ4K);
}

void PackQ5K(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackSlabs<BlockQ5K>(rows, num_rows, row_width, kQ5K.bytes(), packed, FillQ5K);
}

void PackQ6K(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackSlabs<BlockQ6K>(rows, num_rows, row_width, kQ6K.bytes(), packed, FillQ6K);
}

void PackQ3K(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackSlabs<BlockQ3K>(rows, num_rows, row_width, kQ3K.bytes(), packed, FillQ3K);
}

void PackQ2K(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackSlabs<BlockQ2K>(rows, num_rows, row_width, kQ2K.bytes(), packed, FillQ2K);
}

}  // namespace kernels
