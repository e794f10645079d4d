#include "moe/compute/k_quant_kernel.h"

#include <ggml.h>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe {

#if defined(__x86_64__)
namespace {

#define ES_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))
#define ES_AVX512_INLINE ES_AVX512 __attribute__((always_inline)) inline

constexpr std::size_t kBlock = 256;  // elements of every K-quant's block

// ggml's blocks, by offset. A vector of Q8_K: a float scale, 256 signed bytes, and the sums of each
// 16 of them.
constexpr std::size_t kQ8Bytes = 292;
constexpr std::size_t kQ8Values = 4;
constexpr std::size_t kQ8Sums = 260;

// 256 weights as four runs of 64 unsigned bytes in the vector's order, a factor for each two bytes,
// and what makes them the weights: value = scale * (byte * factor) - offset of each 16 elements.
struct Decoded {
  __m512i bytes[4];
  __m512i factors[4];  // 16-bit lanes
  __m256i offsets;     // 16-bit, one for each 16 elements
  float scale;
  float offset_scale;
};

ES_AVX512_INLINE __m512i Both(const std::byte* bytes) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
}

// The lower 32 bytes shifted right by `low` bits, the upper by `high`; other bits of a byte remain.
ES_AVX512_INLINE __m512i ShiftHalves(__m512i bytes, int low, int high) {
  return _mm512_srlv_epi64(bytes, _mm512_set_epi64(high, high, high, high, low, low, low, low));
}

// Lane i of the result is lane first + i / run of the 16-bit `lanes`.
template <int kFirst, int kRun>
ES_AVX512_INLINE __m512i Spread(__m256i lanes) {
  alignas(64) static constexpr auto kIndex = [] {
    struct {
      std::int16_t lane[32];
    } index{};
    for (int i = 0; i < 32; ++i) index.lane[i] = static_cast<std::int16_t>(kFirst + i / kRun);
    return index;
  }();
  return _mm512_permutexvar_epi16(_mm512_load_si512(kIndex.lane), _mm512_castsi256_si512(lanes));
}

// Eight 6-bit scales, then eight 6-bit minima, of Q4_K and Q5_K, to 16 bits.
ES_AVX512_INLINE __m256i UnpackScales(const std::byte* packed) {
  std::uint32_t word[3];
  std::memcpy(word, packed, sizeof(word));
  const std::uint32_t scales_low = word[0] & 0x3f3f3f3fu;
  const std::uint32_t minima_low = word[1] & 0x3f3f3f3fu;
  const std::uint32_t scales_high = (word[2] & 0x0f0f0f0fu) | (((word[0] >> 6) & 0x03030303u) << 4);
  const std::uint32_t minima_high =
      ((word[2] >> 4) & 0x0f0f0f0fu) | (((word[1] >> 6) & 0x03030303u) << 4);
  return _mm256_cvtepu8_epi16(
      _mm_set_epi32(static_cast<int>(minima_high), static_cast<int>(minima_low),
                    static_cast<int>(scales_high), static_cast<int>(scales_low)));
}

ES_AVX512_INLINE void DecodeScales(const std::byte* block, Decoded& out) {
  std::uint32_t halves = 0;  // d and dmin
  std::memcpy(&halves, block, sizeof(halves));
  const __m128 floats = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(halves)));
  out.scale = _mm_cvtss_f32(floats);
  out.offset_scale = _mm_cvtss_f32(_mm_movehdup_ps(floats));
  const __m256i scales = UnpackScales(block + 4);
  out.factors[0] = Spread<0, 16>(scales);
  out.factors[1] = Spread<2, 16>(scales);
  out.factors[2] = Spread<4, 16>(scales);
  out.factors[3] = Spread<6, 16>(scales);
  out.offsets = _mm512_castsi512_si256(Spread<8, 2>(scales));
}

struct Q4K {
  static constexpr std::size_t kBytes = 144;

  ES_AVX512_INLINE static void Decode(const std::byte* block, Decoded& out) {
    DecodeScales(block, out);
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    for (int i = 0; i < 4; ++i) {
      out.bytes[i] = _mm512_and_si512(ShiftHalves(Both(block + 16 + 32 * i), 0, 4), nibble);
    }
  }
};

struct Q5K {
  static constexpr std::size_t kBytes = 176;

  ES_AVX512_INLINE static void Decode(const std::byte* block, Decoded& out) {
    DecodeScales(block, out);
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i high = Both(block + 16);
    for (int i = 0; i < 4; ++i) {
      const __m512i low = _mm512_and_si512(ShiftHalves(Both(block + 48 + 32 * i), 0, 4), nibble);
      const __m512i bit = _mm512_slli_epi64(
          _mm512_and_si512(ShiftHalves(high, 2 * i, 2 * i + 1), _mm512_set1_epi8(1)), 4);
      out.bytes[i] = _mm512_or_si512(low, bit);
    }
  }
};

struct Q6K {
  static constexpr std::size_t kBytes = 210;

