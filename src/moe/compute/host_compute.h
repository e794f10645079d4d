// HostCompute: the experts that this process's CPU owns, computed where the file is mapped.
//
// Computes on the threads of the caller's team (expert_compute.h): Begin only takes the batch over,
// Finish does nothing. Weights are used in place. Pairs are grouped by expert, so that each
// expert's weights are read once a batch; gate and up run together, SwiGLU and the conversion of
// the hidden vector follow while it is in cache. No phase has a barrier inside.
//
// How the team shares the work. With few pairs (decode) each thread takes a contiguous part of the
// rows of every expert; with many (a prompt) the threads take parts of experts as they get free,
// the expert with most pairs first. Neither changes a bit of any result.
//
// Bit rule: a pair's vector depends on its row and expert alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/cpu_traits.h"
#include "moe/compute/aligned_buffer.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/pair_groups.h"
#include "moe/compute/row_kernel.h"
#include "moe/runtime/runtime.h"

namespace moe {

struct HostComputeOptions {
  std::string name = "cpu";                      // the target's, for messages
  std::shared_ptr<const ExpertWeights> weights;  // of every layer; kept alive
  // Whose units it computes: `target`'s in `runtime`. Without a runtime every unit.
  std::shared_ptr<const ExpertSplitRuntime> runtime = nullptr;
  TargetId target = {};
  gg::CpuTraits traits = gg::CpuTraits::Portable();
};

class HostCompute final : public MoeExpertCompute {
 public:
  // Errors: kUnsupported naming the tensor whose type has no kernel or whose rows its blocks do not
  // divide; kCorruptModel naming the tensor that does not fit its layer.
  static base::Result<std::unique_ptr<HostCompute>> Make(HostComputeOptions options);

  // Another plan for the same model. Between batches only, by the thread that calls Begin.
  void SetRuntime(std::shared_ptr<const ExpertSplitRuntime> runtime);

  // What it holds beside the weights for batches of `num_rows` rows with `num_used` experts each.
  base::Bytes ScratchBytes(std::size_t num_rows, std::size_t num_used) const;

  // Errors: kCapacity when there is no memory for a batch of this size; kInternal when the batch
  // does not fit the model (layer or width).
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  base::Result<void> Finish() override { return {}; }
  ExpertPart part(std::size_t index) const override;
  std::size_t num_parts() const override { return 1; }
  // Any thread.
  std::uint64_t num_pairs(std::size_t) const override {
    return num_pairs_.load(std::memory_order_relaxed);
  }

 private:
  // How one layer's matrices are multiplied. Fused gate_up is two matrices in one here.
  struct Layer {
    RowKernel gate;
    RowKernel up;
    RowKernel down;
    const LayerWeights* weights = nullptr;
    bool shared_vectors = false;  // gate and up take the same converted rows

    const std::byte* GateRows(ExpertId expert) const;
    const std::byte* UpRows(ExpertId expert) const;
    std::size_t up_row_bytes() const {
      return (weights->up ? *weights->up : weights->gate).row_bytes;
    }
  };

  static base::Result<Layer> MakeLayer(const HostComputeOptions& options,
                                       const LayerWeights& weights);
  HostCompute(HostComputeOptions options, std::vector<Layer> layers);

  const Layer& layer() const { return layers_[batch_.layer.index()]; }
  bool OwnsAny(std::size_t row) const;
  void ConvertRow(std::size_t row);
  void GroupPairs();
  // Calls `compute(group, first_row, end_row)` for this thread's share of `num_rows` output rows of
  // every group; `next` is the phase's counter of parts handed out.
  template <class Compute>
  void Share(TeamThread thread, std::size_t num_rows, std::size_t row_bytes,
             std::atomic<std::size_t>& next, const Compute& compute);
  void ExpandRows(const PairGroup& group, std::size_t first, std::size_t end);
  void ExpandTile(const PairGroup& group, std::size_t pair, std::size_t num_pairs,
                  std::size_t first, std::size_t num_rows);
  // The rows [first, end) of the pair's hidden vector are there: whoever completes a granule
  // converts it for `down`.
  void CompleteHidden(std::size_t pair, std::size_t first, std::size_t end);
  void ReduceRows(const PairGroup& group, std::size_t first, std::size_t end);

  HostComputeOptions options_;
  std::vector<Layer> layers_;
  std::vector<std::uint8_t> owned_;  // [num_layers, num_experts]

  // Of the current batch; "pair" counts positions in groups_.pairs().
  ExpertBatch batch_;
  PairGroups groups_;
  std::vector<const float*> part_pairs_;          // [num_rows, num_used] into values_
  std::vector<const std::byte*> gate_vectors_;    // [pairs] into gate_rows_
  std::vector<const std::byte*> up_vectors_;      // [pairs] into up_rows_, or as gate_vectors_
  std::vector<const std::byte*> hidden_vectors_;  // [pairs] into hidden_rows_ or hidden_
  AlignedBuffer gate_rows_;                       // [num_rows, gate.vector_bytes()]
  AlignedBuffer up_rows_;                         // [num_rows, up.vector_bytes()]
  AlignedBuffer hidden_;                          // [pairs, n_ff] floats
  AlignedBuffer hidden_rows_;                     // [pairs, down.vector_bytes()]
  AlignedBuffer values_;                          // [pairs, n_embd] floats
  AlignedBuffer completed_;  // [pairs, granules] std::uint32_t: rows of each granule computed
  alignas(64) std::atomic<std::size_t> next_expand_ = 0;
  alignas(64) std::atomic<std::size_t> next_reduce_ = 0;
  alignas(64) std::atomic<std::uint64_t> num_pairs_ = 0;
};

}  // namespace moe
