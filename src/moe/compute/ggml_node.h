// A layer's routed experts by ggml's own operations on its CPU backend, for tests that compare
// errors with ggml's.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"

namespace moe {

class GgmlNode {
 public:
  // Of a layer without factors whose gate and up are two tensors. ggml's backends are loaded.
  GgmlNode(const LayerWeights& layer, std::size_t num_experts)
      : layer_(layer),
        num_experts_(Int(num_experts)),
        backend_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {}

  // The weighted sums [num_rows, n_embd].
  std::vector<float> Compute(const ExpertBatch& batch) {
    const auto used = Int(batch.num_used);
    const auto rows = Int(batch.num_rows);
    ggml_context* ctx = NewContext();
    ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, Int(batch.n_embd), 1, rows);
    ggml_tensor* ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, rows);
    ggml_tensor* weights = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, used, rows);
    ggml_tensor* gate = Stack(layer_.gate);
    ggml_tensor* up = Stack(*layer_.up);
    ggml_tensor* down = Stack(layer_.down);
    ggml_tensor* hidden = ggml_swiglu_split(ctx, ggml_mul_mat_id(ctx, gate, x, ids),
                                            ggml_mul_mat_id(ctx, up, x, ids));
    ggml_tensor* y = ggml_mul(ctx, ggml_mul_mat_id(ctx, down, hidden, ids), weights);
    ggml_tensor* sum = nullptr;
    for (std::size_t s = 0; s < batch.num_used; ++s) {
      ggml_tensor* slot = ggml_view_2d(ctx, y, y->ne[0], y->ne[2], y->nb[2], s * y->nb[1]);
      sum = sum == nullptr ? ggml_cont(ctx, slot) : ggml_add(ctx, sum, slot);
    }
    return Run(sum, {{x, batch.rows},
                     {ids, batch.ids},
                     {weights, batch.weights},
                     {gate, layer_.gate.data},
                     {up, layer_.up->data},
                     {down, layer_.down.data}});
  }

  // The products [num_vectors, num_rows] of one expert's `matrix`, which is one of the layer's,
  // with `vectors` [num_vectors, row_width].
  std::vector<float> Multiply(const ExpertMatrix& matrix, ExpertId expert,
                              const std::vector<float>& vectors) {
    ggml_context* ctx = NewContext();
    ggml_tensor* weights = ggml_new_tensor_2d(ctx, static_cast<ggml_type>(matrix.type),
                                              Int(matrix.row_width), Int(matrix.num_rows));
    ggml_tensor* x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, Int(matrix.row_width),
                                        Int(vectors.size() / matrix.row_width));
    return Run(ggml_mul_mat(ctx, weights, x),
               {{weights, matrix.expert(expert)}, {x, vectors.data()}});
  }

 private:
  struct Content {
    ggml_tensor* tensor;
    const void* data;
  };

  static std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

  ggml_context* NewContext() {
    context_.reset(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
    return context_.get();
  }

  ggml_tensor* Stack(const ExpertMatrix& matrix) const {
    return ggml_new_tensor_3d(context_.get(), static_cast<ggml_type>(matrix.type),
                              Int(matrix.row_width), Int(matrix.num_rows), num_experts_);
  }

  std::vector<float> Run(ggml_tensor* result, const std::vector<Content>& contents) const {
    ggml_cgraph* graph = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph, result);
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    for (const auto& [tensor, data] : contents) {
      ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
    }
    EXPECT_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(result)));
    ggml_backend_tensor_get(result, values.data(), 0, ggml_nbytes(result));
    return values;
  }

  const LayerWeights& layer_;
  std::int64_t num_experts_;
  ggml_backend_ptr backend_;
  ggml_context_ptr context_;  // of the last call
};

}  // namespace moe
