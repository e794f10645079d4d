// One completion: prompt in chunks, then token by token.
//
// Drives a ModelBackend; holds no state of its own between calls. Call from the inference thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/backend.h"
#include "model/text/sampler.h"
#include "model/text/vocabulary.h"

namespace engine {

struct CompletionRequest {
  std::vector<model::Token> prompt;  // at least one token
  std::size_t max_tokens = 128;
  bool ignore_end = false;       // go on past an end-of-generation token
  std::size_t batch_rows = 512;  // prompt tokens a step; cut to what the backend takes
  std::uint32_t slot = 0;
  model::SamplingSettings sampling;
};

// Called on the caller's thread between steps; either may be empty.
struct CompletionObserver {
  std::function<void(std::size_t done, std::size_t total)> prompt_progress;
  std::function<void(std::string_view piece)> token;  // bytes; may cut a UTF-8 sequence
};

struct CompletionTimings {
  double prompt_ms = 0;  // all prompt steps
  double decode_ms = 0;  // all steps after the first generated token
  // Tokens a second; 0 when nothing was measured.
  double prompt_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
};

struct Completion {
  std::vector<model::Token> tokens;  // generated, without a closing end-of-generation token
  std::string text;
  bool ended = false;  // the model stopped by itself
  CompletionTimings timings;
};

// Clears the slot, computes the prompt and generates. Errors: kInvalidInput when the prompt is
// empty or does not fit the slot together with max_tokens (both numbers are named), or a sampling
// setting is refused; kCancelled on `stop`; those of Sampler::Next and ModelBackend::Evaluate.
base::Result<Completion> Complete(model::ModelBackend& backend, const model::Vocabulary& vocabulary,
                                  const CompletionRequest& request,
                                  const CompletionObserver& observer, std::stop_token stop);

}  // namespace engine
