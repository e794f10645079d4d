#include "moe/compute/device_batch.h"

#include <algorithm>
#include <bit>

namespace moe {
namespace {

constexpr std::size_t kExactPairs = 8;

bool HasScales(const LayerWeights& weights) {
  return !weights.gate.scales.empty() || (weights.up && !weights.up->scales.empty());
}

// Repeats the first pair up to the padded size; rows without a pair in a slot name their own first.
void Pad(DeviceLaunch& launch, std::size_t num_used) {
  launch.num_pairs = launch.pair_rows.size();
  const std::size_t pairs = PaddedPairs(launch.num_pairs);
  launch.pair_rows.resize(pairs, launch.pair_rows[0]);
  launch.pair_locals.resize(pairs, launch.pair_locals[0]);
  if (!launch.gate_scales.empty()) {
    launch.gate_scales.resize(pairs, launch.gate_scales[0]);
    launch.up_scales.resize(pairs, launch.up_scales[0]);
  }
  const std::size_t slots = PaddedRows(launch.rows.size()) * num_used;
  launch.slot_pairs.resize(slots, 0);
  launch.slot_weights.resize(slots, 0.0f);
}

}  // namespace

std::size_t PaddedPairs(std::size_t num_pairs) {
  if (num_pairs <= kExactPairs) return num_pairs;
  const std::size_t power = std::bit_ceil(num_pairs);
  const std::size_t between = power / 4 * 3;
  return num_pairs <= between ? between : power;
}

std::size_t PaddedRows(std::size_t num_rows) { return std::bit_ceil(num_rows); }

void DeviceLaunch::Clear() {
  rows.clear();
  num_pairs = 0;
  pair_rows.clear();
  pair_locals.clear();
  slot_pairs.clear();
  slot_weights.clear();
  gate_scales.clear();
  up_scales.clear();
}

void DeviceBatch::AddRow(const ExpertBatch& batch, const LayerWeights& weights,
                         std::span<const std::int32_t> locals, std::size_t stack_size,
                         std::size_t row, DeviceLaunch& launch) {
  const std::size_t first_pair = launch.pair_rows.size();
  const std::size_t first_slot = launch.slot_pairs.size();
  const bool scales = HasScales(weights);
  for (std::size_t s = 0; s < batch.num_used; ++s) {
    const std::size_t at = row * batch.num_used + s;
    const auto id = static_cast<std::uint32_t>(batch.ids[at]);
    if (id >= locals.size() || locals[id] < 0) continue;
    const auto local = static_cast<std::size_t>(locals[id]);
    if (local / stack_size != launch.stack) continue;
    const ExpertId expert(id);
    // The slots of a row are taken in the router's order.
    launch.slot_pairs.push_back(static_cast<std::int32_t>(launch.pair_rows.size()));
    launch.slot_weights.push_back(batch.weights[at] * weights.down.scale(expert));
    launch.pair_rows.push_back(static_cast<std::int32_t>(launch.rows.size()));
    launch.pair_locals.push_back(static_cast<std::int32_t>(local % stack_size));
    if (!scales) continue;
    launch.gate_scales.push_back(weights.gate.scale(expert));
    launch.up_scales.push_back((weights.up ? *weights.up : weights.gate).scale(expert));
  }
  if (launch.pair_rows.size() == first_pair) return;
  launch.slot_pairs.resize(first_slot + batch.num_used, static_cast<std::int32_t>(first_pair));
  launch.slot_weights.resize(first_slot + batch.num_used, 0.0f);
  launch.rows.push_back(static_cast<std::uint32_t>(row));
}

void DeviceBatch::Build(const ExpertBatch& batch, const LayerWeights& weights,
                        std::span<const std::int32_t> locals, std::size_t stack_size,
                        std::size_t max_rows) {
  num_launches_ = 0;
  num_pairs_ = 0;
  // Places may be vacant, so the number of owned experts does not tell how many there are.
  const auto last = std::ranges::max_element(locals);
  const auto places = static_cast<std::size_t>(last == locals.end() ? 0 : std::max(*last + 1, 0));
  const std::size_t num_stacks = (places + stack_size - 1) / stack_size;
  for (std::size_t first = 0; first < batch.num_rows; first += max_rows) {
    const std::size_t end = std::min(batch.num_rows, first + max_rows);
    for (std::size_t stack = 0; stack < num_stacks; ++stack) {
      if (num_launches_ == launches_.size()) launches_.emplace_back();
      DeviceLaunch& launch = launches_[num_launches_];
      launch.Clear();
      launch.stack = stack;
      for (std::size_t row = first; row < end; ++row) {
        AddRow(batch, weights, locals, stack_size, row, launch);
      }
      if (launch.rows.empty()) continue;
      Pad(launch, batch.num_used);
      num_pairs_ += launch.num_pairs;
      ++num_launches_;
    }
  }
}

}  // namespace moe
