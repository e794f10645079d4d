// Vector pieces of packing, compiled once an instruction set. Internal to this folder.
//
// A strip is packed for kLanes rows at a time: a vector of words holds the same four bytes of each
// of these rows' blocks, and what becomes of them are whole vectors of the packed layout.
#if defined(ES_KERNELS_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ES_KERNELS_PACK_INL_H
#undef ES_KERNELS_PACK_INL_H
#else
#define ES_KERNELS_PACK_INL_H
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

using U32 = hn::RebindToUnsigned<I32>;
using VU32 = hn::Vec<U32>;

HWY_INLINE VU32 Bits(VU32 words, std::uint32_t mask) {
  return hn::And(words, hn::Set(U32(), mask));
}
// Byte i of each word.
template <int i>
HWY_INLINE VU32 ByteOf(VU32 words) {
  return Bits(hn::ShiftRight<8 * i>(words), 0xff);
}
// Shifts by a number that the compiler need not know.
HWY_INLINE VU32 Right(VU32 words, std::size_t bits) {
  return hn::ShiftRightSame(words, static_cast<int>(bits));
}
HWY_INLINE VU32 Left(VU32 words, std::size_t bits) {
  return hn::ShiftLeftSame(words, static_cast<int>(bits));
}

// Words of a table at each lane's index.
HWY_INLINE VU32 LookupWords(const std::uint32_t* table, VU32 indices) {
  return hn::GatherIndex(U32(), table, hn::BitCast(I32(), indices));
}

// Pairs of words of a table at each lane's index.
HWY_INLINE void LookupPairs(const std::uint32_t* table, VU32 indices, VU32& first, VU32& second) {
#if HWY_TARGET == HWY_AVX3_DL
  // Gathering 64 bits takes no longer than gathering 32.
  const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(indices.raw), table, 8);
  const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(indices.raw, 1), table, 8);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  first = VU32{_mm512_permutex2var_epi32(low, even, high)};
  second = VU32{_mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high)};
#else
  const VU32 places = hn::ShiftLeft<1>(indices);
  first = LookupWords(table, places);
  second = LookupWords(table + 1, places);
#endif
}

// kLanes rows of the file's layout; those from `num_rows` of the strip on are absent and read as 0.
class FileRows {
 public:
  FileRows(const std::byte* strip, std::size_t num_rows, std::size_t row, std::size_t row_bytes)
      : bytes_(reinterpret_cast<const std::uint8_t*>(strip)) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const bool present = row + i < num_rows;
      offsets_[i] = present ? static_cast<std::int32_t>((row + i) * row_bytes) : 0;
      present_[i] = present ? ~std::uint32_t{0} : 0;
    }
  }

  // The same rows, `bytes` further on.
  FileRows At(std::size_t bytes) const {
    FileRows rows = *this;
    rows.bytes_ += bytes;
    return rows;
  }

  // Bytes [offset, offset + 4) of each row.
  HWY_INLINE VU32 Word(std::size_t offset) const {
    const std::uint8_t* first = bytes_ + offset;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
    const auto words = hn::GatherOffset(U32(), reinterpret_cast<const std::uint32_t*>(first),
                                        hn::LoadU(I32(), offsets_));
#else
    std::uint32_t lanes[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(&lanes[i], first + offsets_[i], 4);
    const auto words = hn::LoadU(U32(), lanes);
#endif
    return hn::And(words, hn::LoadU(U32(), present_));
  }

  // Words at offset, offset + 4 and so on: 4 or 8 of them.
  template <std::size_t n>
  HWY_INLINE void Words(std::size_t offset, VU32 (&words)[n]) const {
    static_assert(n == 4 || n == 8);
#if HWY_TARGET == HWY_AVX3_DL
    // Loads of whole rows, transposed, take a quarter of the time of gathering.
    __m512i low[4], high[4];  // rows 0 to 7 and 8 to 15, two or four in a register
    for (std::size_t i = 0; i < 4; ++i) {
      low[i] = LoadRows<n>(offset, i);
      high[i] = LoadRows<n>(offset, i + 8);
    }
    TransposeQuads(low);
    TransposeQuads(high);
    for (std::size_t i = 0; i < 4; ++i) {
      words[i] = VU32{_mm512_shuffle_i32x4(low[i], high[i], 0x88)};
      if constexpr (n == 8) words[i + 4] = VU32{_mm512_shuffle_i32x4(low[i], high[i], 0xdd)};
    }
    const auto present = hn::LoadU(U32(), present_);
    for (VU32& word : words) word = hn::And(word, present);
#else
    for (std::size_t i = 0; i < n; ++i) words[i] = Word(offset + 4 * i);
#endif
  }

  // Bytes [offset, offset + 2) of each row, where no word may be read.
  VU32 Half(std::size_t offset) const {
    std::uint32_t lanes[kLanes] = {};
    for (std::size_t i = 0; i < kLanes; ++i)
      std::memcpy(&lanes[i], bytes_ + offset + offsets_[i], 2);
    return hn::And(hn::LoadU(U32(), lanes), hn::LoadU(U32(), present_));
  }

 private:
#if HWY_TARGET == HWY_AVX3_DL
  // n words each of rows i and i + 4, in the lower and the upper half.
  template <std::size_t n>
  HWY_INLINE __m512i LoadRows(std::size_t offset, std::size_t i) const {
    const auto* first = reinterpret_cast<const __m128i*>(bytes_ + offset + offsets_[i]);
    const auto* second = reinterpret_cast<const __m128i*>(bytes_ + offset + offsets_[i + 4]);
    __m256i halves[2];
    if constexpr (n == 8) {
      halves[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
      halves[1] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
    } else {
      halves[0] = _mm256_castsi128_si256(_mm_loadu_si128(first));
      halves[1] = _mm256_castsi128_si256(_mm_loadu_si128(second));
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1);
  }

  // Of each 128 bits: word w of registers 0 to 3 becomes word 0 to 3 of register w.
  static HWY_INLINE void TransposeQuads(__m512i (&rows)[4]) {
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]);
    const __m512i b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    rows[0] = _mm512_unpacklo_epi64(a, c);
    rows[1] = _mm512_unpackhi_epi64(a, c);
    rows[2] = _mm512_unpacklo_epi64(b, d);
    rows[3] = _mm512_unpackhi_epi64(b, d);
  }
