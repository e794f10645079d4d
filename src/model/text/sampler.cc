#include "model/text/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace model {
namespace {

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

base::Result<void> CheckRange(std::string_view name, float value, float low, float high) {
  if (std::isfinite(value) && value >= low && value <= high) return {};
  return base::Fail(base::ErrorKind::kInvalidInput, "{} is {}; use a number from {} to {}", name,
                    value, low, high);
}

base::Result<void> Check(const SamplingSettings& settings) {
  if (auto ok = CheckRange("temperature", settings.temperature, 0, 100); !ok) return ok;
  if (auto ok = CheckRange("top-p", settings.top_p, 0, 1); !ok) return ok;
  if (auto ok = CheckRange("min-p", settings.min_p, 0, 1); !ok) return ok;
  if (settings.top_k < 0) {
    return base::Fail(base::ErrorKind::kInvalidInput, "top-k is {}; use 0 (off) or more",
                      settings.top_k);
  }
  return {};
}

}  // namespace

struct Sampler::State {
  bool greedy = false;
  std::unique_ptr<llama_sampler, SamplerDeleter> chain;
  std::vector<llama_token_data> candidates;  // [vocabulary size], refilled for each draw
};

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

base::Result<Sampler> Sampler::Make(const SamplingSettings& settings) {
  if (auto ok = Check(settings); !ok) return base::Forward(ok);
  auto state = std::make_unique<State>();
  state->greedy = settings.temperature <= 0;
  if (!state->greedy) {
    state->chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler* chain = state->chain.get();
    if (settings.top_k > 0) {
      llama_sampler_chain_add(chain, llama_sampler_init_top_k(settings.top_k));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(settings.top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(settings.min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(settings.temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(settings.seed));
  }
  return Sampler(std::move(state));
}

Token Sampler::Next(std::span<const float> logits) {
  ES_CHECK(!logits.empty());
  if (state_->greedy) {
    return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
  }
  auto& candidates = state_->candidates;
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
  }
  llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(state_->chain.get(), &array);
  ES_CHECK(array.selected >= 0 && static_cast<std::size_t>(array.selected) < array.size);
  const Token token = array.data[array.selected].id;
  llama_sampler_accept(state_->chain.get(), token);
  return token;
}

}  // namespace model
