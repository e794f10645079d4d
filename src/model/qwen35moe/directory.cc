#include "model/qwen35moe/directory.h"

#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <format>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/qwen35moe/hparams.h"

namespace model::qwen35moe {
namespace {

using base::Bytes;
using base::ErrorKind;
using base::Forward;
using base::Result;
using gg::GgufTensor;

// Devices place every tensor at a multiple of at most this.
constexpr std::uint64_t kPlacementAlignment = 256;

using Shape = std::vector<std::uint64_t>;

Shape WithoutTrailingOnes(Shape shape) {
  while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
  return shape;
}

// Types that can stand on the weight side of a matrix multiplication; the rest hold activations,
// indices, or nothing that is computed with.
bool CanMultiply(int type) {
  const auto kind = static_cast<ggml_type>(type);
  if (kind == GGML_TYPE_F32) return true;
  if (kind == GGML_TYPE_Q8_1 || kind == GGML_TYPE_Q8_K) return false;
  const bool is_float = kind == GGML_TYPE_F16 || kind == GGML_TYPE_BF16;
  return (is_float || ggml_is_quantized(kind)) && ggml_get_type_traits(kind)->to_float != nullptr;
}

// The block number of "blk.7.attn_q.weight"; nothing for a tensor of no block.
std::optional<std::uint32_t> BlockOf(std::string_view name) {
  if (!name.starts_with("blk.")) return std::nullopt;
  std::uint32_t block = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + 4, end, block);
  if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
  return block;
}

// Asks for tensors one after another, remembers the first fault, and sums what the dense part is
// going to hold.
class Directory {
 public:
  Directory(const gg::GgufFile& file, const Hparams& hparams) : file_(file), hparams_(hparams) {}

  // [width] in F32.
  void Vector(const std::string& name, std::uint64_t width) { Dense(name, {width}, true); }
  void OptionalVector(const std::string& name, std::uint64_t width) {
    if (file_.FindTensor(name) != nullptr) Vector(name, width);
  }
  void Table(const std::string& name, const Shape& shape) { Dense(name, shape, true); }

  // `stem`.weight, and its scales.
  void Matrix(const std::string& stem, const Shape& shape) {
    Dense(stem + ".weight", shape, false);
    OptionalVector(stem + ".scale", 1);
    OptionalVector(stem + ".input_scale", 1);
  }

  // A stack of [width, rows] an expert.
  moe::ExpertStack Stack(const std::string& stem, std::uint64_t width, std::uint64_t rows) {
    moe::ExpertStack stack;
    stack.tensor = stem + ".weight";
    stack.row_width = width;
    stack.num_rows = rows;
    const GgufTensor* tensor = Find(stack.tensor, {width, rows, hparams_.num_experts}, false);
    OptionalVector(stem + ".input_scale", hparams_.num_experts);
    if (file_.FindTensor(stem + ".scale") != nullptr) {
      stack.scale = stem + ".scale";
      Vector(stack.scale, hparams_.num_experts);
    }
    if (tensor == nullptr) return stack;
    stack.type = tensor->type;
    stack.shard = tensor->shard;
    stack.offset = tensor->offset;
    stack.bytes_per_expert = Bytes(tensor->bytes.count() / hparams_.num_experts);
    return stack;
  }

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  // A tensor of a layer that nothing above asked for could change what the model computes.
  void RefuseUnknown() {
    for (const GgufTensor& tensor : file_.tensors()) {
      const auto block = BlockOf(tensor.name);
      if (!block || *block >= hparams_.num_layers || seen_.contains(tensor.name)) continue;
      Refuse(tensor.name, "is not known in this architecture");
    }
  }

  void Refuse(std::string_view name, std::string_view what) {
    if (error_) return;
    error_ = base::Error{ErrorKind::kCorruptModel,
                         std::format("'{}': tensor {} {}", file_.name(), name, what)};
  }

  Bytes dense_bytes() const { return dense_bytes_; }
  std::optional<base::Error>& error() { return error_; }