#endif

  const std::uint8_t* bytes_;
  std::int32_t offsets_[kLanes];
  std::uint32_t present_[kLanes];
};

// A place in a packed strip, seen from kLanes of its rows.
struct Place {
  std::byte* bytes;
  std::size_t row;

  Place At(std::size_t offset) const { return {bytes + offset, row}; }

  HWY_INLINE void StoreWords(VU32 words) const {
    hn::StoreU(words, U32(), reinterpret_cast<std::uint32_t*>(bytes + 4 * row));
  }
  // The lower 16 bits of each.
  HWY_INLINE void StoreHalves(VU32 halves) const {
    const hn::Rebind<std::uint16_t, U32> d16;
    hn::StoreU(hn::TruncateTo(d16, halves), d16, reinterpret_cast<std::uint16_t*>(bytes + 2 * row));
  }
  // The lower 8 bits of each.
  HWY_INLINE void StoreBytes(VU32 values) const {
    const hn::Rebind<std::uint8_t, U32> d8;
    hn::StoreU(hn::TruncateTo(d8, values), d8, reinterpret_cast<std::uint8_t*>(bytes + row));
  }
};

// Eight groups of a unit: each word is 4 weights of a byte, first column lowest.
struct UnitCodes {
  VU32 group[8];

  // From the 32 bytes at `offset`.
  static HWY_INLINE UnitCodes Of(const FileRows& rows, std::size_t offset) {
    UnitCodes codes;
    rows.Words(offset, codes.group);
    return codes;
  }
};

// Each writes a plane, of bits of the codes from `shift` on.
HWY_INLINE void StoreFourBits(const UnitCodes& codes, Place plane) {
  for (std::size_t v = 0; v < 4; ++v) {
    const VU32 low = Bits(codes.group[2 * v], 0x0f0f0f0f);
    const VU32 high = Bits(codes.group[2 * v + 1], 0x0f0f0f0f);
    plane.At(v * kGroupBytes).StoreWords(hn::Or(low, hn::ShiftLeft<4>(high)));
  }
}
HWY_INLINE void StoreTwoBits(const UnitCodes& codes, std::size_t shift, Place plane) {
  for (std::size_t v = 0; v < 2; ++v) {
    VU32 word = hn::Zero(U32());
    for (std::size_t i = 0; i < 4; ++i) {
      const VU32 bits = Bits(Right(codes.group[4 * v + i], shift), 0x03030303);
      word = hn::Or(word, Left(bits, 2 * i));
    }
    plane.At(v * kGroupBytes).StoreWords(word);
  }
}
HWY_INLINE void StoreOneBits(const UnitCodes& codes, std::size_t shift, Place plane) {
  VU32 word = hn::Zero(U32());
  for (std::size_t i = 0; i < 8; ++i) {
    word = hn::Or(word, Left(Bits(Right(codes.group[i], shift), 0x01010101), i));
  }
  plane.StoreWords(word);
}

