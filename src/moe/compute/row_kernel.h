// RowKernel: how the CPU multiplies rows of one weight type with vectors.
//
// A vector is converted once (Convert) and then multiplied with many rows (Multiply). A kernel is a
// few function pointers over the type's traits, so that a faster one (own layout, own instructions)
// can take a type's place without its callers changing. Values, immutable; any thread.
//
// Bit rule: an output depends on its row and its vector alone, never on how many rows or vectors
// one call holds.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "gg/cpu_traits.h"
#include "moe/compute/k_quant_kernel.h"

namespace moe {

class RowKernel {
 public:
  // For rows of `row_width` elements; `tensor` is for messages. Errors: kUnsupported when the type
  // cannot be multiplied or its blocks do not divide the row.
  static base::Result<RowKernel> Make(const gg::CpuTraits& traits, int type, std::size_t row_width,
                                      std::string_view tensor);

  std::size_t row_width() const { return row_width_; }
  // Bytes of a converted vector of row_width() elements; of a part of it when `n` is a multiple of
  // granule().
  std::size_t vector_bytes() const { return VectorBytes(row_width_); }
  std::size_t VectorBytes(std::size_t n) const {
    return n / traits_.dot_block * traits_.dot_block_bytes;
  }
  // Elements that convert as one: row_width() is a multiple.
  std::size_t granule() const { return traits_.dot_block; }
  // Converted vectors are plain floats: Convert only copies.
  bool takes_floats() const { return traits_.from_float == nullptr; }
  // A vector converted for one kernel serves another of the same row width.
  bool SameVectors(const RowKernel& other) const {
    return traits_.dot_type == other.traits_.dot_type;
  }

  // `n` elements, a multiple of granule().
  void Convert(const float* in, std::byte* out, std::size_t n) const;

  // out[v * out_stride + r] = rows[r] . vectors[v], for r < num_rows and v < num_vectors.
  // `rows` is [num_rows, row_width()] of the weight type, `vectors` [num_vectors] converted ones.
  void Multiply(const std::byte* rows, std::size_t num_rows, const std::byte* const* vectors,
                std::size_t num_vectors, float* out, std::size_t out_stride) const {
    multiply_(*this, rows, num_rows, vectors, num_vectors, out, out_stride);
  }

 private:
  using MultiplyFunction = void (*)(const RowKernel& kernel, const std::byte* rows,
                                    std::size_t num_rows, const std::byte* const* vectors,
                                    std::size_t num_vectors, float* out, std::size_t out_stride);

  RowKernel() = default;

  // One call of the backend's dot product an output.
  static void MultiplyByDots(const RowKernel& kernel, const std::byte* rows, std::size_t num_rows,
                             const std::byte* const* vectors, std::size_t num_vectors, float* out,
                             std::size_t out_stride);
  // Our own dot products of the type.
  static void MultiplyKQuants(const RowKernel& kernel, const std::byte* rows, std::size_t num_rows,
                              const std::byte* const* vectors, std::size_t num_vectors, float* out,
                              std::size_t out_stride);
  // Decodes rows to floats; sums in double.
  static void MultiplyDecoded(const RowKernel& kernel, const std::byte* rows, std::size_t num_rows,
                              const std::byte* const* vectors, std::size_t num_vectors, float* out,
                              std::size_t out_stride);

  gg::CpuTypeTraits traits_;
  std::size_t row_width_ = 0;
  std::size_t row_bytes_ = 0;
  MultiplyFunction multiply_ = nullptr;
  KQuantDots k_quant_dots_ = nullptr;
};

}  // namespace moe
