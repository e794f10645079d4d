// What the sequences of all slots keep between steps, on the primary.
//
// A full-attention layer keeps keys and values of every token; a DeltaNet layer keeps the last
// inputs of its convolution and one matrix per value head. Graphs write all of it in place. One
// thread at a time.
//
// The DeltaNet storage of a slot is [scratch, matrices] so that the result of ggml_gated_delta_net,
// which is outputs followed by the new matrices, can be laid over it: up to kInPlaceRows rows write
// their matrices where they were read. For the CPU's own kernels there is no scratch, windows are
// [taps - 1, channels] and matrices [key channel, value channel].
#pragma once

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "model/qwen35moe/hparams.h"

namespace model::qwen35moe {

// The state of one layer, for all slots. Of the two pairs one is set.
struct LayerState {
  // Full attention. Values lie transposed, so that a head's cells are contiguous; for the kernels
  // it is keys that do, in groups of cells, and values are [slots * cells, n_head_kv * head_dim].
  ggml_tensor* keys = nullptr;    // [slots * cells, n_head_kv * head_dim]
  ggml_tensor* values = nullptr;  // [slots, n_head_kv * head_dim, cells]
  // DeltaNet, F32.
  ggml_tensor* window = nullptr;  // [slots, conv_channels, conv_kernel - 1]
  ggml_tensor* delta = nullptr;   // [slots, scratch + value_heads * state_dim * state_dim]
};

class State {
 public:
  // Rows of one slot whose DeltaNet step runs in place.
  static constexpr std::uint32_t kInPlaceRows = 4;

  struct Size {
    std::uint32_t num_slots = 1;
    std::uint32_t cells_per_slot = 256;    // a multiple of 64
    ggml_type cache_type = GGML_TYPE_F16;  // F16 or F32
    bool for_kernels = false;              // as kernels/attention.h and kernels/delta_net.h take it
  };

  // Zeroed state on `device`. Errors: kCapacity when it has no room.
  static base::Result<State> Make(const Hparams& hparams, Size size, ggml_backend_dev_t device);

  // Bytes that Make takes for one sequence count and context; what is to be counted before experts
  // are placed.
  static base::Bytes RequiredBytes(const Hparams& hparams, Size size);

  const Size& size() const { return size_; }
  const LayerState& layer(std::size_t index) const { return layers_[index]; }
  // Whether `tensor` is one of the layers' tensors itself.
  bool Holds(const ggml_tensor* tensor) const;
  // Floats of scratch in front of a slot's matrices.
  std::int64_t delta_scratch() const { return delta_scratch_; }

  // Zeroes what `slot` keeps (its cells need no clearing: a mask hides them).
  void ClearSlot(std::uint32_t slot);
  // Bytes that SaveRecurrent writes.
  std::size_t recurrent_bytes() const;
  // What DeltaNet layers keep of `slot`, out of its storage and back. `bytes` is
  // [recurrent_bytes()].
  void SaveRecurrent(std::uint32_t slot, std::span<std::byte> bytes) const;
  void LoadRecurrent(std::uint32_t slot, std::span<const std::byte> bytes);
  // Copies the first `length` cells of attention layers.
  void CopyCells(std::uint32_t from, std::uint32_t to, std::uint32_t length);
  // Makes `to` equal `from`, whose first `length` cells are in use.
  void CopySlot(std::uint32_t from, std::uint32_t to, std::uint32_t length);

 private:
  State() = default;
  // Where a layer's tensor keeps what must be saved of a slot.
  struct Part {
    ggml_tensor* tensor = nullptr;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  std::vector<Part> RecurrentParts(std::uint32_t slot) const;

  ggml_context_ptr context_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
  Size size_;
  std::int64_t delta_scratch_ = 0;
  std::vector<LayerState> layers_;
};

}  // namespace model::qwen35moe
