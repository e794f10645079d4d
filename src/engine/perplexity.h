// Perplexity of a text, scored as llama-perplexity scores it.
//
// The text's tokens are cut into consecutive chunks of the context length, the rest is dropped.
// Each chunk is computed from an empty slot, its first token replaced by the start token where the
// vocabulary asks for one, and the second half of it is scored: for each position from n / 2 to
// n - 2 the negative log likelihood of the next token. Call from the inference thread.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <vector>

#include "base/result.h"
#include "model/backend.h"
#include "model/text/vocabulary.h"

namespace engine {

struct PerplexityRequest {
  std::vector<model::Token> tokens;
  std::size_t chunk_tokens = 512;  // at least 4, at most the backend's context
  std::size_t batch_rows = 512;    // tokens a step; cut to what the backend takes
};

struct Perplexity {
  double nll = 0;          // mean negative log likelihood, nats a scored token
  double ppl = 0;          // exp(nll)
  std::size_t tokens = 0;  // scored
};

// `progress`, which may be empty, is called after each chunk with the result so far. Errors:
// kInvalidInput when there are fewer tokens than one chunk or the chunk does not fit the context;
// kCancelled on `stop`; those of ModelBackend::Evaluate.
base::Result<Perplexity> MeasurePerplexity(
    model::ModelBackend& backend, const model::Vocabulary& vocabulary,
    const PerplexityRequest& request,
    const std::function<void(std::size_t done, std::size_t total, const Perplexity&)>& progress,
    std::stop_token stop);

}  // namespace engine
