#include "kernels/delta_net.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_net.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/activations-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Every vector is a piece of one head.
using Floats = hn::CappedTag<float, kDeltaHeadGranule>;
using Vector = hn::Vec<Floats>;

HWY_INLINE float SumOfSquares(Floats d, const float* x, std::size_t n) {
  Vector sum = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const Vector v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  return hn::ReduceSum(d, sum);
}

HWY_INLINE void Scale(Floats d, float* x, std::size_t n, float factor) {
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

// One head's channels of one row; `tap(t)` is where the input of tap t lies.
template <class Tap>
HWY_INLINE void ConvolveRow(Floats d, const DeltaNetShape& shape, const float* kernel,
                            const Tap& tap, float* out) {
  const std::size_t channels = shape.channels();
  for (std::size_t i = 0; i < shape.head_dim; i += hn::Lanes(d)) {
    Vector sum = hn::Zero(d);
    for (std::size_t t = 0; t < shape.taps; ++t) {
      sum = hn::MulAdd(hn::LoadU(d, tap(t) + i), hn::LoadU(d, kernel + t * channels + i), sum);
    }
    hn::StoreU(Silu(d, sum), d, out + i);
  }
}

void Convolve(const DeltaNetShape& shape, const DeltaConvolution& work, std::size_t first_head,
              std::size_t end_head) {
  const Floats d;
  const std::size_t channels = shape.channels();
  const std::size_t before = shape.taps - 1;
  for (std::size_t head = first_head; head < end_head; ++head) {
    const std::size_t at = head * shape.head_dim;
    for (std::size_t row = 0; row < work.num_rows; ++row) {
      float* out = work.out.row(row) + at;
      ConvolveRow(
          d, shape, work.kernel + at,
          [&](std::size_t t) {
            const std::size_t position = row + t;
            return (position < before ? work.window + position * channels
                                      : work.in.row(position - before)) +
                   at;
          },
          out);
      if (head >= 2 * shape.key_heads) continue;
      const float length = std::sqrt(SumOfSquares(d, out, shape.head_dim) + shape.norm_epsilon);
      const bool is_query = head < shape.key_heads;
      Scale(d, out, shape.head_dim,
            1.0f / (is_query ? length * std::sqrt(static_cast<float>(shape.head_dim)) : length));
    }
    for (std::size_t t = 0; t < before; ++t) {
      const std::size_t position = work.num_rows + t;
      const float* last =
          position < before ? work.window + position * channels : work.in.row(position - before);
      std::copy_n(last + at, shape.head_dim, work.window + t * channels + at);
    }
  }
}

// What a token does to one head.
struct Token {
  const float* query;
  const float* key;
  const float* value;
  float decay;  // factor
  float beta;
  float* out;
};

// The token's step on columns [column, column + N vectors) of a head's state. Two sums for even and
// odd key channels keep the multipliers busy.
template <int N>
HWY_INLINE void StepColumns(Floats d, std::size_t head_dim, const Token& token, float* state,
                            std::size_t column) {
  const std::size_t lanes = hn::Lanes(d);
  Vector even[N], odd[N];
  for (int j = 0; j < N; ++j) even[j] = odd[j] = hn::Zero(d);
  for (std::size_t i = 0; i < head_dim; i += 2) {
    const float* rows = state + i * head_dim + column;
    const Vector k0 = hn::Set(d, token.key[i]);
    const Vector k1 = hn::Set(d, token.key[i + 1]);
    for (int j = 0; j < N; ++j) {
      const std::size_t at = static_cast<std::size_t>(j) * lanes;
      even[j] = hn::MulAdd(hn::LoadU(d, rows + at), k0, even[j]);
      odd[j] = hn::MulAdd(hn::LoadU(d, rows + head_dim + at), k1, odd[j]);
    }
  }
  const Vector decay = hn::Set(d, token.decay);
  Vector change[N];
  for (int j = 0; j < N; ++j) {
    const Vector held = hn::Mul(decay, hn::Add(even[j], odd[j]));
    const Vector value = hn::LoadU(d, token.value + column + static_cast<std::size_t>(j) * lanes);
    change[j] = hn::Mul(hn::Set(d, token.beta), hn::Sub(value, held));
    even[j] = odd[j] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < head_dim; i += 2) {
    float* rows = state + i * head_dim + column;
    const Vector k0 = hn::Set(d, token.key[i]);
    const Vector k1 = hn::Set(d, token.key[i + 1]);
    const Vector q0 = hn::Set(d, token.query[i]);
    const Vector q1 = hn::Set(d, token.query[i + 1]);
    for (int j = 0; j < N; ++j) {
      const std::size_t at = static_cast<std::size_t>(j) * lanes;
      const Vector s0 = hn::MulAdd(k0, change[j], hn::Mul(decay, hn::LoadU(d, rows + at)));
      hn::StoreU(s0, d, rows + at);
      even[j] = hn::MulAdd(s0, q0, even[j]);
      const Vector s1 =
          hn::MulAdd(k1, change[j], hn::Mul(decay, hn::LoadU(d, rows + head_dim + at)));
      hn::StoreU(s1, d, rows + head_dim + at);
      odd[j] = hn::MulAdd(s1, q1, odd[j]);
    }
  }
  for (int j = 0; j < N; ++j) {
    hn::StoreU(hn::Add(even[j], odd[j]), d,
               token.out + column + static_cast<std::size_t>(j) * lanes);
  }
}

// log(1 + exp(x)), which is x where that no longer differs.
HWY_INLINE float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

HWY_INLINE void NormalizeAndGate(Floats d, const DeltaNetShape& shape, const float* norm,
                                 const float* gate, float* out) {
  const std::size_t n = shape.head_dim;
  const float factor =
      1.0f / std::sqrt(SumOfSquares(d, out, n) / static_cast<float>(n) + shape.norm_epsilon);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const Vector x =
        hn::Mul(hn::Mul(hn::LoadU(d, out + i), hn::Set(d, factor)), hn::LoadU(d, norm + i));
    hn::StoreU(hn::Mul(x, Silu(d, hn::LoadU(d, gate + i))), d, out + i);
  }
}

