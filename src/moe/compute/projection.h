// Projection: one matrix of every expert of a layer, as HostCompute multiplies with it.
//
// Hides where the weights are: in the mapped file or in strips packed at load (PackedExperts). A
// vector is quantised once, whole or in parts, and then multiplied with rows of any expert. A
// value; immutable; any thread. The weights outlive it.
//
// Bit rule: an output depends on its row and its vector alone; both places give the same bits.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "kernels/matrix_kernel.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/packed_experts.h"

namespace moe {

class Projection {
 public:
  // Rows [first_row, ...) of each expert, in the file. Errors: kUnsupported naming the tensor whose
  // type or width has no kernel.
  static base::Result<Projection> Mapped(const ExpertMatrix& matrix, std::size_t first_row);
  // `matrix` is one of `layer`; factors are taken from `weights`.
  static Projection Packed(const PackedExperts::Layer& layer, const PackedExperts::Matrix& matrix,
                           const ExpertMatrix& weights);

  // Quantises vectors and puts them into panels.
  const kernels::MatrixKernel& kernel() const { return kernel_; }

  // out[v * out_stride + r] = factor of the expert * (row first + r . vectors[v]), for r < num_rows
  // and v < num_vectors. `first` is a multiple of 16 and num_rows too, or the rows are the last
  // ones. With `panels`, those of the vectors, weights are unpacked once for
  // several vectors.
  void Multiply(ExpertId expert, std::size_t first, std::size_t num_rows,
                const std::byte* const* vectors, std::size_t num_vectors, const std::byte* panels,
                float* out, std::size_t out_stride) const;

 private:
  Projection(kernels::MatrixKernel kernel, const ExpertMatrix& matrix)
      : kernel_(kernel), matrix_(&matrix) {}
  // Those of Multiply, without the expert's factor.
  void MultiplyPanels(ExpertId expert, std::size_t first, std::size_t num_rows,
                      const std::byte* panels, std::size_t num_vectors, float* out,
                      std::size_t out_stride) const;

  kernels::MatrixKernel kernel_;
  const ExpertMatrix* matrix_;
  std::size_t first_row_ = 0;                    // in the file
  const PackedExperts::Layer* layer_ = nullptr;  // where it is packed
  std::size_t offset_ = 0;                       // in a packed expert
};

}  // namespace moe
