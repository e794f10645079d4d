// Which rows the next step computes. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace engine {

// What a running sequence could do in a step.
struct StepDemand {
  bool generates = false;       // one row: the token it generated last
  std::size_t prompt_rows = 0;  // otherwise: rows up to its next checkpoint or the prompt's end
};

struct StepLimits {
  std::size_t batch_rows = 1;        // of a step; at least 1
  std::size_t mixed_batch_rows = 1;  // of a step in which somebody generates
};

// Rows for each demand. Sequences that generate come first, one row each. Prompts share what is
// left equally, so that a short one is not held up by a long one; what does not divide goes to the
// earlier ones. When even the generating ones exceed batch_rows, they are served in turn, beginning
// with demand number `turn` modulo their number.
std::vector<std::size_t> PlanStep(std::span<const StepDemand> demands, const StepLimits& limits,
                                  std::size_t turn);

// The boundaries of a prompt of `length` tokens at which to keep a checkpoint, when `begin` tokens
// of it are there already: ascending, behind `begin` and before the last token, each at least
// `spacing` from the one before it (or from `begin`), and the last boundary in any case.
std::vector<std::size_t> CheckpointsOf(std::span<const std::size_t> boundaries, std::size_t begin,
                                       std::size_t length, std::size_t spacing);

}  // namespace engine
