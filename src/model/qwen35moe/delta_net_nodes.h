// Graph nodes that run a DeltaNet layer's convolution and delta rule with the CPU's own kernels
// (kernels/delta_net.h), on the state in place.
//
// Two nodes: the convolution over all channels, then the rule with the gated norm behind it.
// Threads share the heads of every slot, so that there is no barrier inside. Nodes are ggml custom
// operations for the CPU backend and allocate nothing when they run.
#pragma once

#include <ggml.h>

#include <vector>

#include "kernels/delta_net.h"
#include "model/qwen35moe/batch_layout.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/state.h"
#include "model/qwen35moe/weights.h"

namespace model::qwen35moe {

class DeltaNetNodes {
 public:
  // Whether the kernels take these heads.
  static bool Supports(const Hparams& hparams);

  // Of one layer in a graph with these runs. Preconditions: Supports(hparams); the state is laid
  // out for the kernels (State::Size::for_kernels); weights and state outlive this object.
  DeltaNetNodes(const Hparams& hparams, const DeltaNetWeights& weights, const LayerState& state,
                std::vector<SlotRun> runs);

  DeltaNetNodes(const DeltaNetNodes&) = delete;
  DeltaNetNodes& operator=(const DeltaNetNodes&) = delete;

  // What the layer's projections give, F32 [rows, ...] with contiguous rows.
  struct Inputs {
    ggml_tensor* mixed = nullptr;  // [rows, channels]: queries, keys, values
    ggml_tensor* gate = nullptr;   // [rows, value_heads * head_dim]
    ggml_tensor* alpha = nullptr;  // [rows, value_heads]
    ggml_tensor* beta = nullptr;   // [rows, value_heads]
  };
  // The normed and gated outputs [rows, value_heads * head_dim]. This object must outlive the graph
  // and stay where it is. Its nodes are added to `on_cpu`.
  ggml_tensor* Build(ggml_context* context, const Inputs& inputs,
                     std::vector<ggml_tensor*>* on_cpu) const;

 private:
  static void RunConvolution(ggml_tensor* result, int thread, int num_threads, void* self);
  static void RunRule(ggml_tensor* result, int thread, int num_threads, void* self);

  kernels::DeltaNetShape shape_;
  const DeltaNetWeights* weights_;
  LayerState state_;
  std::vector<SlotRun> runs_;
};

}  // namespace model::qwen35moe