// The lower and the upper halves of two groups' bytes, as one vector each.
HWY_INLINE void StoreHalvesOfTwo(VU32 first, VU32 second, Place low, Place high) {
  low.StoreWords(hn::Or(Bits(first, 0x0f0f0f0f), hn::ShiftLeft<4>(Bits(second, 0x0f0f0f0f))));
  high.StoreWords(hn::Or(Bits(hn::ShiftRight<4>(first), 0x0f0f0f0f), Bits(second, 0xf0f0f0f0)));
}
// `n` vectors (2 or 4) of either half of the 8 n bytes from `offset` on: codes that lie beside each
// other in the lower bits, and those in the upper.
template <std::size_t n>
HWY_INLINE void StoreFourBitHalves(const FileRows& rows, std::size_t offset, Place low,
                                   Place high) {
  VU32 words[2 * n];
  rows.Words(offset, words);
  for (std::size_t v = 0; v < n; ++v) {
    StoreHalvesOfTwo(words[2 * v], words[2 * v + 1], low.At(v * kGroupBytes),
                     high.At(v * kGroupBytes));
  }
}
// A unit of which column i and column i + 16 share a byte.
HWY_INLINE void StoreNibbles(const FileRows& rows, std::size_t offset, Place plane) {
  StoreFourBitHalves<2>(rows, offset, plane, plane.At(2 * kGroupBytes));
}

// Bits 0 to 3 as bit 0 of four codes.
HWY_INLINE VU32 SpreadBits(VU32 bits) {
  const VU32 four = Bits(bits, 0x0f);
  const VU32 twos = Bits(hn::Or(four, hn::ShiftLeft<14>(four)), 0x00030003);
  return Bits(hn::Or(twos, hn::ShiftLeft<7>(twos)), 0x01010101);
}
// Bits 0 to 7 as bits 0 and 1 of four codes.
HWY_INLINE VU32 SpreadPairs(VU32 bits) {
  const VU32 eight = Bits(bits, 0xff);
  const VU32 fours = Bits(hn::Or(eight, hn::ShiftLeft<12>(eight)), 0x000f000f);
  return Bits(hn::Or(fours, hn::ShiftLeft<6>(fours)), 0x03030303);
}

// A slab of a packed strip.
struct Slab : Place {
  const SlabLayout* layout;

  Slab(std::byte* p, std::size_t first_row, const SlabLayout& l)
      : Place{p, first_row}, layout(&l) {}

  // d and, where the type has them, dmin, from the halves of one word.
  HWY_INLINE void StoreScaleAndMin(VU32 word) const {
    StoreHalves(Bits(word, 0xffff));
    At(2 * kStripRows).StoreHalves(hn::ShiftRight<16>(word));
  }
  HWY_INLINE void StoreD(VU32 d) const { StoreScaleAndMin(Bits(d, 0xffff)); }
  HWY_INLINE void StoreScale(std::size_t index, VU32 scale) const {
    At(layout->scales_offset() + index * kStripRows).StoreBytes(Bits(scale, 0xff));
  }
  // Mins of sub-blocks 2i and 2i + 1 lie beside each other.
  HWY_INLINE void StoreMins(std::size_t i, VU32 even, VU32 odd) const {
    At(layout->mins_offset() + i * 2 * kStripRows).StoreHalves(hn::Or(even, hn::ShiftLeft<8>(odd)));
  }
  Place Planes(std::size_t unit) const {
    return At(layout->planes_offset() + unit * layout->unit_bytes);
  }
};

// Packs a strip of 256-column blocks: `fill(rows, slab)` packs a block of kLanes rows.
template <class Fill>
HWY_INLINE void PackSlabs(const SlabLayout& layout, std::size_t block_bytes, const std::byte* rows,
                          std::size_t num_rows, std::size_t row_bytes, std::size_t row_width,
                          std::byte* packed, Fill fill) {
  const std::size_t num_slabs = row_width / kSlabColumns;
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    const FileRows file(rows, num_rows, row, row_bytes);
    for (std::size_t i = 0; i < num_slabs; ++i) {
      fill(file.At(i * block_bytes), Slab(packed + i * layout.bytes(), row, layout));
    }
  }
}

// Packs a strip of blocks of 32 columns: `fill(rows, i, scales, planes)` packs block i of kLanes
// rows, `rows` being their starts.
template <class Fill>
HWY_INLINE void PackBlocks(const BlockLayout& layout, const std::byte* rows, std::size_t num_rows,
                           std::size_t row_bytes, std::size_t row_width, std::byte* packed,
                           Fill fill) {
  const std::size_t num_blocks = row_width / kUnitColumns;
  for (std::size_t row = 0; row < kStripRows; row += kLanes) {
    const FileRows file(rows, num_rows, row, row_bytes);
    std::byte* slab = packed;
    for (std::size_t first = 0; first < num_blocks; first += kUnits) {
      const std::size_t blocks = std::min(kUnits, num_blocks - first);
      std::byte* planes = slab + layout.scales_bytes(blocks);
      // What rounding the scales up leaves.
      const std::size_t scales = blocks * layout.block_scales_bytes();
      std::memset(slab + scales, 0, layout.scales_bytes(blocks) - scales);
      for (std::size_t i = 0; i < blocks; ++i) {
        fill(file, first + i, Place{slab + i * layout.block_scales_bytes(), row},
             Place{planes + i * layout.plane_bytes, row});
      }
      slab += layout.slab_bytes(blocks);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
