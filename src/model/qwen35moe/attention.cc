#include <algorithm>
#include <array>

#include "model/qwen35moe/attention_nodes.h"
#include "model/qwen35moe/graph_parts.h"

namespace model::qwen35moe {
namespace {

ggml_tensor* Rotate(GraphBuild& build, ggml_tensor* heads) {
  const RopeParameters& rope = build.hparams().rope;
  std::array<int, GGML_MROPE_SECTIONS> sections{};
  std::ranges::copy(rope.sections, sections.begin());
  return ggml_rope_multi(build.context, heads, build.inputs->positions, nullptr,
                         static_cast<int>(rope.num_dims), sections.data(), GGML_ROPE_TYPE_IMROPE,
                         static_cast<int>(rope.original_context), rope.freq_base, rope.freq_scale,
                         rope.ext_factor, rope.attn_factor, rope.beta_fast, rope.beta_slow);
}

// Appends the rows' keys and values to the cache; the graph order puts this before every read.
void StoreKeysAndValues(GraphBuild& build, const LayerState& state, ggml_tensor* keys,
                        ggml_tensor* values) {
  ggml_context* c = build.context;
  const std::int64_t width = state.keys->ne[0];
  const std::int64_t rows = keys->ne[2];
  ggml_build_forward_expand(
      build.graph,
      ggml_set_rows(c, state.keys, ggml_reshape_2d(c, keys, width, rows), build.inputs->key_cells));
  // Values lie transposed: every element is a row of its own.
  ggml_tensor* elements = ggml_reshape_2d(c, state.values, 1, ggml_nelements(state.values));
  ggml_build_forward_expand(build.graph,
                            ggml_set_rows(c, elements, ggml_reshape_2d(c, values, 1, width * rows),
                                          build.inputs->value_cells));
}

// Attention of one run: `queries` [rows, heads, head_dim] to [rows, heads * head_dim]. No flash
// attention: on the CPU that changes kernel with the number of rows, and with it the bits.
ggml_tensor* AttendRun(GraphBuild& build, const LayerState& state, const SlotRun& run,
                       ggml_tensor* mask, ggml_tensor* queries) {
  ggml_context* c = build.context;
  const Hparams& h = build.hparams();
  const std::int64_t head_dim = h.head_dim;
  const std::int64_t slots = run.num_slots;
  const std::int64_t rows = run.rows_per_slot;
  const std::int64_t cells = build.shape->num_cells;
  const std::size_t slot_keys = state.keys->nb[1] * build.state().size().cells_per_slot;
  const auto head_width = static_cast<std::size_t>(head_dim);

  ggml_tensor* q = ggml_reshape_4d(c, queries, head_dim, h.num_heads, rows, slots);
  q = ggml_permute(c, q, 0, 2, 1, 3);
  ggml_tensor* k =
      ggml_view_4d(c, state.keys, head_dim, cells, h.num_kv_heads, slots, state.keys->nb[1],
                   head_width * state.keys->nb[0], slot_keys, slot_keys * run.first_slot);
  ggml_tensor* scores = ggml_mul_mat(c, k, q);
  static_cast<void>(ggml_prec_set_acc(scores, GGML_PREC_F32));
  scores = ggml_soft_max_ext(c, scores, mask, h.attention_scale, 0.0F);
  ggml_tensor* v = ggml_view_4d(c, state.values, cells, head_dim, h.num_kv_heads, slots,
                                state.values->nb[1], head_width * state.values->nb[1],
                                state.values->nb[2], state.values->nb[2] * run.first_slot);
  ggml_tensor* mixed = ggml_permute(c, ggml_mul_mat(c, v, scores), 0, 2, 1, 3);
  return ggml_cont_2d(c, mixed, head_dim * h.num_heads, rows * slots);
}

}  // namespace

ggml_tensor* BuildAttention(GraphBuild& build, std::size_t layer, ggml_tensor* x) {
  ggml_context* c = build.context;
  const Hparams& h = build.hparams();
  const AttentionWeights& weights = *build.sources->weights->layers()[layer].attention;
  const LayerState& state = build.state().layer(layer);
  const std::int64_t head_dim = h.head_dim;
  const std::int64_t num_rows = x->ne[1];

  // A head's query and gate lie side by side.
  const Linear* const inputs[] = {&weights.query_gate, &weights.key, &weights.value};
  const std::vector<ggml_tensor*> projected = ApplyLinears(build, inputs, x);
  ggml_tensor* both = projected[0];
  const std::size_t head_bytes = both->nb[0] * static_cast<std::size_t>(head_dim);
  const auto half = [&](std::size_t offset) {
    return ggml_view_3d(c, both, head_dim, h.num_heads, num_rows, 2 * head_bytes, both->nb[1],
                        offset);
  };
  ggml_tensor* queries = ApplyNorm(build, half(0), weights.query_norm);

  ggml_tensor* keys = ggml_reshape_3d(c, projected[1], head_dim, h.num_kv_heads, num_rows);
  keys = ApplyNorm(build, keys, weights.key_norm);
  queries = Rotate(build, queries);
  if (build.state().size().for_kernels) {
    const auto nodes =
        std::make_shared<const AttentionNodes>(h, build.state(), layer, build.shape->runs);
    build.kept->push_back(nodes);
    return ApplyLinear(build, weights.output,
                       nodes->Build(c,
                                    {.queries = queries,
                                     .keys = Rotate(build, keys),
                                     .values = projected[2],
                                     .gate = half(head_bytes),
                                     .positions = build.inputs->positions},
                                    &build.on_cpu));
  }
  StoreKeysAndValues(build, state, Rotate(build, keys), projected[2]);

  std::vector<ggml_tensor*> parts;
  std::size_t row = 0;
  for (std::size_t i = 0; i < build.shape->runs.size(); ++i) {
    const SlotRun& run = build.shape->runs[i];
    ggml_tensor* part =
        ggml_view_3d(c, queries, head_dim, h.num_heads, static_cast<std::int64_t>(run.num_rows()),
                     queries->nb[1], queries->nb[2], row * queries->nb[2]);
    parts.push_back(AttendRun(build, state, run, build.inputs->masks[i], part));
    row += run.num_rows();
  }
  ggml_tensor* gate = ggml_cont_2d(c, half(head_bytes), head_dim * h.num_heads, num_rows);
  ggml_tensor* mixed = ggml_mul(c, JoinRows(build, parts), ggml_sigmoid(c, gate));
  return ApplyLinear(build, weights.output, mixed);
}

}  // namespace model::qwen35moe
