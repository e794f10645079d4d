#include "moe/compute/device_graph.h"

#include <utility>

namespace moe {
namespace {

constexpr std::size_t kGraphSize = 48;

std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

}  // namespace

ggml_tensor* DeviceGraph::Input(ggml_type type, std::size_t ne0, std::size_t ne1, std::size_t ne2) {
  ggml_tensor* tensor = ggml_new_tensor_3d(context_.get(), type, Int(ne0), Int(ne1), Int(ne2));
  ggml_set_input(tensor);
  return tensor;
}

// [n_ff, ...] of every pair, in the form of `ids`.
ggml_tensor* DeviceGraph::Hidden(const DeviceStack& stack, const DeviceGraphShape& shape,
                                 ggml_tensor* in, ggml_tensor* ids) {
  ggml_context* ctx = context_.get();
  const auto scaled = [&](ggml_tensor* product, ggml_tensor*& scales) {
    if (!shape.scales) return product;
    scales = Input(GGML_TYPE_F32, 1, static_cast<std::size_t>(product->ne[1]),
                   static_cast<std::size_t>(product->ne[2]));
    return ggml_mul(ctx, product, scales);
  };
  ggml_tensor* gate = scaled(ggml_mul_mat_id(ctx, stack.gate, in, ids), gate_scales);
  if (stack.up == nullptr) return ggml_swiglu(ctx, gate);
  return ggml_swiglu_split(ctx, gate, scaled(ggml_mul_mat_id(ctx, stack.up, in, ids), up_scales));
}

base::Result<DeviceGraph> DeviceGraph::Build(const DeviceStack& stack,
                                             const DeviceGraphShape& shape) {
  auto context = gg::Context::Make(kGraphSize, kGraphSize);
  if (!context) return base::Forward(context);
  DeviceGraph result(std::move(*context));
  ggml_context* ctx = result.context_.get();
  const std::size_t slots = shape.num_rows * shape.num_used;
  result.x = result.Input(GGML_TYPE_F32, shape.n_embd, shape.num_rows);
  // One row is what backends have their fastest form for: its experts are one token's. Of several
  // rows every pair is a token with one expert, so that nothing is computed that is not owned.
  const bool one = shape.num_rows == 1;
  result.pair_locals =
      result.Input(GGML_TYPE_I32, one ? shape.num_pairs : 1, one ? 1 : shape.num_pairs);
  ggml_tensor* in = result.x;
  if (!one) {
    result.pair_rows = result.Input(GGML_TYPE_I32, shape.num_pairs);
    in = ggml_get_rows(ctx, result.x, result.pair_rows);
  }
  in = ggml_reshape_3d(ctx, in, Int(shape.n_embd), 1, Int(one ? 1 : shape.num_pairs));
  ggml_tensor* hidden = result.Hidden(stack, shape, in, result.pair_locals);
  ggml_tensor* y = ggml_mul_mat_id(ctx, stack.down, hidden, result.pair_locals);
  y = ggml_reshape_2d(ctx, y, Int(shape.n_embd), Int(shape.num_pairs));
  result.slot_pairs = result.Input(GGML_TYPE_I32, slots);
  result.slot_weights = result.Input(GGML_TYPE_F32, 1, slots);
  y = ggml_mul(ctx, ggml_get_rows(ctx, y, result.slot_pairs), result.slot_weights);
  y = ggml_reshape_3d(ctx, y, Int(shape.n_embd), Int(shape.num_used), Int(shape.num_rows));
  y = ggml_cont(ctx, ggml_permute(ctx, y, 1, 0, 2, 3));
  result.sums = ggml_sum_rows(ctx, y);
  ggml_set_output(result.sums);
  result.graph_ = result.context_.NewGraph(kGraphSize);
  ggml_build_forward_expand(result.graph_, result.sums);
  return result;
}

const ggml_tensor* DeviceGraph::Unsupported(ggml_backend_dev_t device) const {
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph_, i);
    if (!ggml_backend_dev_supports_op(device, node)) return node;
  }
  return nullptr;
}

}  // namespace moe
