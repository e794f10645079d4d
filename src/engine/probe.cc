#include "engine/probe.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

namespace engine {

base::Result<std::vector<float>> ProbeLogits(model::ModelBackend& backend,
                                             const ProbeRequest& request, std::stop_token stop) {
  const std::size_t total = request.prompt_tokens + request.single_tokens;
  if (total > backend.context_length()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "{} tokens to compare do not fit a context of {}; raise --ctx", total,
                      backend.context_length());
  }
  const std::size_t step = std::clamp<std::size_t>(request.batch_rows, 1, backend.max_batch_rows());
  std::mt19937 random(2);
  std::vector<float> logits;
  logits.reserve(total * backend.vocab_size());
  std::vector<model::BatchRow> rows;
  backend.ClearSlot(0);
  for (std::size_t begin = 0; begin < total; begin += rows.size()) {
    const std::size_t count =
        begin < request.prompt_tokens ? std::min(step, request.prompt_tokens - begin) : 1;
    rows.clear();
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back({.token = static_cast<std::int32_t>(random() % backend.vocab_size()),
                      .slot = 0,
                      .position = static_cast<std::uint32_t>(begin + i),
                      .wants_logits = true});
    }
    const auto computed = backend.Evaluate(rows, stop);
    if (!computed) return std::unexpected(computed.error());
    logits.insert(logits.end(), computed->begin(), computed->end());
  }
  backend.ClearSlot(0);
  return logits;
}

double NormalisedError(std::span<const float> values, std::span<const float> reference) {
  double error = 0;
  double power = 0;
  if (values.size() != reference.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double difference = static_cast<double>(values[i]) - static_cast<double>(reference[i]);
    error += difference * difference;
    power += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return power > 0 ? error / power : std::numeric_limits<double>::infinity();
}

}  // namespace engine
