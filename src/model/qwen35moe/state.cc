#include "model/qwen35moe/state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/attention.h"

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;

// Copies `bytes` between two places of one tensor.
void CopyWithin(ggml_tensor* tensor, std::size_t from, std::size_t to, std::size_t bytes) {
  if (bytes == 0) return;
  const ggml_context_ptr context(ggml_init(
      {.mem_size = ggml_tensor_overhead() * 2 + 256, .mem_buffer = nullptr, .no_alloc = true}));
  const auto count = static_cast<std::int64_t>(bytes / ggml_type_size(tensor->type));
  ggml_tensor* source = ggml_view_1d(context.get(), tensor, count, from);
  ggml_tensor* target = ggml_view_1d(context.get(), tensor, count, to);
  ES_CHECK(ggml_backend_view_init(source) == GGML_STATUS_SUCCESS);
  ES_CHECK(ggml_backend_view_init(target) == GGML_STATUS_SUCCESS);
  ggml_backend_tensor_copy(source, target);
}

// Bytes of one slot in a tensor whose outermost dimension is the slots.
std::size_t SlotBytes(const ggml_tensor* tensor, std::uint32_t num_slots) {
  return ggml_nbytes(tensor) / num_slots;
}

}  // namespace

base::Result<State> State::Make(const Hparams& hparams, Size size, ggml_backend_dev_t device) {
  State state;
  state.size_ = size;
  state.delta_scratch_ = size.for_kernels ? 0 : std::int64_t{kInPlaceRows} * hparams.value_dim();
  state.context_.reset(ggml_init({.mem_size = ggml_tensor_overhead() * (2 * hparams.num_layers + 1),
                                  .mem_buffer = nullptr,
                                  .no_alloc = true}));
  ggml_context* context = state.context_.get();
  const std::int64_t slots = size.num_slots;
  const std::int64_t cells = size.cells_per_slot;
  const std::int64_t width = std::int64_t{hparams.num_kv_heads} * hparams.head_dim;
  const std::int64_t delta =
      state.delta_scratch_ + static_cast<std::int64_t>(hparams.delta_state_size());

  std::vector<ggml_tensor*> tensors;
  for (std::uint32_t i = 0; i < hparams.num_layers; ++i) {
    LayerState layer;
    if (hparams.is_recurrent(i)) {
      layer.window = ggml_new_tensor_3d(context, GGML_TYPE_F32, hparams.conv_kernel - 1,
                                        hparams.conv_channels(), slots);
      layer.delta = ggml_new_tensor_2d(context, GGML_TYPE_F32, delta, slots);
      tensors.insert(tensors.end(), {layer.window, layer.delta});
    } else {
      layer.keys = ggml_new_tensor_2d(context, size.cache_type, width, cells * slots);
      layer.values = size.for_kernels
                         ? ggml_new_tensor_2d(context, size.cache_type, width, cells * slots)
                         : ggml_new_tensor_3d(context, size.cache_type, cells, width, slots);
      tensors.insert(tensors.end(), {layer.keys, layer.values});
    }
    state.layers_.push_back(layer);
  }
  // One buffer a tensor, so that no buffer is larger than it must be.
  for (ggml_tensor* tensor : tensors) {
    ggml_backend_buffer_type_t kind = ggml_backend_dev_buffer_type(device);
    const std::size_t bytes = ggml_backend_buft_get_alloc_size(kind, tensor);
    ggml_backend_buffer_t buffer = bytes <= ggml_backend_buft_get_max_size(kind)
                                       ? ggml_backend_buft_alloc_buffer(kind, bytes)
                                       : nullptr;
    if (buffer == nullptr) {
      return Fail(
          ErrorKind::kCapacity,
          "{} has no room for the state of {} slots with {} cells ({}); use a smaller --ctx "
          "or --parallel",
          ggml_backend_dev_name(device), size.num_slots, size.cells_per_slot,
          base::FormatBytes(RequiredBytes(hparams, size)));
    }
    state.buffers_.emplace_back(buffer);
    ES_CHECK(ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer)) ==
             GGML_STATUS_SUCCESS);
    ggml_backend_buffer_clear(buffer, 0);
  }
  return state;
}

