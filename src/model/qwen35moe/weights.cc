#include "model/qwen35moe/weights.h"

#include <format>
#include <utility>

#include "model/qwen35moe/weight_loader.h"

namespace model::qwen35moe {

base::Result<std::unique_ptr<Weights>> Weights::Load(
    const gg::GgufFile& file, const Hparams& hparams, ggml_backend_dev_t primary,
    ggml_backend_dev_t cpu, moe::Repack repack, const base::Log& log, const LoadControl& control) {
  std::unique_ptr<Weights> weights(new Weights());
  weights->file_ = &file;
  weights->primary_ = primary;
  weights->cpu_ = cpu;
  weights->repack_ = repack;
  weights->log_ = log;
  WeightLoader loader(weights.get(), control);
  if (auto mapped = loader.MapShards(); !mapped) return base::Forward(mapped);
  if (auto loaded = loader.LoadDense(hparams); !loaded) return base::Forward(loaded);
  loader.TransposeConvolutions();
  PackedLinears& packed = weights->packed_.emplace(*weights->file_);
  for (const auto& [tensor, source] : weights->packable_) {
    weights->packed_of_.emplace(tensor, packed.Add(*source));
  }
  weights->expert_storage_.resize(weights->layers_.size());
  return weights;
}

base::Result<void> Weights::Pack(std::size_t num_threads, base::Bytes untouched,
                                 const moe::PackingMemory& memory, const LoadControl& control) {
  PackedLinears& packed = *packed_;
  if (repack_ == moe::Repack::kOff || packable_.empty() ||
      !moe::FitsPacked("matrices of the dense part are", packed.bytes(), untouched, memory, log_)) {
    return {};
  }
  PackOptions options{.num_threads = num_threads,
                      .progress = {},
                      .stop = control.stop,
                      .allocate = memory.allocate};
  if (control.progress) {
    options.progress = [&](base::Bytes done, base::Bytes total) {
      control.progress(uploaded_bytes_ + done, uploaded_bytes_ + total);
    };
  }
  if (auto done = packed.Pack(options); !done) {
    if (done.error().kind != base::ErrorKind::kCapacity) return done;
    log_.Warning("{}: matrices of the dense part are used as the file has them",
                 done.error().message);
    return {};
  }
  log_.Debug("repacked {} of the dense part", base::FormatBytes(packed.bytes()));
  return {};
}

base::Result<bool> Weights::LoadExperts(moe::LayerId layer) {
  const std::string block = std::format("blk.{}.", layer.index());
  ExpertWeights experts;
  ExpertStorage storage{.buffer = nullptr, .context = NewContext(8)};
  std::vector<std::pair<ggml_tensor*, const gg::GgufTensor*>> tensors;
  WeightLoader loader(this);
  const bool in_place = loader.primary_is_cpu();
  ggml_backend_buffer_type_t kind = ggml_backend_dev_buffer_type(primary_);
  bool accepted = true;

  const auto find = [&](const std::string& stem) {
    const auto one = [&](const std::string& name, Use use) -> ggml_tensor* {
      const gg::GgufTensor* source = file_->FindTensor(name);
      if (source == nullptr) return nullptr;
      if (in_place) return loader.Map(storage.context.get(), *source);
      ggml_tensor* tensor =
          NewTensor(storage.context.get(), *source, static_cast<ggml_type>(source->type));
      accepted =
          accepted && Supports(primary_, tensor, use) &&
          ggml_backend_buft_get_alloc_size(kind, tensor) <= ggml_backend_buft_get_max_size(kind);
      tensors.emplace_back(tensor, source);
      return tensor;
    };
    return Linear{.weight = one(block + stem + ".weight", Use::kExperts),
                  .scale = one(block + stem + ".scale", Use::kVector),
                  .bias = nullptr};
  };
  experts = {.gate = find("ffn_gate_exps"),
             .up = find("ffn_up_exps"),
             .gate_up = find("ffn_gate_up_exps"),
             .down = find("ffn_down_exps")};
  if (!in_place) {
    if (accepted) {
      storage.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(storage.context.get(), kind));
    }
    if (storage.buffer == nullptr) {
      log_.Warning("{} cannot hold the experts of layer {} in its graph",
                   ggml_backend_dev_name(primary_), layer.index());
      return false;
    }
    ggml_backend_buffer_set_usage(storage.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto& [tensor, source] : tensors) {
      const std::span<const std::byte> bytes = file_->Data(*source);
      ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
      file_->shards()[source->shard].ReleasePages(source->offset, source->bytes.count());
    }
  }
  expert_storage_[layer.index()] = std::move(storage);
  layers_[layer.index()].experts = experts;
  return true;
}

void Weights::DropExperts(moe::LayerId layer) {
  layers_[layer.index()].experts.reset();
  expert_storage_[layer.index()] = {};
}

}  // namespace model::qwen35moe
