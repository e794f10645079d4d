#include "cli/sampling_options.h"

#include <charconv>
#include <random>
#include <string_view>

#include "base/file.h"
#include "base/quote.h"
#include "model/text/grammar_syntax.h"

namespace cli {
namespace {

void AddFlags(CLI::App& app, model::SamplingSettings& settings) {
  const auto add = [&app](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str();
  };
  add("--temp", settings.temperature, "temperature; 0 takes the likeliest token");
  add("--top-k", settings.top_k, "keep the k likeliest tokens; 0 is off");
  add("--top-p", settings.top_p, "keep tokens up to this probability; 1 is off");
  add("--min-p", settings.min_p, "drop tokens below this part of the likeliest one; 0 is off");
  add("--typical", settings.typical_p, "keep tokens typical up to this probability; 1 is off");
  add("--repeat-last-n", settings.penalty_last_n,
      "tokens that the three penalties look at; 0 is off, -1 the most");
  add("--repeat-penalty", settings.repeat_penalty, "penalty for a token seen there; 1 is off");
  add("--frequency-penalty", settings.frequency_penalty, "the same for each time; 0 is off");
  add("--presence-penalty", settings.presence_penalty, "the same once; 0 is off");
  add("--dry-multiplier", settings.dry_multiplier, "penalty for repeated sequences; 0 is off");
  add("--dry-base", settings.dry_base, "how it grows with their length");
  add("--dry-allowed-length", settings.dry_allowed_length, "repetitions up to here are free");
  add("--dry-penalty-last-n", settings.dry_last_n, "tokens it looks at; 0 is off, -1 the most");
  app.add_option("--grammar", settings.grammar, "GBNF that the whole text must match")
      ->type_name("GBNF");
}

base::Result<model::LogitBias> ParseBias(std::string_view text) {
  model::LogitBias bias;
  const char* end = text.data() + text.size();
  const auto [sign, token_error] = std::from_chars(text.data(), end, bias.token);
  if (token_error == std::errc() && sign != end && (*sign == '+' || *sign == '-')) {
    const char* number = *sign == '+' ? sign + 1 : sign;
    const auto [rest, bias_error] = std::from_chars(number, end, bias.bias);
    if (bias_error == std::errc() && rest == end && text.front() != '-') return bias;
  }
  return base::Fail(
      base::ErrorKind::kInvalidInput,
      "--logit-bias: {}; write TOKEN+BIAS or TOKEN-BIAS, for example 15-2.5 or 15-inf",
      base::Quote(text));
}

}  // namespace

void AddSamplingOptions(CLI::App& app, SamplingOptions& options) {
  AddFlags(app, options.settings);
  app.add_option("--grammar-file", options.grammar_file, "read the grammar from this file")
      ->type_name("FILE")
      ->excludes("--grammar");
  app.add_option("--logit-bias", options.logit_biases,
                 "add to a token's logit: TOKEN+BIAS or TOKEN-BIAS; may be repeated")
      ->type_name("BIAS")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "of the random draws (default: another one each time)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{0xffffffff}));
}

base::Result<model::SamplingSettings> ReadSettings(const SamplingOptions& options) {
  model::SamplingSettings settings = options.settings;
  settings.seed =
      options.seed >= 0 ? static_cast<std::uint32_t>(options.seed) : std::random_device{}();
  if (!options.grammar_file.empty()) {
    auto text = base::ReadFile(options.grammar_file, base::Bytes(model::kMaxGrammarBytes));
    if (!text) {
      return base::Fail(base::ErrorKind::kInvalidInput, "--grammar-file: {}", text.error().message);
    }
    settings.grammar = *std::move(text);
  }
  for (const std::string& text : options.logit_biases) {
    auto bias = ParseBias(text);
    if (!bias) return base::Forward(bias);
    settings.logit_bias.push_back(*bias);
  }
  if (auto checked = model::CheckSettings(settings); !checked) return base::Forward(checked);
  return settings;
}

}  // namespace cli
