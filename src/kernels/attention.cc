#include "kernels/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/activations-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, kCellGroup>;
using Vector = hn::Vec<Floats>;

#if HWY_TARGET == HWY_AVX3_DL
inline constexpr std::size_t kTile = 8;  // queries whose sums stay in registers
#else
inline constexpr std::size_t kTile = 4;
#endif
// Cells whose keys or values stay in the second cache while all queries pass over them.
inline constexpr std::size_t kBlock = 256;

HWY_INLINE Vector Load(Floats d, const hwy::float16_t* from) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, from));
}
HWY_INLINE Vector Load(Floats d, const float* from) { return hn::LoadU(d, from); }

// Queries beside each other, channel by channel.
using Tile = float[kMaxHeadDim][kTile];

// Queries and shares are rounded as keys and values are.
HWY_INLINE Vector Rounded(Floats d, Vector x, hwy::float16_t) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  return hn::PromoteTo(d, hn::DemoteTo(d16, x));
}
HWY_INLINE Vector Rounded(Floats, Vector x, float) { return x; }

// scores[q * stride + at, two vectors of cells) for Q queries, from `cell` on.
template <std::size_t Q, class T>
HWY_INLINE void Score(Floats d, const AttentionCache& cache, const AttentionHead& head,
                      const Tile& tile, std::size_t cell, float* scores, std::size_t stride) {
  const std::size_t lanes = hn::Lanes(d);
  const auto vector_of = [&](std::size_t c) {
    return static_cast<const T*>(cache.keys) + c / kCellGroup * (cache.width * kCellGroup) +
           head.first_channel * kCellGroup + c % kCellGroup;
  };
  const T* first = vector_of(cell);
  const T* second = vector_of(cell + lanes);
  Vector sum0[Q], sum1[Q];
  for (std::size_t q = 0; q < Q; ++q) sum0[q] = sum1[q] = hn::Zero(d);
  for (std::size_t i = 0; i < head.head_dim; ++i) {
    const Vector k0 = Load(d, first + i * kCellGroup);
    const Vector k1 = Load(d, second + i * kCellGroup);
    for (std::size_t q = 0; q < Q; ++q) {
      const Vector x = hn::Set(d, tile[i][q]);
      sum0[q] = hn::MulAdd(x, k0, sum0[q]);
      sum1[q] = hn::MulAdd(x, k1, sum1[q]);
    }
  }
  const Vector scale = hn::Set(d, head.scale);
  for (std::size_t q = 0; q < Q; ++q) {
    hn::StoreU(hn::Mul(sum0[q], scale), d, scores + q * stride + cell);
    hn::StoreU(hn::Mul(sum1[q], scale), d, scores + q * stride + cell + lanes);
  }
}

// Q queries on the cells of one block.
template <std::size_t Q, class T>
HWY_INLINE void ScoreBlock(Floats d, const AttentionCache& cache, const AttentionHead& head,
                           const AttentionQuery* queries, std::size_t begin, std::size_t end,
                           float* scores, std::size_t stride) {
  Tile tile;
  for (std::size_t q = 0; q < Q; ++q) {
    for (std::size_t i = 0; i < head.head_dim; i += hn::Lanes(d)) {
      HWY_ALIGN float rounded[kCellGroup];
      hn::Store(Rounded(d, hn::LoadU(d, queries[q].query + i), T()), d, rounded);
      for (std::size_t j = 0; j < hn::Lanes(d); ++j) tile[i + j][q] = rounded[j];
    }
  }
  for (std::size_t cell = begin; cell < end; cell += 2 * hn::Lanes(d)) {
    Score<Q, T>(d, cache, head, tile, cell, scores, stride);
  }
}

// Turns the scores of `visible` cells into their shares of the softmax and those of the others, up
// to `count`, into 0.
template <class T>
HWY_INLINE void Softmax(Floats d, float* scores, std::size_t visible, std::size_t count) {
  const std::size_t lanes = hn::Lanes(d);
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::fill(scores + visible, scores + count, kNothing);
  Vector most = hn::Set(d, kNothing);
  for (std::size_t c = 0; c < visible; c += lanes) most = hn::Max(most, hn::LoadU(d, scores + c));
  const Vector largest = hn::Set(d, hn::ReduceMax(d, most));
  Vector sum = hn::Zero(d);
  for (std::size_t c = 0; c < visible; c += lanes) {
    const Vector score = hn::LoadU(d, scores + c);
    // Exp gives the smallest numbers instead of 0 for what is not seen.
    const Vector share = hn::IfThenZeroElse(hn::Eq(score, hn::Set(d, kNothing)),
                                            hn::Exp(d, hn::Sub(score, largest)));
    hn::StoreU(share, d, scores + c);
    sum = hn::Add(sum, share);
  }
  const Vector inverse = hn::Set(d, 1.0f / hn::ReduceSum(d, sum));
  std::size_t c = 0;
  for (; c < visible; c += lanes) {
    hn::StoreU(Rounded(d, hn::Mul(hn::LoadU(d, scores + c), inverse), T()), d, scores + c);
  }
  if (c < count) std::fill(scores + c, scores + count, 0.0f);
}

