#include "model/qwen35moe/weight_loader.h"

#include <algorithm>
#include <format>
#include <span>
#include <utility>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;

// Of one copy to a device: so little of the mapped file is resident at a time, and so soon an
// interruption is noticed.
constexpr std::size_t kUploadStep = std::size_t{64} << 20;

std::vector<float> ToFloats(std::span<const std::byte> bytes, ggml_type type, std::size_t count) {
  std::vector<float> values(count);
  ggml_get_type_traits(type)->to_float(bytes.data(), values.data(),
                                       static_cast<std::int64_t>(count));
  return values;
}

}  // namespace

ggml_context_ptr NewContext(std::size_t num_tensors) {
  return ggml_context_ptr(ggml_init({.mem_size = ggml_tensor_overhead() * num_tensors + 1024,
                                     .mem_buffer = nullptr,
                                     .no_alloc = true}));
}

ggml_tensor* NewTensor(ggml_context* context, const gg::GgufTensor& source, ggml_type type) {
  std::int64_t extents[GGML_MAX_DIMS] = {1, 1, 1, 1};
  for (std::size_t i = 0; i < source.shape.size(); ++i) {
    extents[i] = static_cast<std::int64_t>(source.shape[i]);
  }
  ggml_tensor* tensor =
      ggml_new_tensor(context, type, static_cast<int>(source.shape.size()), extents);
  ggml_set_name(tensor, source.name.c_str());
  return tensor;
}

bool Supports(ggml_backend_dev_t device, ggml_tensor* weight, Use use) {
  ggml_context_ptr probe = NewContext(8);
  ggml_context* c = probe.get();
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{64}}) {
    ggml_tensor* op = nullptr;
    switch (use) {
      case Use::kMatrix:
        op = ggml_mul_mat(c, weight, ggml_new_tensor_2d(c, GGML_TYPE_F32, weight->ne[0], rows));
        break;
      case Use::kExperts: {
        ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, rows);
        op = ggml_mul_mat_id(c, weight,
                             ggml_new_tensor_3d(c, GGML_TYPE_F32, weight->ne[0], 1, rows), ids);
        break;
      }
      case Use::kVector:
        op = ggml_mul(c, ggml_new_tensor_2d(c, GGML_TYPE_F32, weight->ne[0], rows), weight);
        break;
      case Use::kConvolution:
        op = ggml_ssm_conv(
            c, ggml_new_tensor_3d(c, GGML_TYPE_F32, weight->ne[0] - 1 + rows, weight->ne[1], 1),
            weight);
        break;
    }
    if (!ggml_backend_dev_supports_op(device, op)) return false;
  }
  return true;
}

