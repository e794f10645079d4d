#include "model/qwen35moe/graph.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/qwen35moe/graph_parts.h"
#include "model/qwen35moe/packed_product.h"

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;

// More nodes and leaves than any graph of this shape has.
std::size_t GraphCapacity(const Hparams& hparams, const GraphShape& shape) {
  std::size_t slots = 0;
  for (const SlotRun& run : shape.runs) slots += run.num_slots;
  const std::size_t layer =
      128 + 2 * hparams.experts_per_token + 24 * shape.runs.size() + 24 * slots;
  return 64 + layer * hparams.num_layers;
}

ggml_tensor* NewInput(ggml_context* context, ggml_type type, std::int64_t n0, std::int64_t n1 = 1,
                      std::int64_t n2 = 1, std::int64_t n3 = 1) {
  ggml_tensor* input = ggml_new_tensor_4d(context, type, n0, n1, n2, n3);
  ggml_set_input(input);
  return input;
}

Graph::Inputs NewInputs(ggml_context* context, const GraphShape& shape, std::int64_t cache_width) {
  const auto rows = static_cast<std::int64_t>(shape.num_rows());
  Graph::Inputs inputs;
  inputs.tokens = NewInput(context, GGML_TYPE_I32, rows);
  inputs.positions = NewInput(context, GGML_TYPE_I32, 4 * rows);
  if (shape.num_outputs > 0) inputs.outputs = NewInput(context, GGML_TYPE_I32, shape.num_outputs);
  if (shape.num_cells == 0) return inputs;
  inputs.key_cells = NewInput(context, GGML_TYPE_I64, rows);
  inputs.value_cells = NewInput(context, GGML_TYPE_I64, rows * cache_width);
  for (const SlotRun& run : shape.runs) {
    inputs.masks.push_back(
        NewInput(context, GGML_TYPE_F32, shape.num_cells, run.rows_per_slot, 1, run.num_slots));
  }
  return inputs;
}

// The routers' choices: all layers in one tensor, so that one transfer reads them. Operations on a
// device want the line of a layer aligned. An output: its memory is not used again in the graph.
ggml_tensor* NewRouting(ggml_context* context, const GraphSources& sources, std::size_t num_rows) {
  const std::size_t alignment = ggml_backend_get_alignment(sources.backends.primary());
  const std::size_t used = num_rows * sources.hparams->experts_per_token * sizeof(std::int32_t);
  const std::size_t line = (used + alignment - 1) / alignment * alignment;
  ggml_tensor* routing = ggml_new_tensor_2d(
      context, GGML_TYPE_I32, static_cast<std::int64_t>(line / sizeof(std::int32_t)),
      static_cast<std::int64_t>(sources.weights->layers().size()));
  ggml_set_output(routing);
  // So that the scheduler knows a place for it even where it measures without pinned nodes: what is
  // only seen through views gets none otherwise.
  ggml_set_input(routing);
  return routing;
}

// The logits, or null when no row wants them.
ggml_tensor* BuildNodes(GraphBuild& build) {
  ggml_context* c = build.context;
  const Weights& weights = *build.sources->weights;
  ggml_tensor* hidden = ggml_get_rows(c, weights.token_embedding(), build.inputs->tokens);
  for (std::size_t i = 0; i < weights.layers().size(); ++i) {
    const LayerWeights& layer = weights.layers()[i];
    ggml_tensor* normed = ApplyNorm(build, hidden, layer.attention_norm);
    ggml_tensor* mixed =
        layer.attention ? BuildAttention(build, i, normed) : BuildDeltaNet(build, i, normed);
    hidden = ggml_add(c, mixed, hidden);
    normed = ApplyNorm(build, hidden, layer.ffn_norm);
    hidden = ggml_add(c, BuildFeedForward(build, i, normed), hidden);
  }
  if (build.inputs->outputs == nullptr) {
    // The last layer's state is all that is wanted.
    ggml_build_forward_expand(build.graph, hidden);
    return nullptr;
  }
  hidden = ggml_get_rows(c, hidden, build.inputs->outputs);
  hidden = ApplyNorm(build, hidden, weights.output_norm());
  ggml_tensor* logits = ApplyLinear(build, weights.output(), hidden);
  ggml_set_output(logits);
  ggml_build_forward_expand(build.graph, logits);
  return logits;
}

