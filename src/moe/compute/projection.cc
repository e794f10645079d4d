#include "moe/compute/projection.h"

#include "base/check.h"

namespace moe {

base::Result<Projection> Projection::Mapped(const ExpertMatrix& matrix, std::size_t first_row) {
  auto kernel = kernels::MatrixKernel::Make(matrix.type, matrix.row_width);
  if (!kernel) {
    return base::Fail(kernel.error().kind, "{}: {}: quantise this tensor to another type",
                      matrix.tensor, kernel.error().message);
  }
  Projection projection(*kernel, matrix);
  projection.first_row_ = first_row;
  return projection;
}

Projection Projection::Packed(const PackedExperts::Layer& layer,
                              const PackedExperts::Matrix& matrix, const ExpertMatrix& weights) {
  Projection projection(matrix.kernel, weights);
  projection.layer_ = &layer;
  projection.offset_ = matrix.offset;
  return projection;
}

void Projection::MultiplyPanels(ExpertId expert, std::size_t first, std::size_t num_rows,
                                const std::byte* panels, std::size_t num_vectors, float* out,
                                std::size_t out_stride) const {
  const std::size_t num_strips = kernels::MatrixKernel::NumStrips(num_rows);
  if (layer_ == nullptr) {
    const std::byte* rows = matrix_->expert(expert) + (first_row_ + first) * matrix_->row_bytes;
    kernel_.MultiplyFile(rows, num_rows, 0, num_strips, panels, num_vectors, out, out_stride);
    return;
  }
  const std::byte* run = layer_->runs[expert.index()];
  ES_CHECK(run != nullptr && first % kernels::kStripRows == 0);
  const std::byte* strips = run + offset_ + first / kernels::kStripRows * kernel_.strip_bytes();
  kernel_.Multiply(strips, num_rows, 0, num_strips, panels, num_vectors, out, out_stride);
}

void Projection::Multiply(ExpertId expert, std::size_t first, std::size_t num_rows,
                          const std::byte* const* vectors, std::size_t num_vectors,
                          const std::byte* panels, float* out, std::size_t out_stride) const {
  if (panels != nullptr) {
    MultiplyPanels(expert, first, num_rows, panels, num_vectors, out, out_stride);
  } else {
    for (std::size_t v = 0; v < num_vectors; ++v) {
      MultiplyPanels(expert, first, num_rows, vectors[v], 1, out + v * out_stride, out_stride);
    }
  }
  const float scale = matrix_->scale(expert);
  if (scale == 1.0f) return;
  for (std::size_t v = 0; v < num_vectors; ++v) {
    for (std::size_t r = 0; r < num_rows; ++r) out[v * out_stride + r] *= scale;
  }
}

}  // namespace moe
