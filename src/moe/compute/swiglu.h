// SwiGLU on the CPU. Pure; any thread.
#pragma once

#include <cstddef>

namespace moe {

// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)), within 4 ulp of the exact silu for
// x >= -87 (below that silu is 0 to within 1e-35). Each element is computed by the same operations
// whatever `n` and its position are: bit-identical for one row or many. `out` may be `gate` or
// `up`.
void SwiGlu(const float* gate, const float* up, float* out, std::size_t n);

}  // namespace moe
