// Picks the next token from logits, with libllama's samplers.
//
// One object a sequence; one thread at a time. The same settings, prompt and logits give the same
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/text/vocabulary.h"

struct llama_sampler;

namespace model {

// Added to the logit of `token` before anything else; minus infinity forbids it.
struct LogitBias {
  Token token = 0;
  float bias = 0;
};

// The defaults and the order in which they work are llama.cpp's: bias, penalties, DRY, top-k,
// typical, top-p, min-p, temperature.
struct SamplingSettings {
  float temperature = 0.8F;  // 0: always the likeliest token
  std::int32_t top_k = 40;   // 0: off
  float top_p = 0.95F;       // 1: off
  float min_p = 0.05F;       // 0: off
  std::uint32_t seed = 0;    // of the random draws
  float typical_p = 1;       // 1: off

  // Penalties for tokens among the last `penalty_last_n` of the text, the prompt included.
  std::int32_t penalty_last_n = 64;  // 0: off; -1: as many as kMaxLastTokens
  float repeat_penalty = 1;          // above 0; 1: off
  float frequency_penalty = 0;       // 0: off
  float presence_penalty = 0;        // 0: off

  // DRY, against repeated sequences: a token that would make a repetition of n tokens loses
  // multiplier * base ^ (n - allowed_length).
  float dry_multiplier = 0;  // 0: off
  float dry_base = 1.75F;    // at least 1
  std::int32_t dry_allowed_length = 2;
  std::int32_t dry_last_n = -1;  // tokens looked at, as penalty_last_n
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};  // a repetition ends at these

  std::vector<LogitBias> logit_bias;
  std::string grammar;  // GBNF with a rule `root`, which the whole text must match; empty: off
};

inline constexpr std::int32_t kMaxLastTokens = 1 << 15;

// What can be said without a model. Errors: kInvalidInput, naming the setting, for one that is not
// a number or out of range; those of CheckGrammar.
base::Result<void> CheckSettings(const SamplingSettings& settings);

class Sampler {
 public:
  // `vocabulary` outlives the sampler. Errors: those of CheckSettings; kInvalidInput for a biased
  // token that the model does not have, also in a grammar, a grammar with left recursion, or
  // grammar and DRY with a model without a tokeniser.
  static base::Result<Sampler> Make(const SamplingSettings& settings, const Vocabulary& vocabulary);

  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // Tells penalties and DRY what stands in front of the generated text.
  void Prime(std::span<const Token> prompt);

  // Picks a token and counts it as generated. `logits` is [vocabulary size], at least 1. Among
  // equal logits the lowest token wins when the temperature is 0. Errors: kInternal when no token
  // can follow under the grammar or the logits are not numbers.
  base::Result<Token> Next(std::span<const float> logits);

 private:
  struct State;
  explicit Sampler(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace model
