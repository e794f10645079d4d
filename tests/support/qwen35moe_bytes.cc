#include "support/qwen35moe_bytes.h"

#include <ggml.h>

#include <format>
#include <string>

namespace test_support {
namespace {

constexpr int kF32 = GGML_TYPE_F32;

void AddKeys(GgufBytes& bytes, const Qwen35MoeOptions& options) {
  bytes.Text("general.architecture", "qwen35moe").Text("general.name", "Tiny");
  bytes.Number("general.file_type", 15);
  const auto number = [&](std::string_view key, std::uint32_t value) {
    bytes.Number(std::format("qwen35moe.{}", key), value);
  };
  number("block_count", options.num_layers + options.num_nextn_layers);
  if (options.num_nextn_layers > 0) number("nextn_predict_layers", options.num_nextn_layers);
  number("context_length", 512);
  number("embedding_length", 64);
  number("full_attention_interval", 2);
  number("attention.head_count", 2);
  number("attention.head_count_kv", 1);
  number("attention.key_length", 32);
  number("attention.value_length", 32);
  number("rope.dimension_count", 8);
  number("ssm.conv_kernel", 4);
  number("ssm.group_count", 2);
  number("ssm.time_step_rank", 4);
  number("ssm.state_size", 16);
  number("ssm.inner_size", 64);
  number("expert_count", 8);
  number("expert_used_count", 2);
  number("expert_feed_forward_length", 32);
  number("expert_shared_feed_forward_length", 32);
  bytes.Real("qwen35moe.attention.layer_norm_rms_epsilon", 1e-6F);
  bytes.Real("qwen35moe.rope.freq_base", 1e7F);
  bytes.Numbers("qwen35moe.rope.dimension_sections", {2, 1, 1, 0});
}

void AddMixer(GgufBytes& bytes, const std::string& block, bool attention, bool optional) {
  bytes.Tensor(block + "attn_norm.weight", kF32, {64});
  bytes.Tensor(block + "post_attention_norm.weight", kF32, {64});
  if (attention) {
    bytes.Tensor(block + "attn_q.weight", kF32, {64, 128});
    bytes.Tensor(block + "attn_k.weight", kF32, {64, 32});
    bytes.Tensor(block + "attn_v.weight", kF32, {64, 32});
    bytes.Tensor(block + "attn_q_norm.weight", kF32, {32});
    bytes.Tensor(block + "attn_k_norm.weight", kF32, {32});
    bytes.Tensor(block + "attn_output.weight", kF32, {64, 64});
    if (!optional) return;
    bytes.Tensor(block + "attn_q.bias", kF32, {128});
    bytes.Tensor(block + "attn_k.bias", kF32, {32});
    bytes.Tensor(block + "attn_v.scale", kF32, {1});
    return;
  }
  bytes.Tensor(block + "attn_qkv.weight", kF32, {64, 128});
  bytes.Tensor(block + "attn_gate.weight", kF32, {64, 64});
  bytes.Tensor(block + "ssm_conv1d.weight", kF32, {4, 128});
  bytes.Tensor(block + "ssm_alpha.weight", kF32, {64, 4});
  bytes.Tensor(block + "ssm_beta.weight", kF32, {64, 4});
  bytes.Tensor(block + "ssm_dt.bias", kF32, {4});
  bytes.Tensor(block + "ssm_a", kF32, {4});
  bytes.Tensor(block + "ssm_norm.weight", kF32, {16});
  bytes.Tensor(block + "ssm_out.weight", kF32, {64, 64});
  if (optional) bytes.Tensor(block + "attn_qkv.input_scale", kF32, {1});
}

void AddFfn(GgufBytes& bytes, const std::string& block, int type, bool fused, bool optional) {
  bytes.Tensor(block + "ffn_gate_inp.weight", kF32, {64, 8});
  bytes.Tensor(block + "ffn_gate_inp_shexp.weight", kF32, {64});
  bytes.Tensor(block + "ffn_gate_shexp.weight", kF32, {64, 32});
  bytes.Tensor(block + "ffn_up_shexp.weight", kF32, {64, 32});
  bytes.Tensor(block + "ffn_down_shexp.weight", kF32, {32, 64});
  if (fused) {
    bytes.Tensor(block + "ffn_gate_up_exps.weight", type, {64, 64, 8});
  } else {
    bytes.Tensor(block + "ffn_gate_exps.weight", type, {64, 32, 8});
    bytes.Tensor(block + "ffn_up_exps.weight", type, {64, 32, 8});
  }
  bytes.Tensor(block + "ffn_down_exps.weight", type, {32, 64, 8});
  if (!optional) return;
  bytes.Tensor(block + "ffn_down_exps.scale", kF32, {8});
  bytes.Tensor(block + "ffn_down_exps.input_scale", kF32, {8});
}

}  // namespace

GgufBytes Qwen35MoeBytes(const Qwen35MoeOptions& options) {
  GgufBytes bytes;
  AddKeys(bytes, options);
  bytes.Tensor("token_embd.weight", kF32, {64, 20}).Tensor("output_norm.weight", kF32, {64});
  if (!options.tied_output) bytes.Tensor("output.weight", kF32, {64, 20});
  for (std::uint32_t layer = 0; layer < options.num_layers + options.num_nextn_layers; ++layer) {
    const std::string block = std::format("blk.{}.", layer);
    const bool nextn = layer >= options.num_layers;
    const int type = layer % 2 == 0 ? options.expert_type : kF32;
    AddMixer(bytes, block, nextn || layer % 2 == 1, options.optional_tensors);
    AddFfn(bytes, block, type, options.fused_gate_up, options.optional_tensors);
    if (nextn) bytes.Tensor(block + "nextn.eh_proj.weight", kF32, {128, 64});
  }
  return bytes;
}

}  // namespace test_support