 private:
  void Dense(const std::string& name, const Shape& shape, bool f32) {
    const GgufTensor* tensor = Find(name, shape, f32);
    if (tensor == nullptr) return;
    const std::uint64_t blocks =
        (tensor->bytes.count() + kPlacementAlignment - 1) / kPlacementAlignment;
    dense_bytes_ += Bytes(kPlacementAlignment) * blocks;
  }

  const GgufTensor* Find(const std::string& name, const Shape& shape, bool f32) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return Refuse(name, "is missing"), nullptr;
    seen_.insert(name);
    if (WithoutTrailingOnes(tensor->shape) != WithoutTrailingOnes(shape)) {
      Refuse(name, std::format("has shape {}, expected {}", gg::FormatShape(tensor->shape),
                               gg::FormatShape(shape)));
      return nullptr;
    }
    if (f32 ? tensor->type != GGML_TYPE_F32 : !CanMultiply(tensor->type)) {
      Refuse(name, std::format("has type {}, expected {}",
                               ggml_type_name(static_cast<ggml_type>(tensor->type)),
                               f32 ? "f32" : "one that can be multiplied"));
      return nullptr;
    }
    return tensor;
  }

  const gg::GgufFile& file_;
  const Hparams& hparams_;
  std::set<std::string, std::less<>> seen_;
  Bytes dense_bytes_;
  std::optional<base::Error> error_;
};

void CheckEnds(Directory& directory, const Hparams& hparams) {
  directory.Matrix("token_embd", {hparams.n_embd, hparams.num_vocab});
  directory.Vector("output_norm.weight", hparams.n_embd);
  if (directory.Has("output.weight")) {
    directory.Matrix("output", {hparams.n_embd, hparams.num_vocab});
  }
}

void CheckAttention(Directory& directory, const Hparams& hparams, const std::string& block) {
  const std::uint64_t queries = std::uint64_t{hparams.num_heads} * hparams.head_dim;
  const std::uint64_t keys = std::uint64_t{hparams.num_kv_heads} * hparams.head_dim;
  directory.Matrix(block + "attn_q", {hparams.n_embd, 2 * queries});
  directory.Matrix(block + "attn_k", {hparams.n_embd, keys});
  directory.Matrix(block + "attn_v", {hparams.n_embd, keys});
  directory.OptionalVector(block + "attn_q.bias", 2 * queries);
  directory.OptionalVector(block + "attn_k.bias", keys);
  directory.OptionalVector(block + "attn_v.bias", keys);
  directory.Vector(block + "attn_q_norm.weight", hparams.head_dim);
  directory.Vector(block + "attn_k_norm.weight", hparams.head_dim);
  directory.Matrix(block + "attn_output", {queries, hparams.n_embd});
}

void CheckDeltaNet(Directory& directory, const Hparams& hparams, const std::string& block) {
  directory.Matrix(block + "attn_qkv", {hparams.n_embd, hparams.conv_channels()});
  directory.Matrix(block + "attn_gate", {hparams.n_embd, hparams.value_dim()});
  directory.Table(block + "ssm_conv1d.weight", {hparams.conv_kernel, hparams.conv_channels()});
  directory.Matrix(block + "ssm_alpha", {hparams.n_embd, hparams.num_value_heads});
  directory.Matrix(block + "ssm_beta", {hparams.n_embd, hparams.num_value_heads});
  directory.Vector(block + "ssm_dt.bias", hparams.num_value_heads);
  directory.Vector(block + "ssm_a", hparams.num_value_heads);
  directory.Vector(block + "ssm_norm.weight", hparams.state_dim);
  directory.Matrix(block + "ssm_out", {hparams.value_dim(), hparams.n_embd});
}

