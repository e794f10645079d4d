// The tensors of a qwen35moe file: which must be there, in which shape, and where the experts lie.
//
// Once Describe has accepted a file, the forward graph may take every tensor below as given. In
// ggml's order (the contiguous dimension first), all named "blk.N.…" but for the first three:
//
//   token_embd.weight          [n_embd, num_vocab]
//   output_norm.weight         [n_embd]
//   output.weight              [n_embd, num_vocab]; absent: token_embd.weight is used (tied)
//   attn_norm.weight, post_attention_norm.weight  [n_embd]
//  full attention:
//   attn_q.weight              [n_embd, 2 * num_heads * head_dim]
//   attn_k.weight, attn_v.weight                  [n_embd, num_kv_heads * head_dim]
//   attn_{q,k,v}.bias          optional, one element a row of the weight
//   attn_q_norm.weight, attn_k_norm.weight        [head_dim]
//   attn_output.weight         [num_heads * head_dim, n_embd]
//  DeltaNet:
//   attn_qkv.weight            [n_embd, conv_channels]
//   attn_gate.weight           [n_embd, value_dim]
//   ssm_conv1d.weight          [conv_kernel, conv_channels]
//   ssm_alpha.weight, ssm_beta.weight             [n_embd, num_value_heads]
//   ssm_dt.bias, ssm_a         [num_value_heads]
//   ssm_norm.weight            [state_dim]
//   ssm_out.weight             [value_dim, n_embd]
//  FFN:
//   ffn_gate_inp.weight        [n_embd, num_experts]
//   ffn_gate_exps.weight, ffn_up_exps.weight      [n_embd, n_ff_expert, num_experts], or both as
//   ffn_gate_up_exps.weight    [n_embd, 2 * n_ff_expert, num_experts], gate first
//   ffn_down_exps.weight       [n_ff_expert, n_embd, num_experts]
//   ffn_gate_inp_shexp.weight  [n_embd]
//   ffn_gate_shexp.weight, ffn_up_shexp.weight    [n_embd, n_ff_shared]
//   ffn_down_shexp.weight      [n_ff_shared, n_embd]
//
// A matrix X.weight may have X.scale, a factor on its output ([1]; [num_experts] for a stack), and
// X.input_scale of the same shape, which serves quantisers of activations and is not used here.
// Norms, biases, scales, ssm_a and the convolution are F32; matrices have any type that can be
// multiplied, and may differ from layer to layer. Any thread.
#pragma once

#include <memory>

#include "base/result.h"
#include "gg/gguf_file.h"
#include "model/family.h"
#include "model/placed_backend.h"

namespace model::qwen35moe {

// Errors: kCorruptModel, one line naming the file and the key or tensor: missing, of the wrong
// shape or type, or unknown inside a layer (ignoring one could change what the model computes).
base::Result<ModelDescription> Describe(const gg::GgufFile& file);

// A Qwen35MoeBackend (qwen35moe_backend.h). Errors as ModelFamily::load.
base::Result<std::unique_ptr<PlacedBackend>> LoadDense(const DenseLoadRequest& request);

inline constexpr ModelFamily kFamily = {"qwen35moe", &Describe, &LoadDense};

}  // namespace model::qwen35moe
