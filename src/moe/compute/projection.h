// Projection: one matrix of every expert of a layer, as HostCompute multiplies with it.
//
// Hides in which layout the weights are: rows of the mapped file (RowKernel) or strips packed at
// load (PackedExperts). A vector is converted once, whole or in parts, and then multiplied with
// rows of any expert. A value; immutable; any thread. The weights outlive it.
//
// Bit rule: an output depends on its row and its vector alone. The two layouts may differ in bits.
#pragma once

#include <cstddef>
#include <optional>

#include "base/result.h"
#include "gg/cpu_traits.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/packed_experts.h"
#include "moe/compute/row_kernel.h"

namespace moe {

class Projection {
 public:
  // Rows [first_row, ...) of each expert, in the file. Errors: those of RowKernel::Make.
  static base::Result<Projection> Mapped(const gg::CpuTraits& traits, const ExpertMatrix& matrix,
                                         std::size_t first_row);
  // `matrix` is one of `layer`; factors are taken from `weights`.
  static Projection Packed(const PackedExperts::Layer& layer, const PackedExperts::Matrix& matrix,
                           const ExpertMatrix& weights);

  bool packed() const { return strips_.has_value(); }
  // Bytes of a row of weights, rounded for packed ones.
  std::size_t row_bytes() const;

  // Bytes of a converted vector.
  std::size_t vector_bytes() const;
  // Elements that convert as one; the row width is a multiple.
  std::size_t granule() const;
  // Converted vectors are plain floats.
  bool takes_floats() const { return !packed() && rows_->takes_floats(); }
  // A vector converted for one projection serves another of the same width.
  bool SameVectors(const Projection& other) const;
  // Elements [begin, begin + n), multiples of granule(), to their place in the vector `out`.
  // `in` points to element `begin`.
  void Convert(const float* in, std::size_t begin, std::size_t n, std::byte* out) const;

  // Interleaves converted vectors, vector_bytes() each, for Multiply. Only when packed.
  void BuildPanels(const std::byte* const* vectors, std::size_t num_vectors,
                   std::byte* panels) const {
    strips_->BuildPanels(vectors, num_vectors, panels);
  }

  // out[v * out_stride + r] = factor of the expert * (row first + r . vectors[v]), for r < num_rows
  // and v < num_vectors. Packed: `first` is a multiple of 16 and num_rows too, or the rows are the
  // last ones; with `panels`, those of the vectors, weights are unpacked once for several vectors.
  void Multiply(ExpertId expert, std::size_t first, std::size_t num_rows,
                const std::byte* const* vectors, std::size_t num_vectors, const std::byte* panels,
                float* out, std::size_t out_stride) const;

 private:
  Projection() = default;
  void MultiplyStrips(ExpertId expert, std::size_t first, std::size_t num_rows,
                      const std::byte* const* vectors, std::size_t num_vectors,
                      const std::byte* panels, float* out, std::size_t out_stride) const;

  const ExpertMatrix* matrix_ = nullptr;
  std::size_t first_row_ = 0;                    // in the file
  std::optional<RowKernel> rows_;                // the file's layout
  std::optional<kernels::MatrixKernel> strips_;  // packed
  const PackedExperts::Layer* layer_ = nullptr;
  std::size_t offset_ = 0;  // in a packed expert
};

}  // namespace moe
