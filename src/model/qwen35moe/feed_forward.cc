#include <limits>

#include "model/qwen35moe/graph_parts.h"

namespace model::qwen35moe {
namespace {

// What the router chose for every row.
struct Routing {
  ggml_tensor* ids = nullptr;      // I32 [rows, experts_per_token], best first
  ggml_tensor* weights = nullptr;  // F32 [rows, experts_per_token]
};

// Sums below this are taken as this when weights are normalised (the smallest normal half float).
constexpr float kSmallestWeightSum = 6.103515625e-5F;

// The choice goes where a recording reads it; that costs no more than making it contiguous would.
ggml_tensor* BuildChoice(GraphBuild& build, std::size_t layer, ggml_tensor* probabilities) {
  ggml_context* c = build.context;
  const std::uint32_t num_used = build.hparams().experts_per_token;
  ggml_tensor* line = ggml_view_2d(c, build.routing, num_used, probabilities->ne[1],
                                   num_used * sizeof(std::int32_t), layer * build.routing->nb[1]);
  ggml_tensor* ids =
      ggml_cpy(c, ggml_argsort_top_k(c, probabilities, static_cast<int>(num_used)), line);
  build.on_primary.push_back(ids);
  return ids;
}

Routing BuildRouter(GraphBuild& build, std::size_t layer, ggml_tensor* x) {
  ggml_context* c = build.context;
  const Hparams& h = build.hparams();
  const std::int64_t rows = x->ne[1];
  const Linear& router = build.sources->weights->layers()[layer].router;
  ggml_tensor* probabilities = ggml_soft_max(c, ApplyLinear(build, router, x));
  ggml_tensor* ids = BuildChoice(build, layer, probabilities);
  ggml_tensor* weights =
      ggml_get_rows(c, ggml_reshape_3d(c, probabilities, 1, h.num_experts, rows), ids);
  weights = ggml_reshape_2d(c, weights, h.experts_per_token, rows);
  ggml_tensor* sum = ggml_clamp(c, ggml_sum_rows(c, weights), kSmallestWeightSum,
                                std::numeric_limits<float>::infinity());
  weights = ggml_div(c, weights, sum);
  if (h.expert_weights_scale != 1.0F) weights = ggml_scale(c, weights, h.expert_weights_scale);
  ggml_build_forward_expand(build.graph, weights);
  return {ids, weights};
}

// y * scale[id] for every chosen expert; y is [rows, experts_per_token, width].
ggml_tensor* ApplyExpertScale(ggml_context* c, ggml_tensor* y, ggml_tensor* scale,
                              ggml_tensor* ids) {
  if (scale == nullptr) return y;
  ggml_tensor* flat = ggml_reshape_1d(c, ids, ggml_nelements(ids));
  ggml_tensor* chosen = ggml_get_rows(c, ggml_reshape_2d(c, scale, 1, ggml_nelements(scale)), flat);
  return ggml_mul(c, y, ggml_reshape_3d(c, chosen, 1, ids->ne[0], ids->ne[1]));
}

ggml_tensor* ApplyExperts(ggml_context* c, const Linear& stack, ggml_tensor* x, ggml_tensor* ids) {
  return ApplyExpertScale(c, ggml_mul_mat_id(c, stack.weight, x, ids), stack.scale, ids);
}

// The routed experts on the primary's own stacks.
ggml_tensor* BuildPrimaryExperts(GraphBuild& build, const ExpertWeights& experts, ggml_tensor* x,
                                 const Routing& routing) {
  ggml_context* c = build.context;
  const std::int64_t n_embd = x->ne[0];
  const std::int64_t rows = x->ne[1];
  ggml_tensor* input = ggml_reshape_3d(c, x, n_embd, 1, rows);
  ggml_tensor* hidden = nullptr;
  if (experts.gate_up.weight != nullptr) {
    // The gate's rows come first, as ggml_swiglu wants them.
    hidden = ggml_swiglu(c, ApplyExperts(c, experts.gate_up, input, routing.ids));
  } else {
    hidden = ggml_swiglu_split(c, ApplyExperts(c, experts.gate, input, routing.ids),
                               ApplyExperts(c, experts.up, input, routing.ids));
  }
  ggml_tensor* pairs = ApplyExperts(c, experts.down, hidden, routing.ids);
  pairs = ggml_mul(c, pairs, ggml_reshape_3d(c, routing.weights, 1, routing.weights->ne[0], rows));
  // Added in the router's slot order.
  ggml_tensor* sum = nullptr;
  for (std::int64_t slot = 0; slot < pairs->ne[1]; ++slot) {
    ggml_tensor* part = ggml_view_2d(c, pairs, n_embd, rows, pairs->nb[2],
                                     static_cast<std::size_t>(slot) * pairs->nb[1]);
    sum = sum == nullptr ? part : ggml_add(c, sum, part);
  }
  return pairs->ne[1] == 1 ? ggml_cont(c, sum) : sum;
}

ggml_tensor* BuildSharedExpert(GraphBuild& build, const LayerWeights& weights, ggml_tensor* x) {
  ggml_context* c = build.context;
  const Linear* const inputs[] = {&weights.shared_gate, &weights.shared_up};
  const std::vector<ggml_tensor*> gate_up = ApplyLinears(build, inputs, x);
  ggml_tensor* hidden = ggml_swiglu_split(c, gate_up[0], gate_up[1]);
  ggml_tensor* y = ApplyLinear(build, weights.shared_down, hidden);
  ggml_tensor* gate = ggml_sigmoid(c, ggml_mul_mat(c, weights.shared_router, x));
  return ggml_mul(c, y, gate);
}

}  // namespace

ggml_tensor* BuildFeedForward(GraphBuild& build, std::size_t layer, ggml_tensor* x) {
  ggml_context* c = build.context;
  const LayerWeights& weights = build.sources->weights->layers()[layer];
  const Routing routing = BuildRouter(build, layer, x);
  if (weights.experts) {
    ggml_tensor* routed = BuildPrimaryExperts(build, *weights.experts, x, routing);
    return ggml_add(c, routed, BuildSharedExpert(build, weights, x));
  }
  // The order of the graph: a device primary gets the shared expert after the rows were handed out
  // and computes it while the nodes behind are at work.
  ExpertNodes& nodes = *build.sources->experts;
  const moe::LayerId id(layer);
  const ExpertNodes::Sources sources = {x, routing.ids, routing.weights};
  ggml_tensor* begin = nodes.BuildBegin(c, id, sources, &build.on_cpu);
  ggml_build_forward_expand(build.graph, begin);
  ggml_tensor* shared = BuildSharedExpert(build, weights, x);
  ggml_build_forward_expand(build.graph, shared);
  ggml_tensor* routed = nodes.BuildRest(c, id, sources, begin, &build.on_cpu);
  return ggml_add(c, routed, shared);
}

}  // namespace model::qwen35moe
