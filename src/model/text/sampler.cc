#include "model/text/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "model/text/grammar_syntax.h"

namespace model {
namespace {

using base::ErrorKind;
using base::Fail;

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using LlamaSampler = std::unique_ptr<llama_sampler, SamplerDeleter>;

LlamaSampler MakeChain() {
  return LlamaSampler(llama_sampler_chain_init(llama_sampler_chain_default_params()));
}

std::int32_t LastTokens(std::int32_t setting) { return setting < 0 ? kMaxLastTokens : setting; }

bool HasPenalties(const SamplingSettings& settings) {
  return settings.penalty_last_n != 0 &&
         (settings.repeat_penalty != 1 || settings.frequency_penalty != 0 ||
          settings.presence_penalty != 0);
}

bool HasDry(const SamplingSettings& settings) {
  return settings.dry_multiplier != 0 && settings.dry_last_n != 0;
}

// Bias, penalties and DRY: what changes logits by what stands before. Empty when nothing does.
LlamaSampler MakeAdjustments(const SamplingSettings& settings, const Vocabulary& vocabulary) {
  const auto size = static_cast<std::int32_t>(vocabulary.size());
  LlamaSampler chain = MakeChain();
  if (!settings.logit_bias.empty()) {
    std::vector<llama_logit_bias> biases;
    for (const LogitBias& one : settings.logit_bias) biases.push_back({one.token, one.bias});
    llama_sampler_chain_add(
        chain.get(), llama_sampler_init_logit_bias(size, static_cast<std::int32_t>(biases.size()),
                                                   biases.data()));
  }
  if (HasPenalties(settings)) {
    llama_sampler_chain_add(chain.get(),
                            llama_sampler_init_penalties(
                                size, LastTokens(settings.penalty_last_n), settings.repeat_penalty,
                                settings.frequency_penalty, settings.presence_penalty));
  }
  if (HasDry(settings)) {
    std::vector<const char*> breakers;
    for (const std::string& breaker : settings.dry_breakers) breakers.push_back(breaker.c_str());
    llama_sampler_chain_add(
        chain.get(),
        llama_sampler_init_dry(vocabulary.handle(), settings.dry_multiplier, settings.dry_base,
                               settings.dry_allowed_length, LastTokens(settings.dry_last_n),
                               breakers.data(), breakers.size()));
  }
  if (llama_sampler_chain_n(chain.get()) == 0) chain.reset();
  return chain;
}

// What chooses among the candidates.
LlamaSampler MakeChoice(const SamplingSettings& settings) {
  LlamaSampler chain = MakeChain();
  if (settings.top_k > 0) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(settings.top_k));
  }
  if (settings.typical_p < 1) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_typical(settings.typical_p, 1));
  }
  llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(settings.top_p, 1));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_min_p(settings.min_p, 1));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(settings.temperature));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(settings.seed));
  return chain;
}

base::Result<LlamaSampler> MakeGrammar(const std::string& grammar, const Vocabulary& vocabulary) {
  if (grammar.empty()) return LlamaSampler();
  auto token_names = CheckGrammar(grammar);
  if (!token_names) return base::Forward(token_names);
  for (const std::string& name : *token_names) {
    auto tokens = vocabulary.Tokenize(name, /*add_special=*/false);
    if (!tokens) return base::Forward(tokens);
    if (tokens->size() == 1) continue;
    return Fail(ErrorKind::kInvalidInput, "the grammar names {}, which is no token of the model",
                base::Quote(name));
  }
  LlamaSampler sampler(llama_sampler_init_grammar(vocabulary.handle(), grammar.c_str(), "root"));
  if (!sampler) {
    return Fail(ErrorKind::kInvalidInput,
                "a rule of the grammar begins with itself; let it begin with something else");
  }
  return sampler;
}

base::Result<void> CheckAgainst(const SamplingSettings& settings, const Vocabulary& vocabulary) {
  for (const LogitBias& bias : settings.logit_bias) {
    if (bias.token < 0 || static_cast<std::size_t>(bias.token) >= vocabulary.size()) {
      return Fail(ErrorKind::kInvalidInput, "logit bias for token {} of a vocabulary of {}",
                  bias.token, vocabulary.size());
    }
  }
  if (!vocabulary.has_text() && (!settings.grammar.empty() || HasDry(settings))) {
    return Fail(ErrorKind::kInvalidInput,
                "the model has no tokeniser, so it takes neither a grammar nor DRY");
  }
  return {};
}

}  // namespace

struct Sampler::State {
  bool greedy = false;
  std::size_t top_k = 0;                     // 0: off
  LlamaSampler adjustments;                  // or none
  LlamaSampler grammar;                      // or none
  LlamaSampler choice;                       // unless greedy
  std::vector<llama_token_data> candidates;  // [vocabulary size], refilled for each draw