// The products of those matrices that are packed, null for the others. Matrices whose activations
// are quantised alike share a product.
std::vector<ggml_tensor*> MultiplyPacked(GraphBuild& build, std::span<const Linear* const> linears,
                                         ggml_tensor* x) {
  std::vector<ggml_tensor*> results(linears.size(), nullptr);
  std::vector<const PackedLinear*> packed;
  for (const Linear* linear : linears) packed.push_back(build.sources->weights->packed(*linear));
  for (std::size_t first = 0; first < packed.size(); ++first) {
    if (packed[first] == nullptr || results[first] != nullptr) continue;
    std::vector<std::size_t> members;
    std::vector<const PackedLinear*> matrices;
    std::string name;
    for (std::size_t i = first; i < packed.size(); ++i) {
      if (packed[i] == nullptr || !packed[i]->kernel.SameActivations(packed[first]->kernel)) {
        continue;
      }
      members.push_back(i);
      matrices.push_back(packed[i]);
      name += (name.empty() ? "" : " ") + WeightKind(linears[i]->weight->name);
    }
    const auto product =
        std::make_shared<const PackedProduct>(std::move(matrices), std::move(name));
    build.kept->push_back(product);
    const std::vector<ggml_tensor*> products = product->Build(build.context, x, &build.on_cpu);
    for (std::size_t m = 0; m < members.size(); ++m) results[members[m]] = products[m];
  }
  return results;
}

template <class T>
void Set(ggml_tensor* input, const std::vector<T>& values) {
  // Absent from the graph (no attention layer, no outputs): no memory either.
  if (input == nullptr || input->buffer == nullptr) return;
  ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(T));
}

}  // namespace

std::vector<ggml_tensor*> ApplyLinears(GraphBuild& build, std::span<const Linear* const> linears,
                                       ggml_tensor* x) {
  ggml_context* c = build.context;
  std::vector<ggml_tensor*> results = MultiplyPacked(build, linears, x);
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const Linear& linear = *linears[i];
    ggml_tensor*& y = results[i];
    if (y == nullptr) y = ggml_mul_mat(c, linear.weight, x);
    if (linear.scale != nullptr) y = ggml_mul(c, y, linear.scale);
    if (linear.bias != nullptr) y = ggml_add(c, y, linear.bias);
  }
  return results;
}

ggml_tensor* ApplyLinear(GraphBuild& build, const Linear& linear, ggml_tensor* x) {
  const Linear* const one[] = {&linear};
  return ApplyLinears(build, one, x).front();
}

ggml_tensor* ApplyNorm(GraphBuild& build, ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(build.context, ggml_rms_norm(build.context, x, build.hparams().norm_epsilon),
                  weight);
}

ggml_tensor* JoinRows(GraphBuild& build, const std::vector<ggml_tensor*>& parts) {
  ggml_tensor* joined = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    joined = ggml_concat(build.context, joined, parts[i], 1);
  }
  return joined;
}

Graph::Pinned Graph::MakeNodes(const GraphSources& sources, const GraphShape& shape) {
  const Hparams& hparams = *sources.hparams;
  shape_ = shape;
  cells_per_slot_ = sources.state->size().cells_per_slot;
  cache_width_ = std::int64_t{hparams.num_kv_heads} * hparams.head_dim;
  const std::size_t capacity = GraphCapacity(hparams, shape);
  // A view or input is a tensor without being a node: twice the nodes is ample.
  context_.reset(ggml_init({.mem_size = 2 * capacity * ggml_tensor_overhead() +
                                        ggml_graph_overhead_custom(capacity, false),
                            .mem_buffer = nullptr,
                            .no_alloc = true}));
  graph_ = ggml_new_graph_custom(context_.get(), capacity, false);
  inputs_ = NewInputs(context_.get(), shape, cache_width_);
  routing_ = NewRouting(context_.get(), sources, shape.num_rows());
  GraphBuild build{.context = context_.get(),
                   .graph = graph_,
                   .shape = &shape_,
                   .sources = &sources,
                   .inputs = &inputs_,
                   .on_cpu = {},
                   .on_primary = {routing_},
                   .routing = routing_,
                   .kept = &kept_};
  logits_ = BuildNodes(build);
  return {std::move(build.on_cpu), std::move(build.on_primary)};
}

void Graph::Prepare(const GraphSources& sources, const GraphShape& shape) {
  const Pinned pinned = MakeNodes(sources, shape);
  std::vector<ggml_backend_t> backends = sources.backends.list;
  scheduler_.reset(ggml_backend_sched_new(
      backends.data(), nullptr, static_cast<int>(backends.size()),
      GraphCapacity(*sources.hparams, shape), /*parallel=*/false, /*op_offload=*/false));
  for (ggml_tensor* node : pinned.on_cpu) {
    ggml_backend_sched_set_tensor_backend(scheduler_.get(), node, sources.backends.cpu());
  }
  for (ggml_tensor* node : pinned.on_primary) {
    ggml_backend_sched_set_tensor_backend(scheduler_.get(), node, sources.backends.primary());
  }
}

base::Result<std::unique_ptr<Graph>> Graph::Build(const GraphSources& sources,
                                                  const GraphShape& shape) {
  std::unique_ptr<Graph> graph(new Graph());
  graph->Prepare(sources, shape);
  if (!ggml_backend_sched_alloc_graph(graph->scheduler_.get(), graph->graph_)) {
    return Fail(ErrorKind::kCapacity,
                "no memory for the compute buffers of a batch of {} rows over {} cells; use a "
                "smaller --batch or --ctx",
                shape.num_rows(), shape.num_cells);
  }
  return graph;
}

