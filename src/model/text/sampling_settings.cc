#include <cmath>
#include <string_view>

#include "model/text/grammar_syntax.h"
#include "model/text/sampler.h"

namespace model {
namespace {

constexpr std::size_t kMaxBreakers = 64;

base::Result<void> CheckRange(std::string_view name, float value, float low, float high) {
  if (std::isfinite(value) && value >= low && value <= high) return {};
  return base::Fail(base::ErrorKind::kInvalidInput, "{} is {}; use a number from {} to {}", name,
                    value, low, high);
}

base::Result<void> CheckLastN(std::string_view name, std::int32_t value) {
  if (value >= -1 && value <= kMaxLastTokens) return {};
  return base::Fail(base::ErrorKind::kInvalidInput,
                    "{} is {}; use 0 (off), a number up to {}, or -1 for that", name, value,
                    kMaxLastTokens);
}

base::Result<void> CheckAtLeastZero(std::string_view name, std::int32_t value) {
  if (value >= 0) return {};
  return base::Fail(base::ErrorKind::kInvalidInput, "{} is {}; use 0 or more", name, value);
}

base::Result<void> CheckDry(const SamplingSettings& settings) {
  if (auto ok = CheckRange("dry-multiplier", settings.dry_multiplier, 0, 100); !ok) return ok;
  if (auto ok = CheckRange("dry-base", settings.dry_base, 1, 100); !ok) return ok;
  if (auto ok = CheckAtLeastZero("dry-allowed-length", settings.dry_allowed_length); !ok) return ok;
  if (auto ok = CheckLastN("dry-penalty-last-n", settings.dry_last_n); !ok) return ok;
  if (settings.dry_breakers.size() > kMaxBreakers) {
    return base::Fail(base::ErrorKind::kInvalidInput, "{} sequence breakers for DRY; use up to {}",
                      settings.dry_breakers.size(), kMaxBreakers);
  }
  for (const std::string& breaker : settings.dry_breakers) {
    if (breaker.empty()) {
      return base::Fail(base::ErrorKind::kInvalidInput, "a sequence breaker for DRY is empty");
    }
  }
  return {};
}

}  // namespace

base::Result<void> CheckSettings(const SamplingSettings& settings) {
  if (auto ok = CheckRange("temperature", settings.temperature, 0, 100); !ok) return ok;
  if (auto ok = CheckAtLeastZero("top-k", settings.top_k); !ok) return ok;
  if (auto ok = CheckRange("top-p", settings.top_p, 0, 1); !ok) return ok;
  if (auto ok = CheckRange("min-p", settings.min_p, 0, 1); !ok) return ok;
  if (auto ok = CheckRange("typical", settings.typical_p, 0, 1); !ok) return ok;
  if (auto ok = CheckLastN("repeat-last-n", settings.penalty_last_n); !ok) return ok;
  if (auto ok = CheckRange("repeat-penalty", settings.repeat_penalty, 0.01F, 100); !ok) return ok;
  if (auto ok = CheckRange("frequency-penalty", settings.frequency_penalty, -100, 100); !ok) {
    return ok;
  }
  if (auto ok = CheckRange("presence-penalty", settings.presence_penalty, -100, 100); !ok) {
    return ok;
  }
  if (auto ok = CheckDry(settings); !ok) return ok;
  for (const LogitBias& bias : settings.logit_bias) {
    if (std::isnan(bias.bias) || (std::isinf(bias.bias) && bias.bias > 0)) {
      return base::Fail(base::ErrorKind::kInvalidInput,
                        "the logit bias of token {} is {}; use a number, or minus infinity",
                        bias.token, bias.bias);
    }
  }
  if (settings.grammar.empty()) return {};
  auto grammar = CheckGrammar(settings.grammar);
  if (!grammar) return base::Forward(grammar);
  return {};
}

}  // namespace model
