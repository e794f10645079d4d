// The two sequential parts of a gated DeltaNet layer on a CPU: the causal convolution and the gated
// delta rule.
//
// A layer has `key_heads` query and key heads and `value_heads` value heads, all of `head_dim`
// channels, that lie in a row as [queries, keys, values]. Value head h belongs to query and key
// head h % key_heads. With S the state matrix of a value head and q, k, v, g, b what a token
// brings,
//
//     S = exp(g) S;   S = S + k (b (v - k^T S));   o = q^T S / sqrt(head_dim)
//
// (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024). Rows are taken one after the other, so
// a result has the same bits however a sequence is cut into batches. Reentrant: calls that work on
// different heads or different sequences may run at once.
#pragma once

#include <cstddef>

#include "kernels/instruction_set.h"

namespace kernels {

struct DeltaNetShape {
  std::size_t head_dim = 0;  // a multiple of kDeltaHeadGranule
  std::size_t key_heads = 0;
  std::size_t value_heads = 0;
  std::size_t taps = 0;  // of the convolution, at least 2
  float norm_epsilon = 0;

  std::size_t num_heads() const { return 2 * key_heads + value_heads; }  // of the convolution
  std::size_t channels() const { return num_heads() * head_dim; }
  std::size_t window_size() const { return (taps - 1) * channels(); }
  std::size_t state_size() const { return value_heads * head_dim * head_dim; }
};

inline constexpr std::size_t kDeltaHeadGranule = 16;

// Rows of one sequence, the next `stride` floats behind the last.
struct ConstRows {
  const float* data = nullptr;
  std::size_t stride = 0;

  const float* row(std::size_t i) const { return data + i * stride; }
};
struct Rows {
  float* data = nullptr;
  std::size_t stride = 0;

  float* row(std::size_t i) const { return data + i * stride; }
};

struct DeltaConvolution {
  const float* kernel = nullptr;  // [taps, channels]
  float* window = nullptr;        // [taps - 1, channels], the inputs before the first row, oldest
                                  // first; left at the last inputs
  std::size_t num_rows = 0;
  ConstRows in;  // [num_rows, channels]
  Rows out;      // [num_rows, channels]
};

struct DeltaRule {
  float* state = nullptr;  // [value_heads, key channel, value channel]
  std::size_t num_rows = 0;
  ConstRows qkv;                      // [num_rows, channels], what Convolve gives
  ConstRows alpha;                    // [num_rows, value_heads]
  ConstRows beta;                     // [num_rows, value_heads]
  ConstRows gate;                     // [num_rows, value_heads * head_dim]
  const float* decay = nullptr;       // [value_heads], negative
  const float* decay_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;        // [head_dim]
  Rows out;                           // [num_rows, value_heads * head_dim]
};

// The convolution over heads [first_head, end_head) of num_heads(), SiLU behind it; queries and
// keys are brought to length 1 (queries to 1 / sqrt(head_dim)).
using DeltaConvolveFunction = void (*)(const DeltaNetShape& shape, const DeltaConvolution& work,
                                       std::size_t first_head, std::size_t end_head);

// The delta rule with g = decay * softplus(alpha + decay_bias) and b = sigmoid(beta) over value
// heads [first_head, end_head), then for every head an RMS norm with weight `norm`, times
// silu(gate).
using DeltaRuleFunction = void (*)(const DeltaNetShape& shape, const DeltaRule& work,
                                   std::size_t first_head, std::size_t end_head);

DeltaConvolveFunction DeltaConvolve(InstructionSet set = BestInstructionSet());
DeltaRuleFunction RunDeltaRule(InstructionSet set = BestInstructionSet());

}  // namespace kernels
