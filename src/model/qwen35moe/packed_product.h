// Graph nodes that multiply activation rows with packed matrices.
//
// Matrices that take the same rows share one node, so that rows are quantised once and threads meet
// once. A few rows are quantised by every thread for itself inside that node; more get a node of
// their own in front, whose result holds the quantised panels. Every thread computes a contiguous
// run of the packed bytes. Nodes are ggml custom operations for the CPU backend and allocate
// nothing when they run.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "model/qwen35moe/packed_linear.h"

namespace model::qwen35moe {

class PackedProduct {
 public:
  // Preconditions: at least one matrix; all take the same activations
  // (kernels::MatrixKernel::SameActivations) and outlive the product.
  // `name` is of the matrices; nodes are called after it.
  explicit PackedProduct(std::vector<const PackedLinear*> matrices, std::string name = "");

  PackedProduct(const PackedProduct&) = delete;
  PackedProduct& operator=(const PackedProduct&) = delete;

  // The products with `x`, F32 [rows, inputs]: a contiguous [rows, num_outputs] for every matrix.
  // The product must outlive the graph and stay where it is. Its nodes, which only a CPU backend
  // can run, are added to `on_cpu`.
  std::vector<ggml_tensor*> Build(ggml_context* context, ggml_tensor* x,
                                  std::vector<ggml_tensor*>* on_cpu) const;

 private:
  const kernels::MatrixKernel& kernel() const { return matrices_.front()->kernel; }
  // Whether every thread quantises `num_rows` rows for itself.
  bool QuantizesInside(std::size_t num_rows) const;

  static void RunQuantize(ggml_tensor* result, int thread, int num_threads, void* self);
  static void RunMultiply(ggml_tensor* result, int thread, int num_threads, void* self);
  void Multiply(const std::byte* panels, std::size_t num_rows, std::size_t first_byte,
                std::size_t end_byte, float* out) const;

  std::vector<const PackedLinear*> matrices_;
  std::string name_;
  std::size_t num_outputs_ = 0;   // of all matrices
  std::size_t packed_bytes_ = 0;  // of all matrices
};

}  // namespace model::qwen35moe
