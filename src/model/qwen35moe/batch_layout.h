// How the rows of a batch are laid out for one graph.
//
// The graph computes rows slot after slot, in runs: a run is a series of neighbouring slots with
// equally many rows, so that one view of the caches covers them all. Which runs there are, how many
// cache cells they look at and how many rows want logits decides the shape of the graph; everything
// else (tokens, positions, cells) is its input. Plain values; any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/backend.h"

namespace model::qwen35moe {

// `num_slots` neighbouring slots from `first_slot` on, `rows_per_slot` rows each.
struct SlotRun {
  std::uint32_t first_slot = 0;
  std::uint32_t num_slots = 0;
  std::uint32_t rows_per_slot = 0;

  std::size_t num_rows() const { return std::size_t{num_slots} * rows_per_slot; }
  friend auto operator<=>(const SlotRun&, const SlotRun&) = default;
};

// Two batches with equal shapes run on the same graph.
struct GraphShape {
  std::vector<SlotRun> runs;  // by first_slot
  // Cache cells a row attends to, masked ones included; 0 when the graph's nodes find them.
  std::uint32_t num_cells = 0;
  std::uint32_t num_outputs = 0;  // rows with logits

  std::size_t num_rows() const {
    std::size_t rows = 0;
    for (const SlotRun& run : runs) rows += run.num_rows();
    return rows;
  }
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

struct BatchLayout {
  GraphShape shape;
  std::vector<std::uint32_t> order;    // [rows]: the batch row at each graph row
  std::vector<std::uint32_t> outputs;  // [num_outputs]: graph rows with logits, in batch order
};

// What a batch is checked against.
struct BatchLimits {
  std::size_t max_rows = 0;
  std::size_t vocab_size = 0;
  std::size_t context_length = 0;  // tokens a slot can hold
  // Cells a slot has, at least context_length; 0 for shapes that do not name cells.
  std::size_t num_cells = 0;
  std::span<const std::uint32_t> slot_lengths;  // [num_slots]
};

// num_cells of the shape is a multiple of this (or all cells), so that decoding changes it rarely.
inline constexpr std::uint32_t kCellStep = 256;

// Errors: kInvalidInput naming the row and the value: no rows, more than max_rows, a token or slot
// out of range, a position that is not the next of its slot or does not fit the context.
base::Result<BatchLayout> LayOutBatch(std::span<const BatchRow> rows, const BatchLimits& limits);

}  // namespace model::qwen35moe