base::Result<void> WeightLoader::MapShards() {
  for (const base::MappedFile& shard : w_.file_->shards()) {
    // ggml takes a mutable pointer; weights are never written.
    void* bytes = const_cast<std::byte*>(shard.bytes().data());
    ggml_backend_buffer_t buffer = ggml_backend_dev_buffer_from_host_ptr(
        w_.cpu_, bytes, shard.bytes().size(), shard.bytes().size());
    if (buffer == nullptr) {
      return Fail(ErrorKind::kInternal, "{}: ggml's CPU device cannot use the mapping",
                  shard.path());
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    w_.mapped_.emplace_back(buffer);
  }
  return {};
}

ggml_tensor* WeightLoader::Map(ggml_context* context, const gg::GgufTensor& source) {
  ggml_tensor* tensor = NewTensor(context, source, static_cast<ggml_type>(source.type));
  void* bytes = const_cast<std::byte*>(w_.file_->Data(source).data());
  const ggml_status status =
      ggml_backend_tensor_alloc(w_.mapped_[source.shard].get(), tensor, bytes);
  ES_CHECK(status == GGML_STATUS_SUCCESS);
  return tensor;
}

ggml_tensor* WeightLoader::Optional(const std::string& name, Use use) {
  const gg::GgufTensor* source = w_.file_->FindTensor(name);
  if (source == nullptr) return nullptr;
  const bool convert = use != Use::kMatrix && source->type != GGML_TYPE_F32;
  if (primary_is_cpu() && !convert) return Map(mapped_context_.get(), *source);

  ggml_tensor* tensor = NewTensor(primary_context_.get(), *source,
                                  convert ? GGML_TYPE_F32 : static_cast<ggml_type>(source->type));
  ggml_backend_buffer_type_t kind = ggml_backend_dev_buffer_type(w_.primary_);
  const bool fits =
      ggml_backend_buft_get_alloc_size(kind, tensor) <= ggml_backend_buft_get_max_size(kind);
  if (!fits || !Supports(w_.primary_, tensor, use)) {
    w_.log_.Warning(
        "{} cannot hold {} ({}, {}): it stays on the CPU", ggml_backend_dev_name(w_.primary_), name,
        ggml_type_name(static_cast<ggml_type>(source->type)), base::FormatBytes(source->bytes));
    // The tensor left behind in the context is never given memory.
    if (!convert) return Map(mapped_context_.get(), *source);
    tensor = NewTensor(converted_context_.get(), *source, GGML_TYPE_F32);
    converted_.push_back({tensor, source});
    return tensor;
  }
  uploads_.push_back({tensor, source});
  return tensor;
}

ggml_tensor* WeightLoader::Required(const std::string& name, Use use) {
  ggml_tensor* tensor = Optional(name, use);
  if (tensor == nullptr && missing_.empty()) missing_ = name;
  return tensor;
}

ggml_tensor* WeightLoader::RequiredMatrix(const std::string& name) {
  ggml_tensor* tensor = Required(name, Use::kMatrix);
  // Tensors that are to be uploaded have no buffer yet.
  if (tensor != nullptr && tensor->buffer != nullptr) {
    const gg::GgufTensor* source = w_.file_->FindTensor(name);
    if (PackedLinears::Supports(*source)) w_.packable_.emplace_back(tensor, source);
  }
  return tensor;
}

Linear WeightLoader::RequiredLinear(const std::string& stem, bool with_bias) {
  return Linear{.weight = RequiredMatrix(stem + ".weight"),
                .scale = Optional(stem + ".scale", Use::kVector),
                .bias = with_bias ? Optional(stem + ".bias", Use::kVector) : nullptr};
}

AttentionWeights WeightLoader::LoadAttention(const std::string& block) {
  return {.query_gate = RequiredLinear(block + "attn_q", true),
          .key = RequiredLinear(block + "attn_k", true),
          .value = RequiredLinear(block + "attn_v", true),
          .output = RequiredLinear(block + "attn_output", true),
          .query_norm = Required(block + "attn_q_norm.weight", Use::kVector),
          .key_norm = Required(block + "attn_k_norm.weight", Use::kVector)};
}

DeltaNetWeights WeightLoader::LoadDeltaNet(const std::string& block) {
  return {.qkv = RequiredLinear(block + "attn_qkv"),
          .gate = RequiredLinear(block + "attn_gate"),
          .alpha = RequiredLinear(block + "ssm_alpha"),
          .beta = RequiredLinear(block + "ssm_beta"),
          .output = RequiredLinear(block + "ssm_out"),
          .conv = Required(block + "ssm_conv1d.weight", Use::kConvolution),
          .dt_bias = Required(block + "ssm_dt.bias", Use::kVector),
          .a = Required(block + "ssm_a", Use::kVector),
          .norm = Required(block + "ssm_norm.weight", Use::kVector)};
}

void WeightLoader::TransposeConvolutions() {
  for (LayerWeights& layer : w_.layers_) {
    if (!layer.delta_net) continue;
    DeltaNetWeights& weights = *layer.delta_net;
    const ggml_tensor* const vectors[] = {weights.conv, weights.dt_bias, weights.a, weights.norm};
    if (std::ranges::any_of(vectors, [](const ggml_tensor* tensor) {
          return tensor->buffer == nullptr || !ggml_backend_buffer_is_host(tensor->buffer);
        })) {
      continue;
    }
    const auto taps = static_cast<std::size_t>(weights.conv->ne[0]);
    const auto channels = static_cast<std::size_t>(weights.conv->ne[1]);
    const auto* kernel = static_cast<const float*>(weights.conv->data);
    weights.conv_by_tap.resize(taps * channels);
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t t = 0; t < taps; ++t) {
        weights.conv_by_tap[t * channels + c] = kernel[c * taps + t];
      }
    }
  }
}

base::Result<void> WeightLoader::LoadDense(const Hparams& hparams) {
  const std::size_t capacity = w_.file_->tensors().size() * 2 + 8;
  mapped_context_ = NewContext(capacity);
  primary_context_ = NewContext(capacity);
  converted_context_ = NewContext(capacity);

  const gg::GgufTensor* embedding = w_.file_->FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return Fail(ErrorKind::kCorruptModel, "{}: no tensor token_embd.weight", w_.file_->name());
  }
  w_.token_embedding_ = Map(mapped_context_.get(), *embedding);
  w_.output_norm_ = Required("output_norm.weight", Use::kVector);
  const bool tied = w_.file_->FindTensor("output.weight") == nullptr;
  w_.output_.weight = RequiredMatrix(tied ? "token_embd.weight" : "output.weight");
  w_.output_.scale = tied ? nullptr : Optional("output.scale", Use::kVector);

  for (std::uint32_t i = 0; i < hparams.num_layers; ++i) {
    const std::string block = std::format("blk.{}.", i);
    LayerWeights layer;
    layer.attention_norm = Required(block + "attn_norm.weight", Use::kVector);
    layer.ffn_norm = Required(block + "post_attention_norm.weight", Use::kVector);
    if (hparams.is_recurrent(i)) {
      layer.delta_net = LoadDeltaNet(block);
    } else {
      layer.attention = LoadAttention(block);
    }
    layer.router = {.weight = RequiredMatrix(block + "ffn_gate_inp.weight")};
    layer.shared_router = Required(block + "ffn_gate_inp_shexp.weight", Use::kMatrix);
    layer.shared_gate = RequiredLinear(block + "ffn_gate_shexp");
    layer.shared_up = RequiredLinear(block + "ffn_up_shexp");
    layer.shared_down = RequiredLinear(block + "ffn_down_shexp");
    w_.layers_.push_back(std::move(layer));
  }
  if (!missing_.empty()) {
    return Fail(ErrorKind::kCorruptModel, "{}: no tensor {}", w_.file_->name(), missing_);
  }
  return Place();
}

