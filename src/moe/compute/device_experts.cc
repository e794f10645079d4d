#include "moe/compute/device_experts.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <utility>

namespace moe {
namespace {

std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

ggml_tensor* NewStack(const gg::Context& context, const ExpertMatrix& matrix, std::size_t count) {
  return ggml_new_tensor_3d(context.get(), static_cast<ggml_type>(matrix.type),
                            Int(matrix.row_width), Int(matrix.num_rows), Int(count));
}

// Whether the device multiplies `num_pairs` vectors with a stack of `count` experts, in both forms
// that DeviceGraph uses.
base::Result<bool> Takes(const gg::Backend& backend, const ExpertMatrix& matrix, std::size_t count,
                         std::size_t num_pairs) {
  auto context = gg::Context::Make(8);
  if (!context) return base::Forward(context);
  ggml_context* ctx = context->get();
  ggml_tensor* stack = NewStack(*context, matrix, count);
  ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend.get());
  if (ggml_backend_buft_get_alloc_size(type, stack) > ggml_backend_buft_get_max_size(type)) {
    return false;
  }
  const std::int64_t width = Int(matrix.row_width);
  const std::int64_t pairs = Int(num_pairs);
  const ggml_tensor* many =
      ggml_mul_mat_id(ctx, stack, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, 1, pairs),
                      ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, pairs));
  const ggml_tensor* one =
      ggml_mul_mat_id(ctx, stack, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, 1, 1),
                      ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 1));
  return ggml_backend_dev_supports_op(backend.device(), many) &&
         ggml_backend_dev_supports_op(backend.device(), one);
}

std::vector<const ExpertMatrix*> MatricesOf(const LayerWeights& weights) {
  std::vector<const ExpertMatrix*> matrices = {&weights.gate};
  if (weights.up) matrices.push_back(&*weights.up);
  matrices.push_back(&weights.down);
  return matrices;
}

// The largest stack that the device takes, found by halving.
base::Result<std::size_t> StackSize(const gg::Backend& backend,
                                    const DeviceExperts::Request& request) {
  std::size_t size = std::min(request.experts.size(), request.max_stack);
  for (const ExpertMatrix* matrix : MatricesOf(*request.weights)) {
    for (;;) {
      auto takes = Takes(backend, *matrix, size, request.max_pairs);
      if (!takes) return base::Forward(takes);
      if (*takes) break;
      if (size == 1) {
        return base::Fail(base::ErrorKind::kUnsupported,
                          "{}: the device cannot multiply with {} (type {}): leave the target out "
                          "or give it =0",
                          request.target, matrix->tensor,
                          ggml_type_name(static_cast<ggml_type>(matrix->type)));
      }
      size = (size + 1) / 2;
    }
  }
  return size;
}

}  // namespace

base::Result<DeviceExperts> DeviceExperts::Upload(const gg::Backend& backend,
                                                  const Request& request) {
  const LayerWeights& weights = *request.weights;
  const std::size_t count = request.experts.size();
  auto size = StackSize(backend, request);
  if (!size) return base::Forward(size);
  auto context = gg::Context::Make(3 * ((count + *size - 1) / *size));
  if (!context) return base::Forward(context);
  std::vector<DeviceStack> stacks;
  for (std::size_t first = 0; first < count; first += *size) {
    DeviceStack stack{.first = first, .count = std::min(*size, count - first)};
    stack.gate = NewStack(*context, weights.gate, stack.count);
    if (weights.up) stack.up = NewStack(*context, *weights.up, stack.count);
    stack.down = NewStack(*context, weights.down, stack.count);
    stacks.push_back(stack);
  }
  auto buffer = request.allocate(*context, ggml_backend_get_default_buffer_type(backend.get()));
  if (!buffer) {
    std::size_t unit_bytes = 0;
    for (const ExpertMatrix* matrix : MatricesOf(weights)) unit_bytes += matrix->expert_bytes;
    return base::Fail(buffer.error().kind, "{}: no room for the {} experts of layer {} ({}): {}",
                      request.target, count, request.layer.index(),
                      base::FormatBytes(base::Bytes(unit_bytes) * count), buffer.error().message);
  }
  ggml_backend_buffer_set_usage(buffer->get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const DeviceStack& stack : stacks) {
    const std::span<const ExpertId> experts = request.experts.subspan(stack.first, stack.count);
    UploadExperts(weights.gate, experts, stack.gate, request.form, request.uploaded);
    if (stack.up != nullptr) {
      UploadExperts(*weights.up, experts, stack.up, request.form, request.uploaded);
    }
    UploadExperts(weights.down, experts, stack.down, request.form, request.uploaded);
  }
  return DeviceExperts(std::move(*context), std::move(*buffer), std::move(stacks));
}

void DeviceExperts::CopyProjection(const LayerWeights& weights, ExpertId expert, std::size_t place,
                                   std::size_t projection) {
  const DeviceStack& stack = stacks_[place / stack_size_];
  std::vector<ggml_tensor*> tensors = {stack.gate};
  if (stack.up != nullptr) tensors.push_back(stack.up);
  tensors.push_back(stack.down);
  const ExpertMatrix& matrix = *MatricesOf(weights)[projection];
  ggml_backend_tensor_set(tensors[projection], matrix.expert(expert),
                          (place - stack.first) * matrix.expert_bytes, matrix.expert_bytes);
}

}  // namespace moe