base::Bytes State::RequiredBytes(const Hparams& hparams, Size size) {
  const std::uint64_t cell =
      std::uint64_t{2} * hparams.num_kv_heads * hparams.head_dim * ggml_type_size(size.cache_type);
  const std::uint64_t recurrent = (hparams.conv_state_size() + hparams.delta_state_size() +
                                   std::uint64_t{kInPlaceRows} * hparams.value_dim()) *
                                  sizeof(float);
  return (base::Bytes(cell) * size.cells_per_slot * hparams.num_attention_layers() +
          base::Bytes(recurrent) * hparams.num_recurrent_layers()) *
         size.num_slots;
}

bool State::Holds(const ggml_tensor* tensor) const {
  return std::ranges::any_of(layers_, [&](const LayerState& layer) {
    return tensor == layer.keys || tensor == layer.values || tensor == layer.window ||
           tensor == layer.delta;
  });
}

void State::ClearSlot(std::uint32_t slot) {
  for (const LayerState& layer : layers_) {
    for (ggml_tensor* tensor : {layer.window, layer.delta}) {
      if (tensor == nullptr) continue;
      const std::size_t bytes = SlotBytes(tensor, size_.num_slots);
      ggml_backend_tensor_memset(tensor, 0, bytes * slot, bytes);
    }
  }
}

std::vector<State::Part> State::RecurrentParts(std::uint32_t slot) const {
  std::vector<Part> parts;
  for (const LayerState& layer : layers_) {
    for (ggml_tensor* tensor : {layer.window, layer.delta}) {
      if (tensor == nullptr) continue;
      const std::size_t bytes = SlotBytes(tensor, size_.num_slots);
      const std::size_t scratch =
          tensor == layer.delta ? static_cast<std::size_t>(delta_scratch_) * sizeof(float) : 0;
      parts.push_back({tensor, bytes * slot + scratch, bytes - scratch});
    }
  }
  return parts;
}

std::size_t State::recurrent_bytes() const {
  std::size_t total = 0;
  for (const Part& part : RecurrentParts(0)) total += part.bytes;
  return total;
}

void State::SaveRecurrent(std::uint32_t slot, std::span<std::byte> bytes) const {
  for (const Part& part : RecurrentParts(slot)) {
    ES_CHECK(bytes.size() >= part.bytes);
    ggml_backend_tensor_get(part.tensor, bytes.data(), part.offset, part.bytes);
    bytes = bytes.subspan(part.bytes);
  }
}

void State::LoadRecurrent(std::uint32_t slot, std::span<const std::byte> bytes) {
  for (const Part& part : RecurrentParts(slot)) {
    ES_CHECK(bytes.size() >= part.bytes);
    ggml_backend_tensor_set(part.tensor, bytes.data(), part.offset, part.bytes);
    bytes = bytes.subspan(part.bytes);
  }
}

void State::CopyCells(std::uint32_t from, std::uint32_t to, std::uint32_t length) {
  if (from == to) return;
  for (const LayerState& layer : layers_) {
    for (ggml_tensor* tensor : {layer.keys, layer.values}) {
      if (tensor == nullptr) continue;
      const std::size_t slot = SlotBytes(tensor, size_.num_slots);
      // Of what lies cell after cell, or group after group of cells, the part in use.
      const bool by_cell = tensor == layer.keys || (size_.for_kernels && tensor == layer.values);
      const std::size_t cells =
          (length + kernels::kCellGroup - 1) / kernels::kCellGroup * kernels::kCellGroup;
      const std::size_t used = by_cell ? slot / size_.cells_per_slot * cells : slot;
      CopyWithin(tensor, slot * from, slot * to, used);
    }
  }
}

void State::CopySlot(std::uint32_t from, std::uint32_t to, std::uint32_t length) {
  if (from == to) return;
  for (const LayerState& layer : layers_) {
    for (ggml_tensor* tensor : {layer.window, layer.delta}) {
      if (tensor == nullptr) continue;
      const std::size_t slot = SlotBytes(tensor, size_.num_slots);
      CopyWithin(tensor, slot * from, slot * to, slot);
    }
  }
  CopyCells(from, to, length);
}

}  // namespace model::qwen35moe
