// A tiny qwen35moe file for tests, all of whose metadata and tensors are there.
#pragma once

#include <cstdint>

#include "support/gguf_bytes.h"

namespace test_support {

struct Qwen35MoeOptions {
  std::uint32_t num_layers = 4;        // every second one is full attention
  std::uint32_t num_nextn_layers = 0;  // behind them
  bool fused_gate_up = false;
  bool tied_output = false;
  bool optional_tensors = false;  // biases and scales
  int expert_type = 0;            // ggml_type of the stacks of even layers; odd ones are F32
};

// n_embd 64, 2 heads of 32 with 1 KV head, 2 key and 4 value heads of 16, 8 experts of 32 (top 2),
// shared expert of 32, vocabulary of 20. Tensors hold zeros.
GgufBytes Qwen35MoeBytes(const Qwen35MoeOptions& options = {});

}  // namespace test_support