std::string Graph::FirstRefusal(const GraphSources& sources, const GraphShape& shape,
                                ggml_backend_dev_t device) {
  Graph graph;
  static_cast<void>(graph.MakeNodes(sources, shape));
  const auto is_state = [&](const ggml_tensor* tensor) {
    if (tensor == nullptr) return false;
    return sources.state->Holds(tensor->view_src != nullptr ? tensor->view_src : tensor);
  };
  for (int i = 0; i < ggml_graph_n_nodes(graph.graph_); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph.graph_, i);
    const bool touches = is_state(node) || std::ranges::any_of(node->src, is_state);
    if (touches && !ggml_backend_dev_supports_op(device, node)) return ggml_op_desc(node);
  }
  return "";
}

base::Bytes Graph::RequiredCpuBytes(const GraphSources& sources, const GraphShape& shape) {
  Graph graph;
  graph.Prepare(sources, shape);
  std::vector<std::size_t> sizes(sources.backends.list.size());
  ggml_backend_sched_reserve_size(graph.scheduler_.get(), graph.graph_, sizes.data());
  return base::Bytes(sizes.back());
}

base::Result<void> Graph::Run(std::span<const BatchRow> rows, const BatchLayout& layout,
                              std::span<float> logits, std::span<std::int32_t> routing,
                              NodeTimer* timer) {
  SetInputs(rows, layout);
  if (timer != nullptr) timer->Attach(scheduler_.get());
  const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), graph_);
  if (timer != nullptr) NodeTimer::Detach(scheduler_.get());
  if (status == GGML_STATUS_ABORTED) return Fail(ErrorKind::kCancelled, "stopped");
  if (status != GGML_STATUS_SUCCESS) {
    return Fail(ErrorKind::kDeviceFailure, "computing a batch failed: {}",
                ggml_status_to_string(status));
  }
  if (logits_ != nullptr) {
    ggml_backend_tensor_get(logits_, logits.data(), 0, logits.size_bytes());
  }
  if (!routing.empty()) {
    ggml_backend_tensor_get(routing_, routing.data(), 0, routing.size_bytes());
  }
  return {};
}

void Graph::SetInputs(std::span<const BatchRow> rows, const BatchLayout& layout) {
  const std::size_t count = rows.size();
  std::vector<std::int32_t> tokens(count);
  // Text has one position for the sections of time, height and width; the fourth is unused.
  std::vector<std::int32_t> positions(4 * count, 0);
  for (std::size_t at = 0; at < count; ++at) {
    const BatchRow& row = rows[layout.order[at]];
    tokens[at] = row.token;
    for (std::size_t section = 0; section < 3; ++section) {
      positions[section * count + at] = static_cast<std::int32_t>(row.position);
    }
  }
  Set(inputs_.tokens, tokens);
  Set(inputs_.positions, positions);
  Set(inputs_.outputs, layout.outputs);
  if (shape_.num_cells != 0) SetCells(rows, layout);
}

void Graph::SetCells(std::span<const BatchRow> rows, const BatchLayout& layout) {
  const std::size_t count = rows.size();
  std::vector<std::int64_t> key_cells(count);
  std::vector<std::int64_t> value_cells;
  value_cells.reserve(count * static_cast<std::size_t>(cache_width_));
  for (std::size_t at = 0; at < count; ++at) {
    const BatchRow& row = rows[layout.order[at]];
    key_cells[at] = row.slot * cells_per_slot_ + row.position;
    const std::int64_t first = row.slot * cells_per_slot_ * cache_width_ + row.position;
    for (std::int64_t element = 0; element < cache_width_; ++element) {
      value_cells.push_back(first + element * cells_per_slot_);
    }
  }
  Set(inputs_.key_cells, key_cells);
  Set(inputs_.value_cells, value_cells);

  std::size_t at = 0;
  for (std::size_t i = 0; i < shape_.runs.size(); ++i) {
    const std::size_t cells = shape_.num_cells;
    const std::size_t run_rows = shape_.runs[i].num_rows();
    std::vector<float> mask(cells * run_rows, -std::numeric_limits<float>::infinity());
    for (std::size_t row = 0; row < run_rows; ++row) {
      const std::size_t visible = rows[layout.order[at + row]].position + std::size_t{1};
      std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * cells), visible, 0.0F);
    }
    Set(inputs_.masks[i], mask);
    at += run_rows;
  }
}

base::Bytes Graph::buffer_bytes() const {
  base::Bytes total;
  for (int i = 0; i < ggml_backend_sched_get_n_backends(scheduler_.get()); ++i) {
    ggml_backend_t backend = ggml_backend_sched_get_backend(scheduler_.get(), i);
    total += base::Bytes(ggml_backend_sched_get_buffer_size(scheduler_.get(), backend));
  }
  return total;
}

}  // namespace model::qwen35moe
