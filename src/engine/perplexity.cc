#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace engine {
namespace {

double NegativeLogLikelihood(std::span<const float> logits, model::Token token) {
  const float largest = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)] - largest);
}

// Adds one chunk's scores to `sum` and `count`.
base::Result<void> ScoreChunk(model::ModelBackend& backend, std::span<const model::Token> chunk,
                              std::size_t batch_rows, const std::stop_token& stop, double& sum,
                              std::size_t& count) {
  const std::size_t first = chunk.size() / 2;
  const std::size_t last = chunk.size() - 2;
  const std::size_t step = std::clamp<std::size_t>(batch_rows, 1, backend.max_batch_rows());
  std::vector<model::BatchRow> rows;
  backend.ClearSlot(0);
  for (std::size_t begin = 0; begin < chunk.size(); begin += step) {
    const std::size_t end = std::min(begin + step, chunk.size());
    rows.clear();
    for (std::size_t i = begin; i < end; ++i) {
      rows.push_back({.token = chunk[i],
                      .slot = 0,
                      .position = static_cast<std::uint32_t>(i),
                      .wants_logits = i >= first && i <= last});
    }
    auto logits = backend.Evaluate(rows, stop);
    if (!logits) return base::Forward(logits);
    std::span<const float> rest = *logits;
    for (std::size_t i = std::max(begin, first); i < end && i <= last; ++i) {
      sum += NegativeLogLikelihood(rest.first(backend.vocab_size()), chunk[i + 1]);
      ++count;
      rest = rest.subspan(backend.vocab_size());
    }
  }
  return {};
}

}  // namespace

base::Result<Perplexity> MeasurePerplexity(
    model::ModelBackend& backend, const model::Vocabulary& vocabulary,
    const PerplexityRequest& request,
    const std::function<void(std::size_t done, std::size_t total, const Perplexity&)>& progress,
    std::stop_token stop) {
  const std::size_t length = request.chunk_tokens;
  if (length < 4 || length > backend.context_length()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "a chunk of {} tokens is not possible; use 4 to {} (--ctx)", length,
                      backend.context_length());
  }
  if (request.tokens.size() < length) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "the text has {} tokens, fewer than one chunk of {}; give a longer text or a "
                      "smaller --ctx",
                      request.tokens.size(), length);
  }
  const std::size_t num_chunks = request.tokens.size() / length;
  double sum = 0;
  Perplexity result;
  for (std::size_t c = 0; c < num_chunks; ++c) {
    const auto begin = request.tokens.begin() + static_cast<std::ptrdiff_t>(c * length);
    std::vector<model::Token> chunk(begin, begin + static_cast<std::ptrdiff_t>(length));
    if (vocabulary.adds_start_token()) chunk[0] = vocabulary.start_token();
    auto scored = ScoreChunk(backend, chunk, request.batch_rows, stop, sum, result.tokens);
    if (!scored) return base::Forward(scored);
    result.nll = sum / static_cast<double>(result.tokens);
    result.ppl = std::exp(result.nll);
    if (progress) progress(c + 1, num_chunks, result);
  }
  return result;
}

}  // namespace engine
