// The dense part's weights (and the stacks of layers whose experts stay on the primary).
//
// With the CPU as primary weights are used where the file is mapped, or repacked (packed_linear.h)
// when they are matrices of a quantised type. With a device as primary weights are uploaded; what
// the device refuses (ggml_backend_dev_supports_op, or a tensor beyond its largest buffer) stays
// with the CPU in the same way, and so does its operation. The token embedding
// always stays in the mapping: a step reads a few rows of it. Vectors (norms, biases, scales) of
// another type than F32 are converted. Immutable after loading; any thread.
#pragma once

#include <ggml-cpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "model/placed_backend.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/packed_linear.h"
#include "moe/compute/repack.h"
#include "moe/target/ids.h"

namespace model::qwen35moe {

// y = (W x) * scale + bias
struct Linear {
  ggml_tensor* weight =
      nullptr;  // [outputs, inputs]; a stack of experts: [experts, outputs, inputs]
  ggml_tensor* scale = nullptr;  // [1] or [experts]; absent in most files
  ggml_tensor* bias = nullptr;   // [outputs]; absent in most files
};

struct AttentionWeights {
  Linear query_gate;  // [n_head * 2 * head_dim, n_embd]: query and gate of a head side by side
  Linear key, value;  // [n_head_kv * head_dim, n_embd]
  Linear output;      // [n_embd, n_head * head_dim]
  ggml_tensor* query_norm = nullptr;  // [head_dim]
  ggml_tensor* key_norm = nullptr;    // [head_dim]
};

struct DeltaNetWeights {
  Linear qkv;                      // [2 * key_dim + value_dim, n_embd]
  Linear gate;                     // [value_dim, n_embd]
  Linear alpha, beta;              // [value_heads, n_embd]
  Linear output;                   // [n_embd, value_dim]
  ggml_tensor* conv = nullptr;     // [2 * key_dim + value_dim, conv_width]
  ggml_tensor* dt_bias = nullptr;  // [value_heads]
  ggml_tensor* a = nullptr;        // [value_heads], negative
  ggml_tensor* norm = nullptr;     // [head_dim]
  // [conv_width, 2 * key_dim + value_dim]: a copy of conv for DeltaNetNodes, when all four vectors
  // lie in the host's memory; else empty.
  std::vector<float> conv_by_tap;
};

// A layer's routed experts on the primary, for layers that stay in its graph. Either gate and up or
// gate_up is set.
struct ExpertWeights {
  Linear gate, up, gate_up, down;
};

struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;      // [n_embd]
  ggml_tensor* ffn_norm = nullptr;            // [n_embd]
  std::optional<AttentionWeights> attention;  // of a full-attention layer
  std::optional<DeltaNetWeights> delta_net;   // of every other layer
  Linear router;                              // [n_expert, n_embd]
  ggml_tensor* shared_router = nullptr;       // [n_embd]
  Linear shared_gate, shared_up, shared_down;
  std::optional<ExpertWeights> experts;
};

class Weights {
 public:
  // `primary` may be `cpu`. The file must outlive the weights and have passed the directory check.
  // Nothing is packed yet; `repack` is what Pack will do. Errors: kCorruptModel naming a missing
  // tensor; kCapacity when the primary has no room; kCancelled.
  static base::Result<std::unique_ptr<Weights>> Load(
      const gg::GgufFile& file, const Hparams& hparams, ggml_backend_dev_t primary,
      ggml_backend_dev_t cpu, moe::Repack repack, const base::Log& log, const LoadControl& control);
  // Packs the matrices that the CPU computes with. With kAuto, when they fit beside `untouched`,
  // host memory that will be taken later; they stay in the mapping, with one log line, when they do
  // not or when the system refuses the memory. Once, before any graph that runs is built: graphs of
  // packed matrices are others. Errors: kCancelled.
  base::Result<void> Pack(std::size_t num_threads, base::Bytes untouched,
                          const moe::PackingMemory& memory, const LoadControl& control);
  // Uploads the whole stacks of `layer`, so that it stays in the primary's graph. False, with
  // nothing changed but one log line, when the primary refuses a stack or has no room. With the CPU
  // as primary the stacks are used in place.
  base::Result<bool> LoadExperts(moe::LayerId layer);
  void DropExperts(moe::LayerId layer);

  std::span<const LayerWeights> layers() const { return layers_; }
  ggml_tensor* token_embedding() const { return token_embedding_; }  // [n_vocab, n_embd]
  ggml_tensor* output_norm() const { return output_norm_; }          // [n_embd]
  const Linear& output() const { return output_; }                   // [n_vocab, n_embd]
  // A matrix as the CPU's kernels multiply it; nullptr when `linear.weight` itself is used.
  const PackedLinear* packed(const Linear& linear) const {
    const auto found = packed_of_.find(linear.weight);
    return found == packed_of_.end() ? nullptr : found->second;
  }
  // Bytes the dense part takes on the primary (0 for the CPU: they are the mapping's).
  base::Bytes primary_bytes() const { return primary_bytes_; }
  // Memory of the repacked matrices.
  base::Bytes packed_bytes() const {
    return packed_ && packed_->packed() ? packed_->bytes() : base::Bytes();
  }

  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

 private:
  friend class WeightLoader;
  Weights() = default;

  // Buffers outlive the contexts' tensors that lie in them: declared first, freed last.
  std::vector<ggml_backend_buffer_ptr> mapped_;  // [shards]
  std::vector<ggml_backend_buffer_ptr> buffers_;
  std::vector<ggml_context_ptr> contexts_;
  struct ExpertStorage {
    ggml_backend_buffer_ptr buffer;
    ggml_context_ptr context;
  };
  std::vector<ExpertStorage> expert_storage_;  // [layers]

  const gg::GgufFile* file_ = nullptr;
  ggml_backend_dev_t primary_ = nullptr;
  ggml_backend_dev_t cpu_ = nullptr;
  moe::Repack repack_ = moe::Repack::kAuto;
  base::Log log_;
  std::vector<LayerWeights> layers_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  Linear output_;
  base::Bytes primary_bytes_;
  base::Bytes uploaded_bytes_;  // of the file
  std::vector<std::pair<ggml_tensor*, const gg::GgufTensor*>> packable_;
  std::optional<PackedLinears> packed_;
  std::unordered_map<const ggml_tensor*, const PackedLinear*> packed_of_;  // into packed_
};

}  // namespace model::qwen35moe
