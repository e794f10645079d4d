// Dot products of K-quant rows, as they lie in the file, with several vectors at once.
//
// ggml's dot product decodes a row anew for every vector. These decode it once for up to eight, on
// x86 with AVX-512 and VNNI; a row and a vector give the same bits in any company. Pure; any
// thread.
#pragma once

#include <cstddef>

#include "gg/cpu_traits.h"

namespace moe {

// out[v * out_stride + r] = row r . vectors[v]. Rows of `row_width` elements follow each other;
// vectors are converted to the type's dot type (Q8_K).
using KQuantDots = void (*)(std::size_t row_width, const std::byte* rows, std::size_t num_rows,
                            const std::byte* const* vectors, std::size_t num_vectors, float* out,
                            std::size_t out_stride);

// For Q4_K, Q5_K and Q6_K; nullptr for other types, on other machines, and when ggml stores the
// blocks in another size than these know.
KQuantDots FindKQuantDots(const gg::CpuTypeTraits& traits);

}  // namespace moe
