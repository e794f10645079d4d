// Reading a text without predicting anything, for what a backend records meanwhile.
//
// The text's tokens are cut into consecutive chunks, the last one shorter; each is computed from an
// empty slot, and every token exactly once. Call from the inference thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>

#include "base/result.h"
#include "model/backend.h"
#include "model/text/vocabulary.h"

namespace engine {

struct ReadingRequest {
  std::span<const model::Token> tokens;
  std::size_t chunk_tokens = 512;  // at least 1, at most the backend's context
  std::size_t batch_rows = 512;    // tokens a step; cut to what the backend takes
};

// `progress`, which may be empty, is called after each step. Leaves slot 0 cleared. Errors:
// kInvalidInput when there are no tokens or the chunk does not fit the context; kCancelled on
// `stop`; those of ModelBackend::Evaluate.
base::Result<void> ReadTokens(
    model::ModelBackend& backend, const ReadingRequest& request,
    const std::function<void(std::size_t done, std::size_t total)>& progress, std::stop_token stop);

}  // namespace engine
