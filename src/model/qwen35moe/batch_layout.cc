#include "model/qwen35moe/batch_layout.h"

#include <algorithm>
#include <numeric>

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;

// The slot lengths after the batch.
base::Result<std::vector<std::uint32_t>> CheckRows(std::span<const BatchRow> rows,
                                                   const BatchLimits& limits) {
  if (rows.empty() || rows.size() > limits.max_rows) {
    return Fail(ErrorKind::kInvalidInput, "a batch of {} rows; it must have 1 to {}", rows.size(),
                limits.max_rows);
  }
  std::vector<std::uint32_t> lengths(limits.slot_lengths.begin(), limits.slot_lengths.end());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BatchRow& row = rows[i];
    if (row.token < 0 || static_cast<std::size_t>(row.token) >= limits.vocab_size) {
      return Fail(ErrorKind::kInvalidInput, "row {}: token {} is not in the vocabulary of {}", i,
                  row.token, limits.vocab_size);
    }
    if (row.slot >= lengths.size()) {
      return Fail(ErrorKind::kInvalidInput, "row {}: slot {} of {}", i, row.slot, lengths.size());
    }
    if (row.position != lengths[row.slot]) {
      return Fail(ErrorKind::kInvalidInput, "row {}: position {} where slot {} continues at {}", i,
                  row.position, row.slot, lengths[row.slot]);
    }
    if (row.position >= limits.context_length) {
      return Fail(ErrorKind::kInvalidInput,
                  "row {}: position {} does not fit the context of {} tokens; use a larger --ctx",
                  i, row.position, limits.context_length);
    }
    ++lengths[row.slot];
  }
  return lengths;
}

}  // namespace

base::Result<BatchLayout> LayOutBatch(std::span<const BatchRow> rows, const BatchLimits& limits) {
  base::Result<std::vector<std::uint32_t>> lengths = CheckRows(rows, limits);
  if (!lengths) return base::Forward(lengths);

  BatchLayout layout;
  layout.order.resize(rows.size());
  std::iota(layout.order.begin(), layout.order.end(), 0U);
  std::ranges::stable_sort(layout.order, {}, [&](std::uint32_t i) { return rows[i].slot; });

  std::uint32_t longest = 0;
  for (std::uint32_t slot = 0; slot < lengths->size(); ++slot) {
    const std::uint32_t added = (*lengths)[slot] - limits.slot_lengths[slot];
    if (added == 0) continue;
    longest = std::max(longest, (*lengths)[slot]);
    SlotRun* last = layout.shape.runs.empty() ? nullptr : &layout.shape.runs.back();
    if (last != nullptr && last->first_slot + last->num_slots == slot &&
        last->rows_per_slot == added) {
      ++last->num_slots;
    } else {
      layout.shape.runs.push_back(SlotRun{slot, 1, added});
    }
  }
  const std::uint32_t padded = (longest + kCellStep - 1) / kCellStep * kCellStep;
  layout.shape.num_cells = std::min(padded, static_cast<std::uint32_t>(limits.num_cells));

  std::vector<std::uint32_t> graph_row(rows.size());
  for (std::uint32_t at = 0; at < layout.order.size(); ++at) graph_row[layout.order[at]] = at;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].wants_logits) layout.outputs.push_back(graph_row[i]);
  }
  layout.shape.num_outputs = static_cast<std::uint32_t>(layout.outputs.size());
  return layout;
}

}  // namespace model::qwen35moe
