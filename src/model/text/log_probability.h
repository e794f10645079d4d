// Log probabilities of tokens under a model's own distribution. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/text/vocabulary.h"

namespace model {

struct TokenProbability {
  Token token = 0;
  float log_probability = 0;  // natural logarithm
};

// That of `token` and of the `count` likeliest tokens, the likeliest first and among equals the
// lowest token first.
struct LogProbabilities {
  float token = 0;
  std::vector<TokenProbability> top;  // [min(count, vocabulary size)]
};

// `logits` is [vocabulary size] and holds `token`.
LogProbabilities LogProbabilitiesOf(std::span<const float> logits, Token token, std::size_t count);

}  // namespace model
