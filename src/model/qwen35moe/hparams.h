// The hyperparameters of the `qwen35moe` architecture, read from a model file's metadata.
//
// A qwen35moe model is a stack of layers; each is a token mixer followed by a routed FFN with one
// shared expert. The mixer is gated DeltaNet (recurrent) or, every few layers, full attention with
// an output gate. Everything is resolved: a key that the file leaves out has its default here, and
// values that would make a shape impossible were refused. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "gg/gguf_file.h"

namespace model::qwen35moe {

// The arguments of ggml_rope_multi (interleaved sections), as the file asks for them.
struct RopeParameters {
  std::uint32_t num_dims = 0;              // leading dimensions of a head that rotate; even
  std::array<std::int32_t, 4> sections{};  // pairs a section; their sum is 1 to head_dim
  float freq_base = 0.0F;
  float freq_scale = 1.0F;             // 1 / rope.scaling.factor
  std::uint32_t original_context = 0;  // for YaRN: the context it was trained with
  float ext_factor = 0.0F;             // 0 unless rope.scaling.type is "yarn"
  float attn_factor = 1.0F;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
};

struct Hparams {
  // Layers that the forward pass runs: blocks 0 to num_layers - 1 of the file.
  std::uint32_t num_layers = 0;
  // Multi-token-prediction blocks behind them (num_layers to num_layers + num_nextn_layers - 1).
  // They draft tokens only and are skipped; their experts are no units.
  std::uint32_t num_nextn_layers = 0;
  std::uint32_t num_vocab = 0;  // rows of token_embd.weight
  std::uint32_t n_embd = 0;
  std::uint32_t context_length = 0;  // tokens, in training
  float norm_epsilon = 0.0F;         // of every RMS norm, and of the L2 norm of DeltaNet's q and k

  // Full attention. Q's projection yields, head after head, [query (head_dim), gate (head_dim)].
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;  // divides num_heads
  std::uint32_t head_dim = 0;      // of queries, keys and values alike; even
  float attention_scale = 0.0F;    // factor on Q*K, 1 / sqrt(head_dim) unless the file says other
  RopeParameters rope;

  // Gated DeltaNet. Keys and values have heads of the same width; value head h uses key head
  // h % num_key_heads.
  std::uint32_t conv_kernel = 0;    // taps of the causal convolution, at least 2
  std::uint32_t num_key_heads = 0;  // divides num_value_heads
  std::uint32_t num_value_heads = 0;
  std::uint32_t state_dim = 0;  // width of one key or value head

  // Routed FFN. The router is a softmax over all experts; the weights of the chosen ones are
  // normalised to sum 1 and then multiplied by expert_weights_scale.
  std::uint32_t num_experts = 0;
  std::uint32_t experts_per_token = 0;  // 1 to num_experts
  std::uint32_t n_ff_expert = 0;        // inner width of one routed expert
  std::uint32_t n_ff_shared = 0;        // inner width of the shared expert
  float expert_weights_scale = 1.0F;

  std::vector<bool> recurrent;  // [num_layers]: DeltaNet (true) or full attention (false)

  bool is_recurrent(std::size_t layer) const { return recurrent[layer]; }
  std::uint32_t num_recurrent_layers() const;
  std::uint32_t num_attention_layers() const { return num_layers - num_recurrent_layers(); }

  std::uint32_t key_dim() const { return state_dim * num_key_heads; }
  std::uint32_t value_dim() const { return state_dim * num_value_heads; }
  // Channels of the convolution: [q (key_dim), k (key_dim), v (value_dim)].
  std::uint32_t conv_channels() const { return 2 * key_dim() + value_dim(); }
  // What a sequence keeps of one recurrent layer, in floats: the last conv_kernel - 1 inputs of
  // every channel, and [num_value_heads, state_dim, state_dim] of DeltaNet state.
  std::uint64_t conv_state_size() const { return std::uint64_t{conv_kernel - 1} * conv_channels(); }
  std::uint64_t delta_state_size() const { return std::uint64_t{value_dim()} * state_dim; }
};

// Reads them from `file`. Errors: kCorruptModel, one line naming the file, the key and its value,
// when a required key is absent, has another type, or holds a value that no model can have.
base::Result<Hparams> ReadHparams(const gg::GgufFile& file);

}  // namespace model::qwen35moe
