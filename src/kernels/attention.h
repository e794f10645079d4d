// Softmax attention of query heads over a cache of keys and values on a CPU.
//
// The cache of a sequence holds `width` channels a cell, the key and value heads side by side. Keys
// lie in groups of kCellGroup cells, [groups, width, kCellGroup], so that a vector holds one
// channel of neighbouring cells; values lie [cells, width]. A result depends on its own query and
// the cells it sees alone, never on what else is computed in the call: it has the same bits
// whatever rows share a batch. Reentrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/instruction_set.h"

namespace kernels {

inline constexpr std::size_t kCellGroup = 16;
inline constexpr std::size_t kHeadGranule = 16;  // head_dim is a multiple of this
inline constexpr std::size_t kMaxHeadDim = 512;  // and at most this

enum class CacheType { kF16, kF32 };

struct AttentionCache {
  CacheType type = CacheType::kF16;
  std::size_t width = 0;  // a multiple of kHeadGranule
  void* keys = nullptr;   // memory of 2 * kCellGroup cells beyond those in use may be read
  void* values = nullptr;

  // Writes one cell; key and value are [width].
  void Store(std::size_t cell, const float* key, const float* value) const;
};

// One head of one row.
struct AttentionQuery {
  const float* query = nullptr;  // [head_dim]
  const float* gate = nullptr;   // [head_dim]; the result is times sigmoid(gate)
  float* out = nullptr;          // [head_dim]
  std::size_t num_cells = 0;     // it sees the first so many cells, at least 1
};

// Of one key and value head, whose channels begin at `first_channel`.
struct AttentionHead {
  std::size_t first_channel = 0;
  std::size_t head_dim = 0;
  float scale = 1.0f;  // of query times key
};

// Floats of memory for the scores of one query that sees `num_cells` cells.
constexpr std::size_t ScoreStride(std::size_t num_cells) {
  return (num_cells + 2 * kCellGroup - 1) / (2 * kCellGroup) * (2 * kCellGroup);
}

// Neighbouring queries should see about the same cells. `scores` is memory of
// ScoreStride(most cells that a query sees) floats for each query. With an F16 cache queries and
// the softmax's shares are rounded to F16 before they are multiplied, as ggml does.
using AttendFunction = void (*)(const AttentionCache& cache, const AttentionHead& head,
                                std::span<const AttentionQuery> queries, float* scores);

AttendFunction Attend(InstructionSet set = BestInstructionSet());

}  // namespace kernels
