// Where the routed experts' weights lie in this process's memory.
//
// Filled by a model family's adapter from the mapped file; nothing is copied. Whoever reads weights
// (host and device owners) shares one ExpertWeights; the mapping must outlive it. Immutable once
// shared; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/target/ids.h"

namespace moe {

// One projection of every expert of a layer.
struct ExpertMatrix {
  std::string tensor;               // its name in the file, for messages
  int type = 0;                     // a ggml_type
  std::size_t row_width = 0;        // inputs: elements of one row
  std::size_t num_rows = 0;         // outputs: rows of one expert
  std::size_t row_bytes = 0;        // one row; rows of an expert lie one after another
  std::size_t expert_bytes = 0;     // from one expert to the next
  const std::byte* data = nullptr;  // row 0 of expert 0
  // What every output is multiplied by (the file's `.scale` tensors): empty, one value for all
  // experts, or one an expert.
  std::vector<float> scales = {};

  const std::byte* expert(ExpertId id) const { return data + id.index() * expert_bytes; }
  float scale(ExpertId id) const {
    if (scales.empty()) return 1.0f;
    return scales.size() == 1 ? scales[0] : scales[id.index()];
  }
};

struct LayerWeights {
  ExpertMatrix gate;  // [n_ff, n_embd] an expert; fused: [2 * n_ff, n_embd], gate first
  std::optional<ExpertMatrix> up;  // absent when fused
  ExpertMatrix down;               // [n_embd, n_ff] an expert

  std::size_t n_embd() const { return gate.row_width; }
  std::size_t n_ff() const { return down.row_width; }
};

struct ExpertWeights {
  std::size_t num_experts = 0;
  std::vector<LayerWeights> layers;  // by LayerId
};

// The stacks in the mapped `shards` (by ExpertStack::shard), without scales. Precondition: the
// model directory was checked, so that every stack lies inside its shard.
ExpertWeights MapExpertWeights(const ExpertStacks& stacks, std::size_t num_experts,
                               std::span<const std::span<const std::byte>> shards);

// Whether the matrices of a layer fit together. Errors: kCorruptModel naming the tensor and what
// does not fit: widths, numbers of rows, scales that are neither one nor one an expert.
base::Result<void> CheckLayerWeights(const LayerWeights& layer, std::size_t num_experts);

}  // namespace moe
