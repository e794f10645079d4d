#include "moe/compute/projection.h"

#include "base/check.h"

namespace moe {

base::Result<Projection> Projection::Mapped(const gg::CpuTraits& traits, const ExpertMatrix& matrix,
                                            std::size_t first_row) {
  auto kernel = RowKernel::Make(traits, matrix.type, matrix.row_width, matrix.tensor);
  if (!kernel) return base::Forward(kernel);
  Projection projection;
  projection.matrix_ = &matrix;
  projection.first_row_ = first_row;
  projection.rows_ = *kernel;
  return projection;
}

Projection Projection::Packed(const PackedExperts::Layer& layer,
                              const PackedExperts::Matrix& matrix, const ExpertMatrix& weights) {
  Projection projection;
  projection.matrix_ = &weights;
  projection.strips_ = matrix.kernel;
  projection.layer_ = &layer;
  projection.offset_ = matrix.offset;
  return projection;
}

std::size_t Projection::row_bytes() const {
  return packed() ? strips_->strip_bytes() / kernels::kStripRows : matrix_->row_bytes;
}

std::size_t Projection::vector_bytes() const {
  return packed() ? strips_->quantized_bytes() : rows_->vector_bytes();
}

std::size_t Projection::granule() const { return packed() ? strips_->granule() : rows_->granule(); }

bool Projection::SameVectors(const Projection& other) const {
  if (packed() != other.packed()) return false;
  return packed() ? strips_->SameActivations(*other.strips_) : rows_->SameVectors(*other.rows_);
}

void Projection::Convert(const float* in, std::size_t begin, std::size_t n, std::byte* out) const {
  if (packed()) {
    strips_->QuantizePart(in, begin, n, out);
  } else {
    rows_->Convert(in, out + rows_->VectorBytes(begin), n);
  }
}

void Projection::MultiplyStrips(ExpertId expert, std::size_t first, std::size_t num_rows,
                                const std::byte* const* vectors, std::size_t num_vectors,
                                const std::byte* panels, float* out, std::size_t out_stride) const {
  const std::byte* run = layer_->runs[expert.index()];
  ES_CHECK(run != nullptr && first % kernels::kStripRows == 0);
  const std::byte* strips = run + offset_ + first / kernels::kStripRows * strips_->strip_bytes();
  const std::size_t num_strips = kernels::MatrixKernel::NumStrips(num_rows);
  if (panels != nullptr) {
    strips_->Multiply(strips, num_rows, 0, num_strips, panels, num_vectors, out, out_stride);
    return;
  }
  for (std::size_t v = 0; v < num_vectors; ++v) {
    strips_->Multiply(strips, num_rows, 0, num_strips, vectors[v], 1, out + v * out_stride,
                      out_stride);
  }
}

void Projection::Multiply(ExpertId expert, std::size_t first, std::size_t num_rows,
                          const std::byte* const* vectors, std::size_t num_vectors,
                          const std::byte* panels, float* out, std::size_t out_stride) const {
  if (packed()) {
    MultiplyStrips(expert, first, num_rows, vectors, num_vectors, panels, out, out_stride);
  } else {
    rows_->Multiply(matrix_->expert(expert) + (first_row_ + first) * matrix_->row_bytes, num_rows,
                    vectors, num_vectors, out, out_stride);
  }
  const float scale = matrix_->scale(expert);
  if (scale == 1.0f) return;
  for (std::size_t v = 0; v < num_vectors; ++v) {
    for (std::size_t r = 0; r < num_rows; ++r) out[v * out_stride + r] *= scale;
  }
}

}  // namespace moe
