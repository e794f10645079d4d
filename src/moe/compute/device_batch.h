// How a batch is laid out for a device: only the pairs that it owns, in arrays of a few sizes.
//
// A graph on a device has a fixed shape, and a batch has any number of owned pairs; so pairs and
// rows are padded up to a size of a short list. Padding repeats a pair of the batch and nothing
// reads its result but with weight zero by the row it was taken from: a NaN in one row cannot reach
// another. Plain values, no ggml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"

namespace moe {

// 1 to 8 as they are, then 12, 16, 24, 32, …: at most half as many again.
std::size_t PaddedPairs(std::size_t num_pairs);
// The next power of two.
std::size_t PaddedRows(std::size_t num_rows);

// What one stack computes at once.
struct DeviceLaunch {
  std::size_t stack = 0;
  std::vector<std::uint32_t> rows;        // rows of the batch that have an owned pair here
  std::size_t num_pairs = 0;              // owned, before padding
  std::vector<std::int32_t> pair_rows;    // [padded pairs] position in `rows`
  std::vector<std::int32_t> pair_locals;  // [padded pairs] expert within the stack
  std::vector<std::int32_t> slot_pairs;   // [padded rows, num_used] position among the pairs
  std::vector<float> slot_weights;        // [padded rows, num_used]; 0 where there is no pair
  std::vector<float> gate_scales;         // [padded pairs]; empty without scales
  std::vector<float> up_scales;           // [padded pairs]; empty without scales

  void Clear();
  std::size_t padded_pairs() const { return pair_rows.size(); }
  std::size_t padded_rows(std::size_t num_used) const { return slot_pairs.size() / num_used; }
};

class DeviceBatch {
 public:
  // `locals` is [num_experts]: an expert's local id, negative when the device does not own it.
  // `stack_size` local ids make a stack; one launch takes at most `max_rows` rows of the batch. The
  // launches are in order of rows, then stacks; none is empty.
  void Build(const ExpertBatch& batch, const LayerWeights& weights,
             std::span<const std::int32_t> locals, std::size_t stack_size, std::size_t max_rows);

  std::span<const DeviceLaunch> launches() const { return {launches_.data(), num_launches_}; }
  std::size_t num_pairs() const { return num_pairs_; }

 private:
  void AddRow(const ExpertBatch& batch, const LayerWeights& weights,
              std::span<const std::int32_t> locals, std::size_t stack_size, std::size_t row,
              DeviceLaunch& launch);

  std::vector<DeviceLaunch> launches_;  // reused from batch to batch
  std::size_t num_launches_ = 0;
  std::size_t num_pairs_ = 0;
};

}  // namespace moe
