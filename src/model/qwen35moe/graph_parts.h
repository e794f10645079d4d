// The parts a graph is put together from. Each appends nodes to `build.graph` and returns the
// part's result. Shapes are [outer, ..., inner]; every hidden tensor is [rows, n_embd].
#pragma once

#include <ggml.h>

#include <memory>
#include <span>
#include <vector>

#include "model/qwen35moe/graph.h"

namespace model::qwen35moe {

struct GraphBuild {
  ggml_context* context = nullptr;
  ggml_cgraph* graph = nullptr;
  const GraphShape* shape = nullptr;
  const GraphSources* sources = nullptr;
  const Graph::Inputs* inputs = nullptr;
  // Nodes that must run on the CPU whatever the scheduler thinks.
  std::vector<ggml_tensor*> on_cpu;
  // The same for the primary.
  std::vector<ggml_tensor*> on_primary;
  // Where each layer's router leaves its choice: I32 [num_layers, line], a line beginning with
  // [rows, experts_per_token] ids.
  ggml_tensor* routing = nullptr;
  // What nodes of the graph refer to; it lives as long as the graph.
  std::vector<std::shared_ptr<const void>>* kept = nullptr;

  const Hparams& hparams() const { return *sources->hparams; }
  const State& state() const { return *sources->state; }
};

// (W x) * scale + bias
ggml_tensor* ApplyLinear(GraphBuild& build, const Linear& linear, ggml_tensor* x);
// The same for several W of one x, in their order: cheaper than one by one.
std::vector<ggml_tensor*> ApplyLinears(GraphBuild& build, std::span<const Linear* const> linears,
                                       ggml_tensor* x);
// RMS norm over the innermost dimension, times `weight`.
ggml_tensor* ApplyNorm(GraphBuild& build, ggml_tensor* x, ggml_tensor* weight);
// The parts one after the other along the outer dimension of a two-dimensional result.
ggml_tensor* JoinRows(GraphBuild& build, const std::vector<ggml_tensor*>& parts);

// Full attention with output gate over the cache of `layer`; appends the rows to the cache.
ggml_tensor* BuildAttention(GraphBuild& build, std::size_t layer, ggml_tensor* x);
// Gated DeltaNet; advances the state of `layer`.
ggml_tensor* BuildDeltaNet(GraphBuild& build, std::size_t layer, ggml_tensor* x);
// Router, routed experts and shared expert.
ggml_tensor* BuildFeedForward(GraphBuild& build, std::size_t layer, ggml_tensor* x);

}  // namespace model::qwen35moe
