// Packing of the types of 32-column blocks.
#include <algorithm>

#include "kernels/pack.h"

namespace kernels {
namespace {

struct BlockQ80 {
  std::uint16_t d;
  std::int8_t qs[32];
};
// Q4_0 and IQ4_NL: column i and column i + 16 share a byte.
struct BlockNibbles {
  std::uint16_t d;
  std::uint8_t qs[16];
};
struct BlockMxfp4 {
  std::uint8_t exponent;
  std::uint8_t qs[16];
};
static_assert(sizeof(BlockQ80) == 34 && sizeof(BlockNibbles) == 18 && sizeof(BlockMxfp4) == 17);

// `fill(block, row's scale, row's word of the plane)` packs one block of one row.
template <class Block, class Fill>
void PackBlocks(const BlockLayout& layout, const std::byte* rows, std::size_t num_rows,
                std::size_t row_width, std::byte* packed, Fill fill) {
  const std::size_t num_blocks = row_width / kUnitColumns;
  std::memset(packed, 0, layout.strip_bytes(row_width));
  for (std::size_t first = 0; first < num_blocks; first += kUnits) {
    const std::size_t blocks = std::min(kUnits, num_blocks - first);
    std::byte* planes = packed + layout.scales_bytes(blocks);
    for (std::size_t row = 0; row < num_rows; ++row) {
      for (std::size_t i = 0; i < blocks; ++i) {
        Block block;
        std::memcpy(&block, rows + (row * num_blocks + first + i) * sizeof block, sizeof block);
        fill(block, packed + (i * kStripRows + row) * layout.scale_bytes,
             planes + i * layout.plane_bytes + 4 * row);
      }
    }
    packed += layout.slab_bytes(blocks);
  }
}

void StoreNibbles(const std::uint8_t* qs, std::byte* plane) {
  StoreFourBitHalves<2>(qs, plane, plane + 2 * kGroupBytes);
}

void FillNibbles(const BlockNibbles& block, std::byte* scale, std::byte* plane) {
  std::memcpy(scale, &block.d, sizeof block.d);
  StoreNibbles(block.qs, plane);
}

void FillMxfp4(const BlockMxfp4& block, std::byte* scale, std::byte* plane) {
  // Half of 2^(exponent - 127), as the upper bits of a float; what has none is 0.
  *scale = static_cast<std::byte>(block.exponent > 0 ? block.exponent - 1 : 0);
  StoreNibbles(block.qs, plane);
}

void FillQ80(const BlockQ80& block, std::byte* scale, std::byte* plane) {
  std::memcpy(scale, &block.d, sizeof block.d);
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint32_t word;
    std::memcpy(&word, block.qs + 4 * i, sizeof word);
    StoreWord(plane + i * kGroupBytes, word ^ 0x80808080u);
  }
}

}  // namespace

void PackQ80(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackBlocks<BlockQ80>(kQ80, rows, num_rows, row_width, packed, FillQ80);
}

void PackQ40(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
             std::byte* packed) {
  PackBlocks<BlockNibbles>(kQ40, rows, num_rows, row_width, packed, FillNibbles);
}

void PackIq4Nl(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed) {
  PackBlocks<BlockNibbles>(kIq4Nl, rows, num_rows, row_width, packed, FillNibbles);
}

void PackMxfp4(const std::byte* rows, std::size_t num_rows, std::size_t row_width,
               std::byte* packed) {
  PackBlocks<BlockMxfp4>(kMxfp4, rows, num_rows, row_width, packed, FillMxfp4);
}

}  // namespace kernels