  // All tokens, adjusted.
  llama_token_data_array Candidates(std::span<const float> logits);
  // The `top_k` likeliest tokens, unadjusted.
  llama_token_data_array Likeliest(std::span<const float> logits);
  // Picks among `array`; -1 when none of it is possible.
  Token Choose(llama_token_data_array& array) const;
  bool GrammarAdmits(Token token) const;
  base::Result<Token> Pick(std::span<const float> logits);
};

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

base::Result<Sampler> Sampler::Make(const SamplingSettings& settings,
                                    const Vocabulary& vocabulary) {
  if (auto ok = CheckSettings(settings); !ok) return base::Forward(ok);
  if (auto ok = CheckAgainst(settings, vocabulary); !ok) return base::Forward(ok);
  auto state = std::make_unique<State>();
  try {
    auto grammar = MakeGrammar(settings.grammar, vocabulary);
    if (!grammar) return base::Forward(grammar);
    state->grammar = *std::move(grammar);
    state->adjustments = MakeAdjustments(settings, vocabulary);
  } catch (const std::exception& error) {
    return Fail(ErrorKind::kInvalidInput, "the sampling settings are refused: {}", error.what());
  }
  state->greedy = settings.temperature <= 0;
  state->top_k = static_cast<std::size_t>(settings.top_k);
  if (!state->greedy) state->choice = MakeChoice(settings);
  return Sampler(std::move(state));
}

void Sampler::Prime(std::span<const Token> prompt) {
  if (!state_->adjustments) return;
  if (prompt.size() > kMaxLastTokens) prompt = prompt.last(kMaxLastTokens);
  for (const Token token : prompt) llama_sampler_accept(state_->adjustments.get(), token);
}

llama_token_data_array Sampler::State::Candidates(std::span<const float> logits) {
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
  }
  llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
  if (adjustments) llama_sampler_apply(adjustments.get(), &array);
  return array;
}

llama_token_data_array Sampler::State::Likeliest(std::span<const float> logits) {
  // A heap with the least likely of those kept in front; of equal tokens the lower ones are kept.
  const auto likelier = [](const llama_token_data& a, const llama_token_data& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const llama_token_data one = {static_cast<llama_token>(i), logits[i], 0.0F};
    if (candidates.size() < top_k) {
      candidates.push_back(one);
      std::ranges::push_heap(candidates, likelier);
    } else if (likelier(one, candidates.front())) {
      std::ranges::pop_heap(candidates, likelier);
      candidates.back() = one;
      std::ranges::push_heap(candidates, likelier);
    }
  }
  std::ranges::sort_heap(candidates, likelier);
  return {candidates.data(), candidates.size(), -1, true};
}

Token Sampler::State::Choose(llama_token_data_array& array) const {
  const std::span<const llama_token_data> all(array.data, array.size);
  const auto likeliest = std::ranges::max_element(all, {}, &llama_token_data::logit);
  if (!std::isfinite(likeliest->logit)) return -1;
  if (greedy) return likeliest->id;
  llama_sampler_apply(choice.get(), &array);
  if (array.selected < 0 || static_cast<std::size_t>(array.selected) >= array.size) return -1;
  return array.data[array.selected].id;
}

bool Sampler::State::GrammarAdmits(Token token) const {
  llama_token_data one = {token, 1.0F, 0.0F};
  llama_token_data_array array = {&one, 1, -1, false};
  llama_sampler_apply(grammar.get(), &array);
  return std::isfinite(one.logit);
}

base::Result<Token> Sampler::State::Pick(std::span<const float> logits) {
  if (greedy && !adjustments && !grammar) {
    return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
  }
  // With a large vocabulary most of the time would go into candidates that top-k drops.
  const bool few = !greedy && !adjustments && top_k > 0 && top_k * 8 < logits.size();
  llama_token_data_array array = few ? Likeliest(logits) : Candidates(logits);
  Token token = Choose(array);
  if (token < 0) {
    return Fail(ErrorKind::kInternal, "the model's logits leave no token to choose");
  }
  if (!grammar || GrammarAdmits(token)) return token;
  // Asking the grammar about the whole vocabulary is slow, so it comes second.
  array = Candidates(logits);
  llama_sampler_apply(grammar.get(), &array);
  token = Choose(array);
  if (token < 0) {
    return Fail(ErrorKind::kInternal,
                "no token of the model can follow under the grammar; check the grammar");
  }
  return token;
}

base::Result<Token> Sampler::Next(std::span<const float> logits) {
  ES_CHECK(!logits.empty());
  try {
    auto token = state_->Pick(logits);
    if (!token) return token;
    for (const LlamaSampler* one : {&state_->grammar, &state_->adjustments, &state_->choice}) {
      if (*one) llama_sampler_accept(one->get(), *token);
    }
    return token;
  } catch (const std::exception& error) {
    return Fail(ErrorKind::kInternal, "sampling failed: {}", error.what());
  }
}

}  // namespace model
