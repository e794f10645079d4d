// How the dense part's tensors get to where they are computed with: see weights.h. Internal to this
// folder; one thread.
#pragma once

#include <ggml-cpp.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "model/placed_backend.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/weights.h"

namespace model::qwen35moe {

// What a weight is used for; decides which operation a device is asked about.
enum class Use { kMatrix, kExperts, kVector, kConvolution };

// Of descriptions alone, without memory for content.
ggml_context_ptr NewContext(std::size_t num_tensors);
// With the name and shape of `source`.
ggml_tensor* NewTensor(ggml_context* context, const gg::GgufTensor& source, ggml_type type);
// Whether `device` computes with `weight` for one row and for a batch.
bool Supports(ggml_backend_dev_t device, ggml_tensor* weight, Use use);

// Collects the tensors first (Required, Optional), then gives them their memory (Place).
class WeightLoader {
 public:
  explicit WeightLoader(Weights* weights, LoadControl control = {})
      : w_(*weights), control_(std::move(control)) {}

  bool primary_is_cpu() const { return w_.primary_ == w_.cpu_; }

  // Makes the mapped files known to ggml's CPU device. Errors: kInternal.
  base::Result<void> MapShards();
  // A tensor in the mapping.
  ggml_tensor* Map(ggml_context* context, const gg::GgufTensor& source);
  // Everything but routed experts. Errors: those of Weights::Load.
  base::Result<void> LoadDense(const Hparams& hparams);
  // After LoadDense: DeltaNetWeights::conv_by_tap of layers whose vectors lie in the host's memory.
  void TransposeConvolutions();

 private:
  struct Pending {
    ggml_tensor* tensor;
    const gg::GgufTensor* source;
  };

  // Nullptr when the file has none.
  ggml_tensor* Optional(const std::string& name, Use use);
  ggml_tensor* Required(const std::string& name, Use use);
  // A matrix that can be packed when it stays with the CPU.
  ggml_tensor* RequiredMatrix(const std::string& name);
  Linear RequiredLinear(const std::string& stem, bool with_bias = false);
  AttentionWeights LoadAttention(const std::string& block);
  DeltaNetWeights LoadDeltaNet(const std::string& block);

  // Memory for everything that is not used in the mapping, and its content.
  base::Result<void> Place();
  // Buffers as large as the device allows, filled in order.
  base::Result<void> Allocate(const std::vector<Pending>& list, ggml_backend_dev_t device);
  base::Result<void> CheckStop() const;
  // Copies a part of the tensor and gives its pages back, until all is there.
  base::Result<void> Copy(const Pending& pending);
  base::Result<void> Fill(const Pending& pending);
  void Report(base::Bytes filled);

  Weights& w_;
  LoadControl control_;
  base::Bytes filled_bytes_;
  ggml_context_ptr mapped_context_;     // tensors in the mapping
  ggml_context_ptr primary_context_;    // tensors to upload
  ggml_context_ptr converted_context_;  // vectors that the CPU keeps as F32
  std::vector<Pending> uploads_;
  std::vector<Pending> converted_;
  std::string missing_;
};

}  // namespace model::qwen35moe
