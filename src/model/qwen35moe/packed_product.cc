#include "model/qwen35moe/packed_product.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

using kernels::MatrixKernel;

// Stack that a thread may use for rows that it quantises for itself.
constexpr std::size_t kScratchBytes = std::size_t{64} << 10;

// A part of `count` things, the parts being as equal as can be.
std::pair<std::size_t, std::size_t> Part(std::size_t count, std::size_t part,
                                         std::size_t num_parts) {
  return {count * part / num_parts, count * (part + 1) / num_parts};
}

const float* Row(const ggml_tensor* x, std::size_t row) {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(x->data) + row * x->nb[1]);
}

// Quantises rows [first, end) of `x` to `rows` and makes one panel of them.
void QuantizePanel(const MatrixKernel& kernel, const ggml_tensor* x, std::size_t first,
                   std::size_t end, std::byte* rows, std::byte* panel) {
  std::array<const std::byte*, kernels::kMaxPanelRows> quantized;
  for (std::size_t row = first; row < end; ++row) {
    std::byte* out = rows + (row - first) * kernel.quantized_bytes();
    kernel.QuantizeRow(Row(x, row), out);
    quantized[row - first] = out;
  }
  kernel.BuildPanels(quantized.data(), end - first, panel);
}

}  // namespace

PackedProduct::PackedProduct(std::vector<const PackedLinear*> matrices, std::string name)
    : matrices_(std::move(matrices)), name_(std::move(name)) {
  ES_CHECK(!matrices_.empty());
  for (const PackedLinear* matrix : matrices_) {
    ES_CHECK(matrix->kernel.SameActivations(kernel()));
    num_outputs_ += matrix->num_outputs;
    packed_bytes_ += matrix->bytes();
  }
}

bool PackedProduct::QuantizesInside(std::size_t num_rows) const {
  // A row's panel is the quantised row itself.
  const std::size_t rows = num_rows == 1 ? 1 : 2 * num_rows;
  return kernel().NumPanels(num_rows) == 1 && rows * kernel().quantized_bytes() <= kScratchBytes;
}

std::vector<ggml_tensor*> PackedProduct::Build(ggml_context* context, ggml_tensor* x,
                                               std::vector<ggml_tensor*>* on_cpu) const {
  ES_CHECK(x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[2] == 1 && x->ne[3] == 1);
  ES_CHECK(x->ne[0] == static_cast<std::int64_t>(kernel().row_width()));
  void* self = const_cast<PackedProduct*>(this);  // ggml passes a mutable pointer
  const std::int64_t num_rows = x->ne[1];
  const auto rows = static_cast<std::size_t>(num_rows);
  if (!QuantizesInside(rows)) {
    // Panels in front, quantised rows behind.
    x = ggml_custom_4d(context, GGML_TYPE_I8,
                       static_cast<std::int64_t>(2 * kernel().PanelBytes(rows)), 1, 1, 1, &x, 1,
                       &PackedProduct::RunQuantize, GGML_N_TASKS_MAX, self);
    ggml_set_name(x, ("quantize for " + name_).c_str());
    on_cpu->push_back(x);
  }
  const bool one = matrices_.size() == 1;
  const auto outputs = static_cast<std::int64_t>(num_outputs_);
  ggml_tensor* result =
      ggml_custom_4d(context, GGML_TYPE_F32, one ? outputs : outputs * num_rows, one ? num_rows : 1,
                     1, 1, &x, 1, &PackedProduct::RunMultiply, GGML_N_TASKS_MAX, self);
  ggml_set_name(result, ("packed " + name_).c_str());
  on_cpu->push_back(result);
  if (one) return {result};
  std::vector<ggml_tensor*> products;
  std::size_t offset = 0;
  for (const PackedLinear* matrix : matrices_) {
    const std::size_t row_bytes = matrix->num_outputs * sizeof(float);
    products.push_back(ggml_view_2d(context, result, static_cast<std::int64_t>(matrix->num_outputs),
                                    num_rows, row_bytes, offset));
    offset += row_bytes * rows;
  }
  return products;
}

void PackedProduct::RunQuantize(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& product = *static_cast<const PackedProduct*>(self);
  const ggml_tensor* x = result->src[0];
  const auto num_rows = static_cast<std::size_t>(x->ne[1]);
  const std::size_t row_bytes = product.kernel().quantized_bytes();
  auto* panels = static_cast<std::byte*>(result->data);
  std::byte* rows = panels + product.kernel().PanelBytes(num_rows);
  const std::size_t num_panels = product.kernel().NumPanels(num_rows);
  const auto [begin, end] =
      Part(num_panels, static_cast<std::size_t>(thread), static_cast<std::size_t>(num_threads));
  for (std::size_t panel = begin; panel < end; ++panel) {
    const auto [first, last] = product.kernel().PanelRows(num_rows, panel);
    QuantizePanel(product.kernel(), x, first, last, rows + first * row_bytes,
                  panels + first * row_bytes);
  }
}

void PackedProduct::RunMultiply(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& product = *static_cast<const PackedProduct*>(self);
  const ggml_tensor* source = result->src[0];
  const std::size_t num_rows =
      static_cast<std::size_t>(ggml_nelements(result)) / product.num_outputs_;
  const auto [begin, end] = Part(product.packed_bytes_, static_cast<std::size_t>(thread),
                                 static_cast<std::size_t>(num_threads));
  auto* out = static_cast<float*>(result->data);
  if (!product.QuantizesInside(num_rows)) {
    product.Multiply(static_cast<const std::byte*>(source->data), num_rows, begin, end, out);
    return;
  }
  alignas(kernels::kAlignment) std::byte scratch[kScratchBytes];
  const MatrixKernel& kernel = product.kernel();
  if (num_rows == 1) {
    kernel.QuantizeRow(Row(source, 0), scratch);
  } else {
    QuantizePanel(kernel, source, 0, num_rows, scratch + kernel.PanelBytes(num_rows), scratch);
  }
  product.Multiply(scratch, num_rows, begin, end, out);
}

// Computes the strips that start in [first_byte, end_byte) of all packed bytes.
void PackedProduct::Multiply(const std::byte* panels, std::size_t num_rows, std::size_t first_byte,
                             std::size_t end_byte, float* out) const {
  std::size_t offset = 0;
  for (const PackedLinear* matrix : matrices_) {
    const MatrixKernel& kernel = matrix->kernel;
    const auto strip_at = [&](std::size_t byte) {
      if (byte <= offset) return std::size_t{0};
      return std::min(matrix->num_strips(),
                      (byte - offset + kernel.strip_bytes() - 1) / kernel.strip_bytes());
    };
    const std::size_t strip = strip_at(first_byte);
    const std::size_t end_strip = strip_at(end_byte);
    if (matrix->packed != nullptr) {
      kernel.Multiply(matrix->packed, matrix->num_outputs, strip, end_strip, panels, num_rows, out,
                      matrix->num_outputs);
    } else {
      kernel.MultiplyFile(matrix->file, matrix->num_outputs, strip, end_strip, panels, num_rows,
                          out, matrix->num_outputs);
    }
    offset += matrix->bytes();
    out += matrix->num_outputs * num_rows;
  }
}

}  // namespace model::qwen35moe