// out[channel, V vectors) += sum over cells of share times value, for Q queries.
template <std::size_t Q, std::size_t V, class T>
HWY_INLINE void AddValues(Floats d, const AttentionCache& cache, const AttentionQuery* queries,
                          std::size_t channel, const T* values, std::size_t count,
                          const float* shares, std::size_t stride) {
  const std::size_t lanes = hn::Lanes(d);
  Vector sum[Q][V];
  for (std::size_t q = 0; q < Q; ++q) {
    for (std::size_t v = 0; v < V; ++v) {
      sum[q][v] = hn::LoadU(d, queries[q].out + channel + v * lanes);
    }
  }
  for (std::size_t c = 0; c < count; ++c) {
    const T* row = values + c * cache.width + channel;
    Vector value[V];
    for (std::size_t v = 0; v < V; ++v) value[v] = Load(d, row + v * lanes);
    for (std::size_t q = 0; q < Q; ++q) {
      const Vector share = hn::Set(d, shares[q * stride + c]);
      for (std::size_t v = 0; v < V; ++v) sum[q][v] = hn::MulAdd(share, value[v], sum[q][v]);
    }
  }
  for (std::size_t q = 0; q < Q; ++q) {
    for (std::size_t v = 0; v < V; ++v) {
      hn::StoreU(sum[q][v], d, queries[q].out + channel + v * lanes);
    }
  }
}

template <std::size_t Q, class T>
HWY_INLINE void AddBlock(Floats d, const AttentionCache& cache, const AttentionHead& head,
                         const AttentionQuery* queries, std::size_t begin, std::size_t end,
                         const float* scores, std::size_t stride) {
  const std::size_t lanes = hn::Lanes(d);
  const T* values = static_cast<const T*>(cache.values) + begin * cache.width + head.first_channel;
  const std::size_t count = end - begin;
  std::size_t channel = 0;
  for (; channel + 2 * lanes <= head.head_dim; channel += 2 * lanes) {
    AddValues<Q, 2>(d, cache, queries, channel, values, count, scores + begin, stride);
  }
  for (; channel < head.head_dim; channel += lanes) {
    AddValues<Q, 1>(d, cache, queries, channel, values, count, scores + begin, stride);
  }
}

// Calls step(Q, first query, begin, end) for tiles of Q queries, block after block of the cells
// that any query of the tile sees.
template <class Step>
HWY_INLINE void ForTilesAndBlocks(std::span<const AttentionQuery> queries, std::size_t num_cells,
                                  const Step& step) {
  const auto run = [&](auto size, std::size_t first, std::size_t begin) {
    std::size_t seen = 0;
    for (std::size_t q = 0; q < size; ++q) seen = std::max(seen, queries[first + q].num_cells);
    if (seen > begin) step(size, first, begin, std::min(seen, begin + kBlock));
  };
  for (std::size_t begin = 0; begin < num_cells; begin += kBlock) {
    std::size_t q = 0;
    for (; q + kTile <= queries.size(); q += kTile) {
      run(std::integral_constant<std::size_t, kTile>(), q, begin);
    }
    for (; q < queries.size(); ++q) run(std::integral_constant<std::size_t, 1>(), q, begin);
  }
}

template <class T>
HWY_INLINE void AttendTo(const AttentionCache& cache, const AttentionHead& head,
                         std::span<const AttentionQuery> queries, float* scores) {
  const Floats d;
  std::size_t num_cells = 0;
  for (const AttentionQuery& query : queries) num_cells = std::max(num_cells, query.num_cells);
  const std::size_t stride = ScoreStride(num_cells);
  ForTilesAndBlocks(queries, num_cells,
                    [&](auto size, std::size_t q, std::size_t begin, std::size_t end) {
                      ScoreBlock<size, T>(d, cache, head, queries.data() + q, begin, end,
                                          scores + q * stride, stride);
                    });
  for (std::size_t q = 0; q < queries.size(); ++q) {
    Softmax<T>(d, scores + q * stride, queries[q].num_cells, stride);
    std::fill_n(queries[q].out, head.head_dim, 0.0f);
  }
  ForTilesAndBlocks(queries, num_cells,
                    [&](auto size, std::size_t q, std::size_t begin, std::size_t end) {
                      AddBlock<size, T>(d, cache, head, queries.data() + q, begin, end,
                                        scores + q * stride, stride);
                    });
  for (const AttentionQuery& query : queries) {
    for (std::size_t i = 0; i < head.head_dim; i += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, query.out + i), Sigmoid(d, hn::LoadU(d, query.gate + i))), d,
                 query.out + i);
    }
  }
}

void AttendQueries(const AttentionCache& cache, const AttentionHead& head,
                   std::span<const AttentionQuery> queries, float* scores) {
  if (cache.type == CacheType::kF16) {
    AttendTo<hwy::float16_t>(cache, head, queries, scores);
  } else {
    AttendTo<float>(cache, head, queries, scores);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {
namespace {

template <class T>
T Stored(float x);
template <>
float Stored<float>(float x) {
  return x;
}
template <>
hwy::float16_t Stored<hwy::float16_t>(float x) {
  return hwy::F16FromF32(x);
}

template <class T>
void StoreAs(const AttentionCache& cache, std::size_t cell, const float* key, const float* value) {
  T* keys = static_cast<T*>(cache.keys) + cell / kCellGroup * cache.width * kCellGroup +
            cell % kCellGroup;
  T* values = static_cast<T*>(cache.values) + cell * cache.width;
  for (std::size_t i = 0; i < cache.width; ++i) {
    keys[i * kCellGroup] = Stored<T>(key[i]);
    values[i] = Stored<T>(value[i]);
  }
}

}  // namespace

void AttentionCache::Store(std::size_t cell, const float* key, const float* value) const {
  if (type == CacheType::kF16) {
    StoreAs<hwy::float16_t>(*this, cell, key, value);
  } else {
    StoreAs<float>(*this, cell, key, value);
  }
}

AttendFunction Attend(InstructionSet set) { return ES_KERNELS_FOR(set, AttendQueries); }

}  // namespace kernels
#endif  // HWY_ONCE
