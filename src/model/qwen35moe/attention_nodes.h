// Graph nodes that keep and read a full-attention layer's cache with the CPU's own kernels
// (kernels/attention.h).
//
// Two nodes: one stores the rows' keys and values, one attends to the cells that each row sees and
// applies the output gate. Which cells these are follows from the rows' positions when the graph
// runs, so one graph serves every length. Threads share rows and heads. Nodes are ggml custom
// operations for the CPU backend; what a thread keeps scores in grows with the context and stays.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <vector>

#include "kernels/attention.h"
#include "model/qwen35moe/batch_layout.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/state.h"

namespace model::qwen35moe {

class AttentionNodes {
 public:
  // Whether the kernels take these heads.
  static bool Supports(const Hparams& hparams);

  // Of one layer in a graph with these runs. Preconditions: Supports(hparams); the state is laid
  // out for the kernels (State::Size::for_kernels) and outlives this object.
  AttentionNodes(const Hparams& hparams, const State& state, std::size_t layer,
                 std::vector<SlotRun> runs);

  AttentionNodes(const AttentionNodes&) = delete;
  AttentionNodes& operator=(const AttentionNodes&) = delete;

  struct Inputs {
    ggml_tensor* queries = nullptr;    // F32 [rows, heads, head_dim], rotated
    ggml_tensor* keys = nullptr;       // F32 [rows, kv_heads, head_dim], rotated
    ggml_tensor* values = nullptr;     // F32 [rows, kv_heads * head_dim]
    ggml_tensor* gate = nullptr;       // F32 [rows, heads, head_dim], may be a view with strides
    ggml_tensor* positions = nullptr;  // I32 [rows] at its front
  };
  // The gated results [rows, heads * head_dim]. This object must outlive the graph and stay where
  // it is. Its nodes are added to `on_cpu`.
  ggml_tensor* Build(ggml_context* context, const Inputs& inputs,
                     std::vector<ggml_tensor*>* on_cpu) const;

 private:
  // The queries of some heads of neighbouring rows of one slot, which share keys and values.
  struct Part {
    std::size_t slot = 0;
    std::size_t first_row = 0;  // in the batch
    std::size_t kv_head = 0;
    std::size_t first_query = 0;  // from the first row's on
    std::size_t end_query = 0;
  };

  static void RunStore(ggml_tensor* result, int thread, int num_threads, void* self);
  static void RunAttend(ggml_tensor* result, int thread, int num_threads, void* self);
  kernels::AttentionCache Cache(std::size_t slot) const;
  void AttendPart(const Part& part, ggml_tensor* result) const;

  std::size_t num_heads_;
  std::size_t num_kv_heads_;
  std::size_t head_dim_;
  float scale_;
  std::size_t cells_per_slot_;
  LayerState state_;
  std::vector<SlotRun> runs_;
};

}  // namespace model::qwen35moe