base::Result<void> WeightLoader::Place() {
  if (auto done = Allocate(uploads_, w_.primary_); !done) return done;
  if (auto done = Allocate(converted_, w_.cpu_); !done) return done;
  for (const Pending& pending : uploads_) w_.uploaded_bytes_ += pending.source->bytes;
  for (const std::vector<Pending>* list : {&uploads_, &converted_}) {
    for (const Pending& pending : *list) {
      if (auto filled = Fill(pending); !filled) return filled;
    }
  }
  w_.contexts_.push_back(std::move(mapped_context_));
  w_.contexts_.push_back(std::move(primary_context_));
  w_.contexts_.push_back(std::move(converted_context_));
  return {};
}

base::Result<void> WeightLoader::Allocate(const std::vector<Pending>& list,
                                          ggml_backend_dev_t device) {
  ggml_backend_buffer_type_t kind = ggml_backend_dev_buffer_type(device);
  const std::size_t alignment = ggml_backend_buft_get_alignment(kind);
  const auto padded = [&](const Pending& p) {
    return GGML_PAD(ggml_backend_buft_get_alloc_size(kind, p.tensor), alignment);
  };
  for (std::size_t first = 0; first < list.size();) {
    std::size_t last = first;
    std::size_t total = 0;
    while (last < list.size() &&
           (last == first || total + padded(list[last]) <= ggml_backend_buft_get_max_size(kind))) {
      total += padded(list[last++]);
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(kind, total);
    if (buffer == nullptr) {
      return Fail(ErrorKind::kCapacity,
                  "{} has no room for {} of the dense part; put another target first in --targets",
                  ggml_backend_dev_name(device), base::FormatBytes(base::Bytes(total)));
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    w_.buffers_.emplace_back(buffer);
    if (device != w_.cpu_) w_.primary_bytes_ += base::Bytes(total);
    auto* address = static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer));
    for (; first < last; ++first) {
      const ggml_status status = ggml_backend_tensor_alloc(buffer, list[first].tensor, address);
      ES_CHECK(status == GGML_STATUS_SUCCESS);
      address += padded(list[first]);
    }
  }
  return {};
}

base::Result<void> WeightLoader::CheckStop() const {
  if (!control_.stop.stop_requested()) return {};
  return Fail(ErrorKind::kCancelled, "loading was interrupted");
}

base::Result<void> WeightLoader::Copy(const Pending& pending) {
  const std::span<const std::byte> bytes = w_.file_->Data(*pending.source);
  for (std::size_t first = 0; first < bytes.size(); first += kUploadStep) {
    if (auto on = CheckStop(); !on) return on;
    const std::size_t count = std::min(kUploadStep, bytes.size() - first);
    ggml_backend_tensor_set(pending.tensor, bytes.data() + first, first, count);
    w_.file_->shards()[pending.source->shard].ReleasePages(pending.source->offset + first, count);
    Report(base::Bytes(count));
  }
  return {};
}

base::Result<void> WeightLoader::Fill(const Pending& pending) {
  if (static_cast<int>(pending.tensor->type) == pending.source->type) return Copy(pending);
  if (auto on = CheckStop(); !on) return on;
  const std::vector<float> values =
      ToFloats(w_.file_->Data(*pending.source), static_cast<ggml_type>(pending.source->type),
               static_cast<std::size_t>(ggml_nelements(pending.tensor)));
  ggml_backend_tensor_set(pending.tensor, values.data(), 0, values.size() * sizeof(float));
  w_.file_->shards()[pending.source->shard].ReleasePages(pending.source->offset,
                                                         pending.source->bytes.count());
  Report(pending.source->bytes);
  return {};
}

void WeightLoader::Report(base::Bytes filled) {
  filled_bytes_ += filled;
  if (!control_.progress || filled_bytes_ > w_.uploaded_bytes_) return;
  base::Bytes total = w_.uploaded_bytes_;
  if (w_.repack_ == moe::Repack::kAuto) {
    for (const auto& [tensor, source] : w_.packable_) total += source->bytes;
  }
  control_.progress(filled_bytes_, total);
}

}  // namespace model::qwen35moe
