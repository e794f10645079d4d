// Picks the next token from logits, with libllama's samplers.
//
// One object a sequence; one thread at a time. The same settings, seed and logits give the same
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "model/text/vocabulary.h"

struct llama_sampler;

namespace model {

struct SamplingSettings {
  float temperature = 0.8F;  // 0 or less: always the likeliest token
  std::int32_t top_k = 40;   // 0: off
  float top_p = 0.95F;       // 1: off
  float min_p = 0.05F;       // 0: off
  std::uint32_t seed = 0;    // of the random draws
};

class Sampler {
 public:
  // Errors: kInvalidInput, naming the setting, for one that is not a number or out of range.
  static base::Result<Sampler> Make(const SamplingSettings& settings);

  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // `logits` is [vocabulary size], at least 1. Among equal logits the lowest token wins when the
  // temperature is 0.
  Token Next(std::span<const float> logits);

 private:
  struct State;
  explicit Sampler(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace model
