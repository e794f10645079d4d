// ModelBackend of the qwen35moe family: a gated DeltaNet hybrid with routed experts.
//
// Holds weights, state and graphs. The routed experts of a layer are computed by the
// moe::MoeExpertCompute that SetExperts hands in, or, for layers that KeepOnPrimary loaded, by the
// primary's own graph. Threads as ModelBackend says.
#pragma once

#include <ggml-cpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "model/placed_backend.h"
#include "model/qwen35moe/expert_nodes.h"
#include "model/qwen35moe/graph.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/state.h"
#include "model/qwen35moe/weights.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/target/ids.h"

namespace model::qwen35moe {

struct BackendOptions {
  std::uint32_t context_length = 4096;  // tokens a slot can hold
  std::uint32_t num_slots = 1;
  std::uint32_t max_batch_rows = 512;
  std::size_t num_threads = 1;
  ggml_type cache_type = GGML_TYPE_F16;     // of keys and values: F16 or F32
  moe::Repack repack = moe::Repack::kAuto;  // of the dense matrices that the CPU computes with
  moe::PackingMemory packing_memory;        // seam
};

class Qwen35MoeBackend final : public PlacedBackend {
 public:
  // Loads the dense part of `file`, which must outlive the backend. `primary` runs it; it may be
  // `cpu`. Experts are still missing: see KeepOnPrimary and SetExperts. Errors: kCorruptModel (also
  // those of Describe and ReadHparams), kCapacity, kDeviceFailure, kCancelled.
  static base::Result<std::unique_ptr<Qwen35MoeBackend>> Load(
      const gg::GgufFile& file, ggml_backend_dev_t primary, ggml_backend_dev_t cpu,
      const BackendOptions& options, const base::Log& log, const LoadControl& control = {});

  ~Qwen35MoeBackend() override;

  base::Result<bool> KeepOnPrimary(moe::LayerId layer) override;
  void SetExperts(std::shared_ptr<moe::MoeExpertCompute> compute) override;
  const std::shared_ptr<const moe::ExpertWeights>& expert_weights() const override {
    return expert_weights_;
  }
  base::Bytes untouched_host_bytes() const override;
  void RecordRouting(moe::RoutingRecorder* recorder) override { recorder_ = recorder; }
  std::uint64_t primary_pairs() const override {
    return primary_pairs_.load(std::memory_order_relaxed);
  }

  std::size_t num_slots() const override { return lengths_.size(); }
  std::size_t context_length() const override { return options_.context_length; }
  std::size_t max_batch_rows() const override { return options_.max_batch_rows; }
  std::size_t vocab_size() const override { return hparams_.num_vocab; }
  std::size_t slot_length(std::uint32_t slot) const override { return lengths_[slot]; }
  // Besides the errors of the interface: kInternal when a layer has neither stacks nor a compute
  // object; kCapacity when compute buffers do not fit (the slots are as before).
  base::Result<std::span<const float>> Evaluate(std::span<const BatchRow> rows,
                                                std::stop_token stop) override;
  void ClearSlot(std::uint32_t slot) override;
  base::Result<void> CopySlot(std::uint32_t from, std::uint32_t to) override;
  base::Result<std::unique_ptr<SlotCheckpoint>> SaveSlot(std::uint32_t slot) override;
  base::Result<void> RestoreSlot(const SlotCheckpoint& checkpoint, std::uint32_t from,
                                 std::uint32_t to) override;
  void SetThreads(std::size_t count) override;
  std::uint64_t graphs_built() const override { return graphs_built_; }
  std::vector<ExpertCounter> expert_counters() const override;
  void TimeNodes(bool on) override;
  std::vector<NodeTime> node_times() const override;

  // Bytes on the primary: dense weights (none when they are used in the mapping) and state.
  base::Bytes dense_bytes() const { return weights_->primary_bytes(); }
  // Memory of dense weights that were repacked for the CPU.
  base::Bytes packed_bytes() const { return weights_->packed_bytes(); }
  base::Bytes state_bytes() const { return State::RequiredBytes(hparams_, state_->size()); }
  // Compute buffers of the graphs that are kept now.
  base::Bytes graph_bytes() const;
  // Makes the graph of the largest batch of one slot at full context, so that its memory is taken
  // before experts are placed (Load does it on a device). It is kept until the next Evaluate even
  // when KeepOnPrimary makes it useless, and not counted by graphs_built(). Errors: kCapacity.
  base::Result<void> ReserveGraphs();

 private:
  Qwen35MoeBackend() = default;
  // On the primary, or on the CPU when the primary refuses to work on it there.
  base::Result<void> MakeState(ggml_backend_dev_t primary, ggml_backend_dev_t cpu,
                               const base::Log& log);
  base::Result<Graph*> FindOrBuildGraph(const GraphShape& shape);
  // Rows of the largest step of one sequence.
  std::uint32_t LargestStep() const {
    return std::min(options_.max_batch_rows, options_.context_length);
  }
  // Cells of a slot as shapes of graphs name them.
  std::uint32_t ShapeCells() const {
    return state_->size().for_kernels ? 0 : state_->size().cells_per_slot;
  }
  GraphShape LargestShape() const {
    return {.runs = {{0, 1, LargestStep()}}, .num_cells = ShapeCells(), .num_outputs = 1};
  }
  bool ExpertsAreComplete() const;

  Hparams hparams_;
  BackendOptions options_;
  // Freed in reverse: graphs before state, weights and backends.
  std::vector<ggml_backend_ptr> backends_;  // the primary first, the CPU last
  std::unique_ptr<Weights> weights_;
  std::shared_ptr<const moe::ExpertWeights> expert_weights_;
  std::unique_ptr<State> state_;
  std::unique_ptr<ExpertNodes> experts_;
  GraphSources sources_;
  std::vector<std::unique_ptr<Graph>> graphs_;  // most recently used first
  bool graphs_are_stale_ = false;               // made for other layers on the primary than now
  std::uint64_t graphs_built_ = 0;
  std::atomic<std::uint64_t> primary_pairs_ = 0;  // read by status pages while steps run
  NodeTimer timer_;
  bool times_nodes_ = false;
  std::vector<std::uint32_t> lengths_;  // [num_slots]
  std::vector<float> logits_;
  moe::RoutingRecorder* recorder_ = nullptr;
  std::vector<std::int32_t> routing_;  // of the last step that was recorded, as Graph::Run gives it
  std::stop_token stop_;               // of the Evaluate in progress
};

}  // namespace model::qwen35moe
