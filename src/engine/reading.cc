#include "engine/reading.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace engine {

base::Result<void> ReadTokens(
    model::ModelBackend& backend, const ReadingRequest& request,
    const std::function<void(std::size_t done, std::size_t total)>& progress,
    std::stop_token stop) {
  if (request.tokens.empty()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "the text has no tokens; give at least one token of text");
  }
  if (request.chunk_tokens < 1 || request.chunk_tokens > backend.context_length()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "a chunk of {} tokens is not possible; use 1 to {} (--ctx)",
                      request.chunk_tokens, backend.context_length());
  }
  const std::size_t total = request.tokens.size();
  const std::size_t step = std::clamp<std::size_t>(request.batch_rows, 1, backend.max_batch_rows());
  std::vector<model::BatchRow> rows;
  for (std::size_t done = 0; done < total; done += rows.size()) {
    const std::size_t position = done % request.chunk_tokens;
    if (position == 0) backend.ClearSlot(0);
    const std::size_t count = std::min({step, request.chunk_tokens - position, total - done});
    rows.clear();
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back({.token = request.tokens[done + i],
                      .slot = 0,
                      .position = static_cast<std::uint32_t>(position + i)});
    }
    if (auto computed = backend.Evaluate(rows, stop); !computed) return base::Forward(computed);
    if (progress) progress(done + count, total);
  }
  backend.ClearSlot(0);
  return {};
}

}  // namespace engine
