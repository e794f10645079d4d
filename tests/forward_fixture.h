// A qwen35moe model of the build's test models, loaded for tests of its forward pass.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "model/qwen35moe/directory.h"
#include "model/qwen35moe/qwen35moe_backend.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/multi_compute.h"
#include "moe/compute/packed_experts.h"

namespace test {

// Where a layer's routed experts are computed.
enum class Experts {
  kHost,       // HostCompute in the expert nodes
  kTwoOwners,  // two of them, two thirds and one third of the experts, under MultiTargetCompute
  kOnPrimary,  // the primary's own graph
};

struct ForwardOptions {
  std::string primary = "cpu";
  Experts experts = Experts::kHost;
  std::uint32_t num_slots = 1;
  std::uint32_t context_length = 512;
  base::Log log = {};
  bool kv_in_f32 = false;       // keys and values cached as F32 instead of F16
  std::size_t num_threads = 1;  // the bits are the same with more
  moe::Repack repack = moe::Repack::kAuto;
  moe::PackingMemory packing_memory = {};  // of the dense part
  model::LoadControl control = {};
};

class ForwardModel {
 public:
  // Fails the running test and returns nullptr when the model cannot be loaded.
  static std::unique_ptr<ForwardModel> Load(const std::string& path,
                                            const ForwardOptions& options = {}) {
    auto model = std::unique_ptr<ForwardModel>(new ForwardModel());
    if (auto loaded = model->LoadAll(path, options); !loaded) {
      ADD_FAILURE() << path << ": " << loaded.error().message;
      return nullptr;
    }
    return model;
  }

  model::qwen35moe::Qwen35MoeBackend& backend() { return *backend_; }
  std::size_t vocab_size() const { return backend_->vocab_size(); }

  // The logits [tokens, vocab] of `tokens` appended to `slot`, `chunk` at a time (0: all at once).
  std::vector<float> Logits(const std::vector<std::int32_t>& tokens, std::size_t chunk = 0,
                            std::uint32_t slot = 0) {
    std::vector<float> logits;
    if (chunk == 0) chunk = tokens.size();
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      std::vector<model::BatchRow> rows;
      for (std::size_t i = first; i < std::min(first + chunk, tokens.size()); ++i) {
        const auto position = static_cast<std::uint32_t>(backend_->slot_length(slot) + rows.size());
        rows.push_back({tokens[i], slot, position, true});
      }
      auto answer = backend_->Evaluate(rows, {});
      if (!answer) {
        ADD_FAILURE() << answer.error().message;
        return {};
      }
      logits.insert(logits.end(), answer->begin(), answer->end());
    }
    return logits;
  }

  // `count` ids that repeat nothing in an obvious way.
  std::vector<std::int32_t> Tokens(std::size_t count, std::uint32_t seed = 1) const {
    std::vector<std::int32_t> tokens;
    for (std::uint32_t x = seed; tokens.size() < count;) {
      x = x * 1664525U + 1013904223U;
      tokens.push_back(static_cast<std::int32_t>((x >> 12) % vocab_size()));
    }
    return tokens;
  }

 private:
  ForwardModel() = default;

  base::Result<void> LoadAll(const std::string& path, const ForwardOptions& options) {
    auto devices = gg::DiscoverDevices();
    if (!devices) return base::Forward(devices);
    const gg::Device* cpu = gg::FindDevice(*devices, "cpu");
    const gg::Device* primary = gg::FindDevice(*devices, options.primary);
    if (primary == nullptr) {
      return base::Fail(base::ErrorKind::kInvalidInput, "no device {}", options.primary);
    }
    auto file = gg::GgufFile::Open(path);
    if (!file) return base::Forward(file);
    file_ = std::make_unique<gg::GgufFile>(*std::move(file));
    auto backend = model::qwen35moe::Qwen35MoeBackend::Load(
        *file_, primary->handle, cpu->handle,
        {.context_length = options.context_length,
         .num_slots = options.num_slots,
         .max_batch_rows = 512,
         .num_threads = options.num_threads,
         .cache_type = options.kv_in_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16,
         .repack = options.repack,
         .packing_memory = options.packing_memory},
        options.log, options.control);
    if (!backend) return base::Forward(backend);
    backend_ = *std::move(backend);
    return LoadExperts(options);
  }

  base::Result<void> LoadExperts(const ForwardOptions& options) {
    const auto& weights = backend_->expert_weights();
    if (options.experts == Experts::kOnPrimary) {
      for (std::size_t i = 0; i < weights->layers.size(); ++i) {
        auto kept = backend_->KeepOnPrimary(moe::LayerId(i));
        if (!kept) return base::Forward(kept);
        if (!*kept) return base::Fail(base::ErrorKind::kInternal, "layer {} was refused", i);
      }
      return {};
    }
    if (options.experts == Experts::kTwoOwners) return LoadTwoOwners(options);
    auto packed = PackExperts(
        options, std::vector<std::uint8_t>(weights->layers.size() * weights->num_experts, 1));
    if (!packed) return base::Forward(packed);
    auto host = moe::HostCompute::Make({.weights = weights, .packed = *packed});
    if (!host) return base::Forward(host);
    backend_->SetExperts(*std::move(host));
    return {};
  }

  // Nullptr when they stay in the file.
  base::Result<std::shared_ptr<const moe::PackedExperts>> PackExperts(
      const ForwardOptions& options, std::span<const std::uint8_t> owned) const {
    if (options.repack == moe::Repack::kOff) return nullptr;
    return moe::PackedExperts::Make({.weights = backend_->expert_weights().get(), .owned = owned});
  }

  base::Result<void> LoadTwoOwners(const ForwardOptions& options) {
    auto described = model::qwen35moe::Describe(*file_);
    if (!described) return base::Forward(described);
    const moe::ModelShape& shape = described->shape;
    std::vector<std::uint8_t> split(shape.layers.size() * shape.num_experts);
    for (std::size_t i = 0; i < split.size(); ++i) split[i] = i % 3 == 1 ? 1 : 0;
    auto plan = moe::ExpertSplitPlan::FromOwners(
        shape, moe::Hotness::Uniform(shape),
        {{.name = "cpu:0", .capacity = {}}, {.name = "cpu:1", .capacity = {}}}, split);
    if (!plan) return base::Forward(plan);
    const auto runtime = moe::ExpertSplitRuntime::Make(*plan);
    std::vector<moe::MultiTargetCompute::Owner> owners;
    for (const std::size_t t : {0, 1}) {
      std::vector<std::uint8_t> owned(split.size());
      for (std::size_t i = 0; i < split.size(); ++i) owned[i] = split[i] == t ? 1 : 0;
      auto packed = PackExperts(options, owned);
      if (!packed) return base::Forward(packed);
      auto host = moe::HostCompute::Make({.name = plan->targets()[t].name,
                                          .weights = backend_->expert_weights(),
                                          .runtime = runtime,
                                          .target = moe::TargetId(t),
                                          .packed = *packed});
      if (!host) return base::Forward(host);
      owners.push_back({moe::TargetId(t), *std::move(host)});
    }
    backend_->SetExperts(std::make_shared<moe::MultiTargetCompute>(runtime, std::move(owners)));
    return {};
  }

  std::unique_ptr<gg::GgufFile> file_;  // outlives the backend
  std::unique_ptr<model::qwen35moe::Qwen35MoeBackend> backend_;
};

}  // namespace test
