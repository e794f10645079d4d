// The routed experts inside a graph: one custom node a phase of MoeExpertCompute.
//
// The nodes run on the CPU backend and on its own threads, so that experts and dense part never
// fight for cores. Their sources are the normed hidden rows, the ids and the weights of the router;
// the barrier between phases is the one between nodes. Which compute object answers may be changed
// between steps without building anything anew.
#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "moe/compute/expert_compute.h"
#include "moe/target/ids.h"

namespace model::qwen35moe {

class ExpertNodes {
 public:
  explicit ExpertNodes(std::size_t num_layers);

  ExpertNodes(const ExpertNodes&) = delete;
  ExpertNodes& operator=(const ExpertNodes&) = delete;

  // From the next step on. Not while a graph runs.
  void SetCompute(std::shared_ptr<moe::MoeExpertCompute> compute) { compute_ = std::move(compute); }
  const std::shared_ptr<moe::MoeExpertCompute>& compute() const { return compute_; }

  // What a layer's batch is made of: `rows` [rows, n_embd], `ids` I32 and `weights` F32 [rows,
  // experts_per_token], all contiguous.
  struct Sources {
    ggml_tensor* rows = nullptr;
    ggml_tensor* ids = nullptr;
    ggml_tensor* weights = nullptr;
  };

  // The node of Begin; what a device primary computes next overlaps with the phases behind it.
  // Every node is added to `on_cpu`.
  ggml_tensor* BuildBegin(ggml_context* context, moe::LayerId layer, const Sources& sources,
                          std::vector<ggml_tensor*>* on_cpu);
  // The nodes of all other phases; returns the layer's weighted sum [rows, n_embd].
  ggml_tensor* BuildRest(ggml_context* context, moe::LayerId layer, const Sources& sources,
                         ggml_tensor* begin, std::vector<ggml_tensor*>* on_cpu);

  // Call before a graph runs.
  void StartStep();
  // Call after it ran or was abandoned: waits for a batch that is still in flight. The first error
  // of the step; none when all batches were computed.
  base::Result<void> EndStep();

 private:
  struct Node {
    ExpertNodes* owner = nullptr;
    moe::LayerId layer;
  };
  enum class Phase { kBegin, kPrepare, kExpand, kReduce, kFinish, kCombine };

  template <Phase phase>
  static void Run(ggml_tensor* result, int thread, int num_threads, void* node);
  void Begin(const ggml_tensor* result, moe::LayerId layer);
  void Finish();
  void Combine(const ggml_tensor* result, moe::TeamThread thread) const;

  std::shared_ptr<moe::MoeExpertCompute> compute_;
  std::vector<Node> nodes_;  // [layers]; graphs point to them
  // The batch in flight. Written by thread 0 in Begin and Finish, read by all behind the barrier.
  moe::ExpertBatch batch_;
  std::vector<moe::ExpertPart> parts_;
  bool in_flight_ = false;
  std::optional<base::Error> error_;
};

}  // namespace model::qwen35moe
