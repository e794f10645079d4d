// For tests: whether a grammar accepts a text, asked of libllama through a Sampler.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "model/text/sampler.h"
#include "model/text/vocabulary.h"

namespace engine {

// Whether `grammar` lets a model write `text` and end there. Fails the running test when the
// grammar does not parse.
inline bool Accepts(const model::Vocabulary& vocabulary, const std::string& grammar,
                    std::string_view text) {
  model::SamplingSettings settings = {.temperature = 0};
  settings.grammar = grammar;
  auto sampler = model::Sampler::Make(settings, vocabulary);
  if (!sampler) {
    ADD_FAILURE() << sampler.error().message << "\n" << grammar;
    return false;
  }
  auto tokens = vocabulary.Tokenize(text, /*add_special=*/false);
  std::vector<float> logits(vocabulary.size(), 0.0F);
  for (const model::Token token : *tokens) {
    logits[static_cast<std::size_t>(token)] = 1;
    const auto picked = sampler->Next(logits);
    logits[static_cast<std::size_t>(token)] = 0;
    if (!picked || *picked != token) return false;
  }
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (vocabulary.IsEndOfGeneration(static_cast<model::Token>(token))) logits[token] = 1;
  }
  const auto last = sampler->Next(logits);
  return last && vocabulary.IsEndOfGeneration(*last);
}

}  // namespace engine
