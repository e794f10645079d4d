#include "moe/compute/swiglu.h"

#include <bit>
#include <cstdint>

namespace moe {
namespace {

// exp(x) for x <= 88. Only additions, multiplications and integer operations on the bits, which
// round alike in every lane of a vector; this file is compiled without contraction. NaN stays NaN.
__attribute__((always_inline)) inline float Exp(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f;  // its low bits are zero: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa.
  constexpr float kRound = 0x1.8p23f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor to the 7th term: |r| <= ln(2) / 2 leaves an error below 2^-27.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<float>(exponent);
}

__attribute__((always_inline)) inline void Compute(const float* gate, const float* up, float* out,
                                                   std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gate[i];
    out[i] = g / (1.0f + Exp(-g)) * up[i];
  }
}

#if defined(__x86_64__)
// The same operations, eight at a time instead of four.
__attribute__((target("avx2"))) void ComputeAvx2(const float* gate, const float* up, float* out,
                                                 std::size_t n) {
  Compute(gate, up, out, n);
}

bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

void SwiGlu(const float* gate, const float* up, float* out, std::size_t n) {
#if defined(__x86_64__)
  if (HasAvx2()) return ComputeAvx2(gate, up, out, n);
#endif
  Compute(gate, up, out, n);
}

}  // namespace moe
