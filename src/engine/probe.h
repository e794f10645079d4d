// The logits of a fixed sequence of tokens, to tell how far two ways of running one model differ.
// Call from the inference thread.
#pragma once

#include <cstddef>
#include <span>
#include <stop_token>
#include <vector>

#include "base/result.h"
#include "model/backend.h"

namespace engine {

struct ProbeRequest {
  std::size_t prompt_tokens = 64;  // in steps of at most `batch_rows`
  std::size_t single_tokens = 16;  // after them, one a step
  std::size_t batch_rows = 512;    // cut to what the backend takes
};

// [prompt_tokens + single_tokens, vocab] logits of tokens that depend on the vocabulary's size
// alone. Leaves slot 0 cleared. Errors: kInvalidInput when the tokens do not fit the context;
// kCancelled on `stop`; those of ModelBackend::Evaluate.
base::Result<std::vector<float>> ProbeLogits(model::ModelBackend& backend,
                                             const ProbeRequest& request, std::stop_token stop);

// Sum of squared differences over the sum of the reference's squares; infinite when the sizes
// differ or the reference is nothing but zeros.
double NormalisedError(std::span<const float> values, std::span<const float> reference);

}  // namespace engine
