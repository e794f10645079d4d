// HostCompute: the experts that this process's CPU owns.
//
// Computes on the threads of the caller's team (expert_compute.h): Begin only takes the batch over,
// Finish does nothing. Weights are used where the file is mapped or, of layers that were packed at
// load, in the packed copy. Pairs are grouped by expert, so that each expert's weights are read
// once a batch; gate and up run together, SwiGLU and the conversion of the hidden vector follow
// while it is in cache. No phase has a barrier inside.
//
// How the team shares the work. With few pairs (decode) each thread takes a contiguous part of the
// rows of every expert; with many (a prompt) the threads take experts, or parts of those with many
// pairs, as they get free, the expert with most pairs first. Neither changes a bit of any result.
//
// Bit rule: a pair's vector depends on its row and expert alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/compute/aligned_buffer.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/packed_experts.h"
#include "moe/compute/pair_groups.h"
#include "moe/compute/projection.h"
#include "moe/runtime/runtime.h"

namespace moe {

struct HostComputeOptions {
  std::string name = "cpu";                      // the target's, for messages
  std::shared_ptr<const ExpertWeights> weights;  // of every layer; kept alive
  // Whose units it computes: `target`'s in `runtime`. Without a runtime every unit.
  std::shared_ptr<const ExpertSplitRuntime> runtime = nullptr;
  TargetId target = {};
  // Layers in here are computed from it: it holds every unit of them that is computed. May be
  // nullptr.
  std::shared_ptr<const PackedExperts> packed = nullptr;
};

class HostCompute final : public MoeExpertCompute {
 public:
  // Errors: kUnsupported naming the tensor whose type or width has no kernel; kCorruptModel naming
  // the tensor that does not fit its layer.
  static base::Result<std::unique_ptr<HostCompute>> Make(HostComputeOptions options);

  // Another plan for the same model. Between batches only, by the thread that calls Begin. Units of
  // packed layers that were not packed cannot become the target's.
  void SetRuntime(std::shared_ptr<const ExpertSplitRuntime> runtime);

  // The same with another `packed` (HostComputeOptions). Errors: as Make; nothing has changed then.
  base::Result<void> SetUnits(std::shared_ptr<const ExpertSplitRuntime> runtime,
                              std::shared_ptr<const PackedExperts> packed);

  // What it holds beside the weights for batches of `num_rows` rows with `num_used` experts each;
  // a fixed number of quantised rows a thread comes on top.
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
    Projection gate;
    Projection up;
    Projection down;
    std::size_t n_embd = 0;
    std::size_t n_ff = 0;
    bool shared_vectors = false;  // gate and up take the same converted rows
    const PackedExperts::Layer* packed = nullptr;
  };

  // Panels that one thread is working with.
  struct Panels {
    AlignedBuffer first;
    AlignedBuffer second;
  };

  static base::Result<Layer> MakeLayer(const HostComputeOptions& options, LayerId id);
  static base::Result<std::vector<Layer>> MakeLayers(const HostComputeOptions& options);
  HostCompute(HostComputeOptions options, std::vector<Layer> layers);

  const Layer& layer() const { return layers_[batch_.layer.index()]; }
  // Bytes of the granule counters of one pair; none where elements are quantised one by one.
  static std::size_t CompletedBytes(const Layer& layer);
  bool OwnsAny(std::size_t row) const;
  void ConvertRow(std::size_t row);
  void GroupPairs(std::size_t num_threads);
  // Into how many parts the rows of a group are cut when there are many pairs.
  std::size_t NumParts(const PairGroup& group, std::size_t num_threads) const;
  // Calls `compute(group, first_row, end_row)` for this thread's share of `num_rows` output rows of
  // every group; `next` is the phase's counter of parts handed out.
  template <class Compute>
  void Share(TeamThread thread, std::size_t num_rows, std::atomic<std::size_t>& next,
             const Compute& compute);
  Panels* PanelsOf(TeamThread thread);
  // Panels of the vectors in `buffer`; nullptr when they are not needed or cannot be had.
  static const std::byte* BuildPanels(const Projection& projection,
                                      std::span<const std::byte* const> vectors,
                                      AlignedBuffer& buffer);

  void ExpandRows(Panels* panels, const PairGroup& group, std::size_t first, std::size_t end);
  // The hidden elements [first, first + num_rows) of pairs [pair, pair + num_pairs).
  void ExpandTile(ExpertId expert, std::size_t pair, std::size_t num_pairs, std::size_t first,
                  std::size_t num_rows, const std::byte* gate_panels, const std::byte* up_panels);
  // The rows [first, end) of the pair's hidden vector are there: whoever completes a granule
  // converts it for `down`.
  void CompleteHidden(std::size_t pair, std::size_t first, std::size_t end);
  void ReduceRows(Panels* panels, const PairGroup& group, std::size_t first, std::size_t end);

  HostComputeOptions options_;
  std::vector<Layer> layers_;
  std::vector<std::uint8_t> owned_;  // [num_layers, num_experts]

  // Of the current batch; "pair" counts positions in groups_.pairs().
  ExpertBatch batch_;
  PairGroups groups_;
  std::vector<std::size_t> part_ends_;            // [groups]: parts up to and with the group
  std::vector<const float*> part_pairs_;          // [num_rows, num_used] into values_
  std::vector<const std::byte*> gate_vectors_;    // [pairs] into gate_rows_
  std::vector<const std::byte*> up_vectors_;      // [pairs] into up_rows_, or as gate_vectors_
  std::vector<const std::byte*> hidden_vectors_;  // [pairs] into hidden_rows_ or hidden_
  AlignedBuffer gate_rows_;                       // [num_rows, gate's quantised row]
  AlignedBuffer up_rows_;                         // [num_rows, up's quantised row]
  AlignedBuffer hidden_;                          // [pairs, n_ff] floats
  AlignedBuffer hidden_rows_;                     // [pairs, down's quantised row]
  AlignedBuffer values_;                          // [pairs, n_embd] floats
  AlignedBuffer completed_;     // [pairs, granules] std::uint32_t: rows of each granule computed
  std::vector<Panels> panels_;  // [threads], or fewer: the rest does without
  alignas(64) std::atomic<std::size_t> next_expand_ = 0;
  alignas(64) std::atomic<std::size_t> next_reduce_ = 0;
  alignas(64) std::atomic<std::uint64_t> num_pairs_ = 0;
};

}  // namespace moe
