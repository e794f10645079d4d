#include "moe/compute/device_graph.h"

#include <array>
#include <utility>
#include <vector>

namespace moe {
namespace {

constexpr std::size_t kGraphSize = 48;
// What devices want of the offsets of a binding, at most.
constexpr std::size_t kInputAlignment = 256;

std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

}  // namespace

// One row is what backends have their fastest form for: its experts are one token's. Of several
// rows every pair is a token with one expert, so that nothing is computed that is not owned.
void DeviceGraph::MakeInputs(const DeviceStack& stack, const DeviceGraphShape& shape) {
  const bool one = shape.num_rows == 1;
  const std::size_t slots = shape.num_rows * shape.num_used;
  const std::size_t pairs = shape.num_pairs;
  struct Part {
    ggml_tensor** tensor;
    ggml_type type;
    std::array<std::size_t, 3> ne;
  };
  std::vector<Part> parts = {{&pair_locals, GGML_TYPE_I32, {one ? pairs : 1, one ? 1 : pairs, 1}},
                             {&slot_pairs, GGML_TYPE_I32, {slots, 1, 1}},
                             {&slot_weights, GGML_TYPE_F32, {1, slots, 1}}};
  if (!one) parts.push_back({&pair_rows, GGML_TYPE_I32, {pairs, 1, 1}});
  if (shape.scales) {
    const Part scales{&gate_scales, GGML_TYPE_F32, {1, one ? pairs : 1, one ? 1 : pairs}};
    parts.push_back(scales);
    if (stack.up != nullptr) parts.push_back({&up_scales, scales.type, scales.ne});
  }
  parts.push_back({&x, GGML_TYPE_F32, {shape.n_embd, shape.num_rows, 1}});

  const auto bytes = [](const Part& part) {
    return part.ne[0] * part.ne[1] * part.ne[2] * sizeof(float);
  };
  const auto aligned = [](std::size_t offset) {
    return (offset + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
  };
  std::size_t end = 0;
  for (const Part& part : parts) end = aligned(end) + bytes(part);
  inputs = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, Int(end / sizeof(float)));
  ggml_set_input(inputs);
  std::size_t offset = 0;
  for (const Part& part : parts) {
    offset = aligned(offset);
    const auto& ne = part.ne;
    *part.tensor = ggml_view_3d(context_.get(), inputs, Int(ne[0]), Int(ne[1]), Int(ne[2]),
                                ne[0] * sizeof(float), ne[0] * ne[1] * sizeof(float), offset);
    // ggml makes no view of another type than its source's; ids are as wide as floats.
    (*part.tensor)->type = part.type;
    offset += bytes(part);
  }
}

// [n_ff, ...] of every pair, in the form of `ids`.
ggml_tensor* DeviceGraph::Hidden(const DeviceStack& stack, const DeviceGraphShape& shape,
                                 ggml_tensor* in, ggml_tensor* ids) {
  ggml_context* ctx = context_.get();
  const auto scaled = [&](ggml_tensor* product, ggml_tensor* scales) {
    return shape.scales ? ggml_mul(ctx, product, scales) : product;
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
  result.MakeInputs(stack, shape);
  const bool one = shape.num_rows == 1;
  ggml_tensor* in = one ? result.x : ggml_get_rows(ctx, result.x, result.pair_rows);
  in = ggml_reshape_3d(ctx, in, Int(shape.n_embd), 1, Int(one ? 1 : shape.num_pairs));
  ggml_tensor* hidden = result.Hidden(stack, shape, in, result.pair_locals);
  ggml_tensor* y = ggml_mul_mat_id(ctx, stack.down, hidden, result.pair_locals);
  y = ggml_reshape_2d(ctx, y, Int(shape.n_embd), Int(shape.num_pairs));
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
