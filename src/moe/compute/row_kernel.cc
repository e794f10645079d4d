#include "moe/compute/row_kernel.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace moe {
namespace {

// Vectors whose sums MultiplyDecoded keeps while a row passes.
constexpr std::size_t kVectorTile = 32;
// Elements decoded at a time; a multiple of every type's block.
constexpr std::size_t kDecoded = 256;

}  // namespace

base::Result<RowKernel> RowKernel::Make(const gg::CpuTraits& traits, int type,
                                        std::size_t row_width, std::string_view tensor) {
  auto type_traits = traits.Of(type);
  if (!type_traits) {
    return base::Fail(type_traits.error().kind, "{}: {}", tensor, type_traits.error().message);
  }
  RowKernel kernel;
  kernel.traits_ = *type_traits;
  const std::size_t block = std::max(kernel.traits_.block, kernel.traits_.dot_block);
  if (row_width == 0 || row_width % kernel.traits_.block != 0 ||
      row_width % kernel.traits_.dot_block != 0 || kDecoded % kernel.traits_.block != 0 ||
      row_width > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "{}: rows of {} elements are no multiple of the type's block of {}: quantise "
                      "this tensor to a type with smaller blocks",
                      tensor, row_width, block);
  }
  kernel.row_width_ = row_width;
  kernel.row_bytes_ = row_width / kernel.traits_.block * kernel.traits_.block_bytes;
  kernel.multiply_ = kernel.traits_.vec_dot != nullptr ? MultiplyByDots : MultiplyDecoded;
  kernel.k_quant_dots_ = FindKQuantDots(kernel.traits_);
  if (kernel.k_quant_dots_ != nullptr) kernel.multiply_ = MultiplyKQuants;
  return kernel;
}

void RowKernel::Convert(const float* in, std::byte* out, std::size_t n) const {
  if (takes_floats()) {
    std::memcpy(out, in, n * sizeof(float));
  } else {
    traits_.from_float(in, out, static_cast<std::int64_t>(n));
  }
}

void RowKernel::MultiplyByDots(const RowKernel& kernel, const std::byte* rows, std::size_t num_rows,
                               const std::byte* const* vectors, std::size_t num_vectors, float* out,
                               std::size_t out_stride) {
  const auto vec_dot = kernel.traits_.vec_dot;
  const int n = static_cast<int>(kernel.row_width_);
  for (std::size_t v = 0; v < num_vectors; ++v) {
    const std::byte* row = rows;
    float* dots = out + v * out_stride;
    for (std::size_t r = 0; r < num_rows; ++r, row += kernel.row_bytes_) {
      vec_dot(n, dots + r, 0, row, 0, vectors[v], 0, 1);
    }
  }
}

void RowKernel::MultiplyKQuants(const RowKernel& kernel, const std::byte* rows,
                                std::size_t num_rows, const std::byte* const* vectors,
                                std::size_t num_vectors, float* out, std::size_t out_stride) {
  kernel.k_quant_dots_(kernel.row_width_, rows, num_rows, vectors, num_vectors, out, out_stride);
}

void RowKernel::MultiplyDecoded(const RowKernel& kernel, const std::byte* rows,
                                std::size_t num_rows, const std::byte* const* vectors,
                                std::size_t num_vectors, float* out, std::size_t out_stride) {
  const gg::CpuTypeTraits& traits = kernel.traits_;
  for (std::size_t first = 0; first < num_vectors; first += kVectorTile) {
    const std::size_t count = std::min(kVectorTile, num_vectors - first);
    for (std::size_t r = 0; r < num_rows; ++r) {
      const std::byte* row = rows + r * kernel.row_bytes_;
      double sums[kVectorTile] = {};
      for (std::size_t at = 0; at < kernel.row_width_; at += kDecoded) {
        const std::size_t n = std::min(kDecoded, kernel.row_width_ - at);
        const std::byte* encoded = row + at / traits.block * traits.block_bytes;
        float weights[kDecoded];
        if (traits.to_float == nullptr) {
          std::memcpy(weights, encoded, n * sizeof(float));
        } else {
          traits.to_float(encoded, weights, static_cast<std::int64_t>(n));
        }
        for (std::size_t v = 0; v < count; ++v) {
          const float* vector = reinterpret_cast<const float*>(vectors[first + v]) + at;
          double sum = 0;
          for (std::size_t i = 0; i < n; ++i) {
            sum += static_cast<double>(weights[i]) * static_cast<double>(vector[i]);
          }
          sums[v] += sum;
        }
      }
      for (std::size_t v = 0; v < count; ++v) {
        out[(first + v) * out_stride + r] = static_cast<float>(sums[v]);
      }
    }
  }
}

}  // namespace moe