moe::LayerStacks CheckFfn(Directory& directory, const Hparams& hparams, const std::string& block) {
  const std::uint64_t n_embd = hparams.n_embd;
  directory.Matrix(block + "ffn_gate_inp", {n_embd, hparams.num_experts});
  directory.Matrix(block + "ffn_gate_inp_shexp", {n_embd});
  directory.Matrix(block + "ffn_gate_shexp", {n_embd, hparams.n_ff_shared});
  directory.Matrix(block + "ffn_up_shexp", {n_embd, hparams.n_ff_shared});
  directory.Matrix(block + "ffn_down_shexp", {hparams.n_ff_shared, n_embd});

  moe::LayerStacks stacks;
  const std::uint64_t n_ff = hparams.n_ff_expert;
  if (directory.Has(block + "ffn_gate_up_exps.weight")) {
    stacks.gate = directory.Stack(block + "ffn_gate_up_exps", n_embd, 2 * n_ff);
  } else {
    stacks.gate = directory.Stack(block + "ffn_gate_exps", n_embd, n_ff);
    stacks.up = directory.Stack(block + "ffn_up_exps", n_embd, n_ff);
  }
  stacks.down = directory.Stack(block + "ffn_down_exps", n_ff, n_embd);
  return stacks;
}

DenseProfile ProfileOf(const Hparams& hparams, Bytes weights) {
  DenseProfile dense;
  dense.weights = weights;
  dense.num_vocab = hparams.num_vocab;
  dense.n_embd = hparams.n_embd;
  dense.num_heads = hparams.num_heads;
  dense.num_attention_layers = hparams.num_attention_layers();
  dense.kv_width = hparams.num_kv_heads * hparams.head_dim;
  dense.state_per_sequence = Bytes(sizeof(float)) *
                             (hparams.conv_state_size() + hparams.delta_state_size()) *
                             hparams.num_recurrent_layers();
  // The mixed q, k and v before and behind the convolution, the gate and the output; or queries
  // with their gate, keys, values and the output.
  const std::uint32_t delta = 2 * hparams.conv_channels() + 3 * hparams.value_dim();
  const std::uint32_t attention = 5 * hparams.num_heads * hparams.head_dim + 2 * dense.kv_width;
  dense.widest_row = std::max(delta, attention) + hparams.num_experts + 2 * hparams.n_ff_shared;
  return dense;
}

}  // namespace

Result<ModelDescription> Describe(const gg::GgufFile& file) {
  auto identity = ReadIdentity(file);
  if (!identity) return Forward(identity);
  auto hparams = ReadHparams(file);
  if (!hparams) return Forward(hparams);

  ModelDescription model;
  Directory directory(file, *hparams);
  CheckEnds(directory, *hparams);
  for (std::uint32_t layer = 0; layer < hparams->num_layers && !directory.error(); ++layer) {
    const std::string block = std::format("blk.{}.", layer);
    directory.Vector(block + "attn_norm.weight", hparams->n_embd);
    directory.Vector(block + "post_attention_norm.weight", hparams->n_embd);
    if (hparams->is_recurrent(layer)) {
      CheckDeltaNet(directory, *hparams, block);
    } else {
      CheckAttention(directory, *hparams, block);
    }
    model.stacks.push_back(CheckFfn(directory, *hparams, block));
    const moe::LayerStacks& stacks = model.stacks.back();
    const Bytes up = stacks.up ? stacks.up->bytes_per_expert : Bytes();
    model.shape.layers.push_back(
        {layer, {stacks.gate.bytes_per_expert, up, stacks.down.bytes_per_expert}});
  }
  directory.RefuseUnknown();
  if (directory.error()) return std::unexpected(*std::move(directory.error()));

  model.shape.identity = *std::move(identity);
  model.shape.identity.num_layers = hparams->num_layers;
  model.shape.identity.num_experts = hparams->num_experts;
  model.shape.num_experts = hparams->num_experts;
  model.shape.experts_per_token = hparams->experts_per_token;
  model.dense = ProfileOf(*hparams, directory.dense_bytes());
  model.context_length = hparams->context_length;
  return model;
}

}  // namespace model::qwen35moe
