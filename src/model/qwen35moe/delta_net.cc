#include <cmath>

#include "model/qwen35moe/delta_net_nodes.h"
#include "model/qwen35moe/graph_parts.h"

namespace model::qwen35moe {
namespace {

// One slot's rows of every input of the recurrence.
struct DeltaInputs {
  ggml_tensor* query = nullptr;  // [rows, key_heads, state_dim]
  ggml_tensor* key = nullptr;    // [rows, key_heads, state_dim]
  ggml_tensor* value = nullptr;  // [rows, value_heads, state_dim]
  ggml_tensor* decay = nullptr;  // [rows, value_heads, 1], logarithmic
  ggml_tensor* beta = nullptr;   // [rows, value_heads, 1]
};

// `rows` rows of a tensor whose outermost dimension (by index `dim`) is the batch row.
ggml_tensor* Rows(ggml_context* c, ggml_tensor* x, std::size_t first, std::int64_t rows) {
  return ggml_view_3d(c, x, x->ne[0], x->ne[1], rows, x->nb[1], x->nb[2], first * x->nb[2]);
}

// x / sqrt(sum of squares + epsilon) for every head. As an RMS norm, because ggml_l2_norm takes the
// larger of root and epsilon instead.
ggml_tensor* NormalizeHeads(ggml_context* c, ggml_tensor* x, float epsilon) {
  const auto width = static_cast<float>(x->ne[0]);
  return ggml_scale(c, ggml_rms_norm(c, x, epsilon / width), 1.0F / std::sqrt(width));
}

// The causal convolution over one run: window and new inputs in front of each other, a SiLU behind.
// `mixed` is [rows, conv_channels]; the result as well. The window is left at the last inputs.
ggml_tensor* ConvolveRun(GraphBuild& build, const LayerState& state, ggml_tensor* kernel,
                         const SlotRun& run, ggml_tensor* mixed) {
  ggml_context* c = build.context;
  const std::int64_t channels = mixed->ne[0];
  const std::int64_t slots = run.num_slots;
  const std::int64_t rows = run.rows_per_slot;
  ggml_tensor* window =
      ggml_view_3d(c, state.window, state.window->ne[0], channels, slots, state.window->nb[1],
                   state.window->nb[2], state.window->nb[2] * run.first_slot);
  ggml_tensor* inputs = ggml_reshape_3d(c, mixed, channels, rows, slots);
  inputs = ggml_concat(c, window, ggml_transpose(c, inputs), 0);
  ggml_tensor* last = ggml_view_3d(c, inputs, window->ne[0], channels, slots, inputs->nb[1],
                                   inputs->nb[2], static_cast<std::size_t>(rows) * inputs->nb[0]);
  ggml_build_forward_expand(build.graph, ggml_cpy(c, last, window));
  ggml_tensor* convolved = ggml_silu(c, ggml_ssm_conv(c, inputs, kernel));
  return ggml_reshape_2d(c, convolved, channels, rows * slots);
}

// Lays the result of the recurrence over the slot's storage, so that its state part is written
// where it was read. Its outputs go to the scratch in front.
void PlaceOnState(ggml_tensor* result, ggml_tensor* storage, std::size_t state_offset,
                  std::size_t output_bytes) {
  result->view_src = storage;
  result->view_offs = state_offset - output_bytes;
}

// The recurrence over the rows of one slot; the outputs [rows, value_heads * state_dim].
ggml_tensor* StepSlot(GraphBuild& build, const LayerState& state, std::uint32_t slot,
                      const DeltaInputs& in) {
  ggml_context* c = build.context;
  const Hparams& h = build.hparams();
  const std::int64_t width = h.state_dim;
  const std::int64_t heads = h.num_value_heads;
  const std::int64_t rows = in.value->ne[2];
  ggml_tensor* storage = state.delta;
  const std::size_t element = storage->nb[0];
  const std::size_t offset =
      storage->nb[1] * slot + element * static_cast<std::size_t>(build.state().delta_scratch());
  const auto matrix = static_cast<std::size_t>(width * width) * element;
  const auto matrices = [&] {
    return ggml_view_4d(c, storage, width, width, heads, 1,
                        static_cast<std::size_t>(width) * element, matrix,
                        matrix * static_cast<std::size_t>(heads), offset);
  };
  ggml_tensor* result =
      ggml_gated_delta_net(c, in.query, in.key, in.value, in.decay, in.beta, matrices(), 1);
  const auto output_bytes = static_cast<std::size_t>(width * heads * rows) * element;
  if (rows <= std::int64_t{State::kInPlaceRows}) {
    PlaceOnState(result, storage, offset, output_bytes);
  } else {
    ggml_tensor* next =
        ggml_view_4d(c, result, width, width, heads, 1, static_cast<std::size_t>(width) * element,
                     matrix, matrix * static_cast<std::size_t>(heads), output_bytes);
    ggml_build_forward_expand(build.graph, ggml_cpy(c, next, matrices()));
  }
  ggml_build_forward_expand(build.graph, result);
  return ggml_view_2d(c, result, width * heads, rows,
                      static_cast<std::size_t>(width * heads) * element, 0);
}

}  // namespace

ggml_tensor* BuildDeltaNet(GraphBuild& build, std::size_t layer, ggml_tensor* x) {
  ggml_context* c = build.context;
  const Hparams& h = build.hparams();
  const DeltaNetWeights& weights = *build.sources->weights->layers()[layer].delta_net;
  const LayerState& state = build.state().layer(layer);
  const std::int64_t num_rows = x->ne[1];
  const std::int64_t width = h.state_dim;
  const std::int64_t value_heads = h.num_value_heads;

  const Linear* const inputs[] = {&weights.qkv, &weights.gate, &weights.alpha, &weights.beta};
  const std::vector<ggml_tensor*> projected = ApplyLinears(build, inputs, x);
  ggml_tensor* mixed = projected[0];
  ggml_tensor* gate = projected[1];
  if (build.state().size().for_kernels) {
    const auto nodes = std::make_shared<const DeltaNetNodes>(h, weights, state, build.shape->runs);
    build.kept->push_back(nodes);
    return ApplyLinear(
        build, weights.output,
        nodes->Build(c, {.mixed = mixed, .gate = gate, .alpha = projected[2], .beta = projected[3]},
                     &build.on_cpu));
  }
  ggml_tensor* beta = ggml_sigmoid(c, projected[3]);
  beta = ggml_reshape_3d(c, beta, 1, value_heads, num_rows);
  ggml_tensor* decay = ggml_add(c, projected[2], weights.dt_bias);
  decay = ggml_mul(c, ggml_softplus(c, decay), weights.a);
  decay = ggml_reshape_3d(c, decay, 1, value_heads, num_rows);

  std::vector<ggml_tensor*> convolved;
  std::size_t row = 0;
  for (const SlotRun& run : build.shape->runs) {
    ggml_tensor* part =
        ggml_view_2d(c, mixed, mixed->ne[0], static_cast<std::int64_t>(run.num_rows()),
                     mixed->nb[1], row * mixed->nb[1]);
    convolved.push_back(ConvolveRun(build, state, weights.conv, run, part));
    row += run.num_rows();
  }
  ggml_tensor* qkv = JoinRows(build, convolved);
  const auto heads_at = [&](std::int64_t first_channel, std::int64_t heads) {
    return ggml_view_3d(c, qkv, width, heads, num_rows,
                        static_cast<std::size_t>(width) * qkv->nb[0], qkv->nb[1],
                        static_cast<std::size_t>(first_channel) * qkv->nb[0]);
  };
  ggml_tensor* query = NormalizeHeads(c, heads_at(0, h.num_key_heads), h.norm_epsilon);
  ggml_tensor* key = NormalizeHeads(c, heads_at(h.key_dim(), h.num_key_heads), h.norm_epsilon);
  ggml_tensor* value = heads_at(2 * std::int64_t{h.key_dim()}, value_heads);

  std::vector<ggml_tensor*> outputs;
  row = 0;
  for (const SlotRun& run : build.shape->runs) {
    for (std::uint32_t i = 0; i < run.num_slots; ++i) {
      const std::int64_t rows = run.rows_per_slot;
      outputs.push_back(StepSlot(build, state, run.first_slot + i,
                                 {.query = Rows(c, query, row, rows),
                                  .key = Rows(c, key, row, rows),
                                  .value = Rows(c, value, row, rows),
                                  .decay = Rows(c, decay, row, rows),
                                  .beta = Rows(c, beta, row, rows)}));
      row += run.rows_per_slot;
    }
  }
  ggml_tensor* output = JoinRows(build, outputs);
  output = ggml_reshape_3d(c, output, width, value_heads, num_rows);
  output = ApplyNorm(build, output, weights.norm);
  gate = ggml_reshape_3d(c, gate, width, value_heads, num_rows);
  output = ggml_mul(c, output, ggml_silu(c, gate));
  output = ggml_reshape_2d(c, output, width * value_heads, num_rows);
  return ApplyLinear(build, weights.output, output);
}

}  // namespace model::qwen35moe
