// Where the routed experts' weights lie in the model file.
//
// Filled by a model family's adapter. A stack is one tensor that holds one projection of every
// expert of a layer, expert after expert. Plain values, no ggml; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "moe/target/ids.h"

namespace moe {

struct ExpertStack {
  std::string tensor;            // name in the file, for example "blk.7.ffn_gate_exps.weight"
  int type = 0;                  // element type by the file's number (a ggml_type)
  std::uint64_t row_width = 0;   // inputs: elements of one row
  std::uint64_t num_rows = 0;    // outputs: rows of one expert
  std::size_t shard = 0;         // index of the file that holds it
  std::uint64_t offset = 0;      // of expert 0 in that file
  base::Bytes bytes_per_expert;  // expert e starts at offset + e * bytes_per_expert
  std::string scale = {};        // F32 tensor of [num_experts] factors on the outputs, or empty
};

struct LayerStacks {
  ExpertStack gate;               // [n_ff, n_embd] an expert; fused: [2 * n_ff, n_embd], gate first
  std::optional<ExpertStack> up;  // absent when fused
  ExpertStack down;               // [n_embd, n_ff] an expert
};

// [num_layers], by LayerId.
using ExpertStacks = std::vector<LayerStacks>;

}  // namespace moe