  ES_AVX512_INLINE static void Decode(const std::byte* block, Decoded& out) {
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i two = _mm512_set1_epi8(0x03);
    for (int i = 0; i < 2; ++i) {
      const __m512i low = _mm512_loadu_si512(block + 64 * i);
      const __m512i high = Both(block + 128 + 32 * i);
      out.bytes[2 * i] =
          _mm512_or_si512(_mm512_and_si512(low, nibble),
                          _mm512_slli_epi64(_mm512_and_si512(ShiftHalves(high, 0, 2), two), 4));
      out.bytes[2 * i + 1] =
          _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi64(low, 4), nibble),
                          _mm512_slli_epi64(_mm512_and_si512(ShiftHalves(high, 4, 6), two), 4));
    }
    const __m256i scales =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192)));
    out.factors[0] = Spread<0, 8>(scales);
    out.factors[1] = Spread<4, 8>(scales);
    out.factors[2] = Spread<8, 8>(scales);
    out.factors[3] = Spread<12, 8>(scales);
    // Bytes are 32 too large: 32 * scale * (sum of the elements) comes off.
    out.offsets = _mm256_slli_epi16(scales, 5);
    std::uint16_t half = 0;
    std::memcpy(&half, block + 208, sizeof(half));
    out.scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
    out.offset_scale = out.scale;
  }
};

// Explicit fused operations only, in one order for each row and vector; the file is compiled
// without contraction.
template <class Type, int kVectors>
ES_AVX512 void DotRow(std::size_t row_width, const std::byte* row, const std::byte* const* vectors,
                      float* out, std::size_t out_stride) {
  __m512 sums[kVectors];
  __m256 offsets[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = _mm512_setzero_ps();
    offsets[v] = _mm256_setzero_ps();
  }
  std::size_t at = 0;
  for (std::size_t b = 0; b < row_width / kBlock; ++b, row += Type::kBytes, at += kQ8Bytes) {
    Decoded weights;
    Type::Decode(row, weights);
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* vector = vectors[v] + at;
      float vector_scale = 0;
      std::memcpy(&vector_scale, vector, sizeof(vector_scale));
      __m512i dots = _mm512_setzero_si512();
      for (int i = 0; i < 4; ++i) {
        const __m512i values = _mm512_loadu_si512(vector + kQ8Values + 64 * i);
        dots = _mm512_dpwssd_epi32(dots, _mm512_maddubs_epi16(weights.bytes[i], values),
                                   weights.factors[i]);
      }
      const __m256i block_sums =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vector + kQ8Sums));
      const __m256i off = _mm256_madd_epi16(block_sums, weights.offsets);
      sums[v] = _mm512_fmadd_ps(_mm512_set1_ps(weights.scale * vector_scale),
                                _mm512_cvtepi32_ps(dots), sums[v]);
      offsets[v] = _mm256_fmadd_ps(_mm256_set1_ps(weights.offset_scale * vector_scale),
                                   _mm256_cvtepi32_ps(off), offsets[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const __m512 total = _mm512_sub_ps(sums[v], _mm512_zextps256_ps512(offsets[v]));
    out[static_cast<std::size_t>(v) * out_stride] = _mm512_reduce_add_ps(total);
  }
}

template <class Type, int kVectors>
ES_AVX512 void DotRows(std::size_t row_width, const std::byte* rows, std::size_t num_rows,
                       const std::byte* const* vectors, float* out, std::size_t out_stride) {
  const std::size_t row_bytes = row_width / kBlock * Type::kBytes;
  for (std::size_t r = 0; r < num_rows; ++r) {
    DotRow<Type, kVectors>(row_width, rows + r * row_bytes, vectors, out + r, out_stride);
  }
}

template <class Type>
void Dots(std::size_t row_width, const std::byte* rows, std::size_t num_rows,
          const std::byte* const* vectors, std::size_t num_vectors, float* out,
          std::size_t out_stride) {
  std::size_t v = 0;
  for (; v + 8 <= num_vectors; v += 8) {
    DotRows<Type, 8>(row_width, rows, num_rows, vectors + v, out + v * out_stride, out_stride);
  }
  for (; v + 4 <= num_vectors; v += 4) {
    DotRows<Type, 4>(row_width, rows, num_rows, vectors + v, out + v * out_stride, out_stride);
  }
  for (; v + 2 <= num_vectors; v += 2) {
    DotRows<Type, 2>(row_width, rows, num_rows, vectors + v, out + v * out_stride, out_stride);
  }
  for (; v < num_vectors; ++v) {
    DotRows<Type, 1>(row_width, rows, num_rows, vectors + v, out + v * out_stride, out_stride);
  }
}

bool HasInstructions() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

KQuantDots FindKQuantDots(const gg::CpuTypeTraits& traits) {
  if (traits.dot_type != GGML_TYPE_Q8_K || traits.dot_block_bytes != kQ8Bytes ||
      traits.block != kBlock || !HasInstructions()) {
    return nullptr;
  }
  if (traits.type == GGML_TYPE_Q4_K && traits.block_bytes == Q4K::kBytes) return Dots<Q4K>;
  if (traits.type == GGML_TYPE_Q5_K && traits.block_bytes == Q5K::kBytes) return Dots<Q5K>;
  if (traits.type == GGML_TYPE_Q6_K && traits.block_bytes == Q6K::kBytes) return Dots<Q6K>;
  return nullptr;
}

#else

KQuantDots FindKQuantDots(const gg::CpuTypeTraits&) { return nullptr; }

#endif

}  // namespace moe