void Rule(const DeltaNetShape& shape, const DeltaRule& work, std::size_t first_head,
          std::size_t end_head) {
  const Floats d;
  constexpr int kBlock = 4;  // vectors of columns whose part of the state stays in the first cache
  constexpr std::size_t kTokens = 64;  // taken through one block before the next
  const std::size_t n = shape.head_dim;
  const std::size_t lanes = hn::Lanes(d);
  Token tokens[kTokens];
  for (std::size_t head = first_head; head < end_head; ++head) {
    const std::size_t key_head = head % shape.key_heads;
    float* state = work.state + head * n * n;
    for (std::size_t begin = 0; begin < work.num_rows; begin += kTokens) {
      const std::size_t count = std::min(kTokens, work.num_rows - begin);
      for (std::size_t t = 0; t < count; ++t) {
        const std::size_t row = begin + t;
        const float* qkv = work.qkv.row(row);
        tokens[t] = {.query = qkv + key_head * n,
                     .key = qkv + (shape.key_heads + key_head) * n,
                     .value = qkv + (2 * shape.key_heads + head) * n,
                     .decay = std::exp(work.decay[head] *
                                       Softplus(work.alpha.row(row)[head] + work.decay_bias[head])),
                     .beta = 1.0f / (1.0f + std::exp(-work.beta.row(row)[head])),
                     .out = work.out.row(row) + head * n};
      }
      std::size_t column = 0;
      for (; column + kBlock * lanes <= n; column += kBlock * lanes) {
        for (std::size_t t = 0; t < count; ++t) {
          StepColumns<kBlock>(d, n, tokens[t], state, column);
        }
      }
      for (; column < n; column += lanes) {
        for (std::size_t t = 0; t < count; ++t) StepColumns<1>(d, n, tokens[t], state, column);
      }
      for (std::size_t t = 0; t < count; ++t) {
        NormalizeAndGate(d, shape, work.norm, work.gate.row(begin + t) + head * n, tokens[t].out);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/for_instruction_set.h"

namespace kernels {

DeltaConvolveFunction DeltaConvolve(InstructionSet set) { return ES_KERNELS_FOR(set, Convolve); }
DeltaRuleFunction RunDeltaRule(InstructionSet set) { return ES_KERNELS_FOR(set, Rule); }

}  // namespace kernels
#endif  // HWY_ONCE
