#include "engine/scheduler.h"

#include <algorithm>

namespace engine {
namespace {

// Gives each generating sequence its row; how many rows that took.
std::size_t ServeGenerating(std::span<const StepDemand> demands, std::size_t limit,
                            std::size_t turn, std::vector<std::size_t>& rows) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < demands.size() && used < limit; ++i) {
    const std::size_t at = (turn + i) % demands.size();
    if (!demands[at].generates) continue;
    rows[at] = 1;
    ++used;
  }
  return used;
}

void SharePrompts(std::span<const StepDemand> demands, std::size_t room,
                  std::vector<std::size_t>& rows) {
  const auto wants = [&](std::size_t i) {
    return demands[i].generates ? 0 : demands[i].prompt_rows - rows[i];
  };
  while (room > 0) {
    std::size_t hungry = 0;
    for (std::size_t i = 0; i < demands.size(); ++i) hungry += wants(i) > 0 ? 1 : 0;
    if (hungry == 0) return;
    const std::size_t share = std::max<std::size_t>(room / hungry, 1);
    for (std::size_t i = 0; i < demands.size() && room > 0; ++i) {
      const std::size_t given = std::min({wants(i), share, room});
      rows[i] += given;
      room -= given;
    }
  }
}

}  // namespace

std::vector<std::size_t> PlanStep(std::span<const StepDemand> demands, const StepLimits& limits,
                                  std::size_t turn) {
  std::vector<std::size_t> rows(demands.size(), 0);
  const std::size_t generating = ServeGenerating(demands, limits.batch_rows, turn, rows);
  // One row of room, so that no stream can hold up a prompt for good.
  const std::size_t limit =
      generating == 0
          ? limits.batch_rows
          : std::min(limits.batch_rows, std::max(limits.mixed_batch_rows, generating + 1));
  SharePrompts(demands, limit - std::min(limit, generating), rows);
  return rows;
}

std::vector<std::size_t> CheckpointsOf(std::span<const std::size_t> boundaries, std::size_t begin,
                                       std::size_t length, std::size_t spacing) {
  std::vector<std::size_t> kept;
  std::size_t last = begin;
  std::size_t final = 0;
  for (const std::size_t boundary : boundaries) {
    if (boundary <= last || boundary >= length) continue;
    final = boundary;
    if (boundary - last < spacing) continue;
    kept.push_back(boundary);
    last = boundary;
  }
  if (final > last) kept.push_back(final);
  return kept;
}

}  // namespace engine
