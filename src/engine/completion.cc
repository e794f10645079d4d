#include "engine/completion.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace engine {
namespace {

class Stopwatch {
 public:
  double Milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double PerSecond(std::size_t count, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(count) * 1000.0 / milliseconds : 0.0;
}

base::Result<void> CheckFits(const model::ModelBackend& backend, const CompletionRequest& request) {
  if (request.prompt.empty()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "the prompt is empty; give at least one token of text");
  }
  // The last generated token is never fed back.
  const std::size_t generated = request.max_tokens > 0 ? request.max_tokens - 1 : 0;
  if (request.prompt.size() > backend.context_length() ||
      generated > backend.context_length() - request.prompt.size()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "a prompt of {} tokens and {} to generate need a context of {}, but it has "
                      "{}; raise --ctx or shorten them",
                      request.prompt.size(), request.max_tokens, request.prompt.size() + generated,
                      backend.context_length());
  }
  return {};
}

// Logits of the last prompt token.
base::Result<std::span<const float>> ComputePrompt(model::ModelBackend& backend,
                                                   const CompletionRequest& request,
                                                   const CompletionObserver& observer,
                                                   const std::stop_token& stop) {
  const std::size_t step = std::clamp<std::size_t>(request.batch_rows, 1, backend.max_batch_rows());
  const std::size_t total = request.prompt.size();
  std::span<const float> logits;
  std::vector<model::BatchRow> rows;
  for (std::size_t begin = 0; begin < total; begin += step) {
    const std::size_t end = std::min(begin + step, total);
    rows.clear();
    for (std::size_t i = begin; i < end; ++i) {
      rows.push_back({.token = request.prompt[i],
                      .slot = request.slot,
                      .position = static_cast<std::uint32_t>(i),
                      .wants_logits = i + 1 == total});
    }
    auto computed = backend.Evaluate(rows, stop);
    if (!computed) return computed;
    logits = *computed;
    if (observer.prompt_progress) observer.prompt_progress(end, total);
  }
  return logits;
}

}  // namespace

base::Result<Completion> Complete(model::ModelBackend& backend, const model::Vocabulary& vocabulary,
                                  const CompletionRequest& request,
                                  const CompletionObserver& observer, std::stop_token stop) {
  if (auto fits = CheckFits(backend, request); !fits) return base::Forward(fits);
  auto sampler = model::Sampler::Make(request.sampling, vocabulary);
  if (!sampler) return base::Forward(sampler);
  sampler->Prime(request.prompt);

  backend.ClearSlot(request.slot);
  const Stopwatch prompt_watch;
  auto logits = ComputePrompt(backend, request, observer, stop);
  if (!logits) return base::Forward(logits);

  Completion completion;
  completion.timings.prompt_ms = prompt_watch.Milliseconds();
  const Stopwatch decode_watch;
  std::size_t decode_steps = 0;
  auto position = static_cast<std::uint32_t>(request.prompt.size());
  while (completion.tokens.size() < request.max_tokens) {
    const auto next = sampler->Next(*logits);
    if (!next) return std::unexpected(next.error());
    const model::Token token = *next;
    if (!request.ignore_end && vocabulary.IsEndOfGeneration(token)) {
      completion.ended = true;
      break;
    }
    completion.tokens.push_back(token);
    const std::string piece = vocabulary.Piece(token);
    completion.text += piece;
    if (observer.token) observer.token(piece);
    if (completion.tokens.size() == request.max_tokens) break;
    const model::BatchRow row = {
        .token = token, .slot = request.slot, .position = position++, .wants_logits = true};
    logits = backend.Evaluate({&row, 1}, stop);
    if (!logits) return base::Forward(logits);
    ++decode_steps;
  }
  if (decode_steps > 0) completion.timings.decode_ms = decode_watch.Milliseconds();
  completion.timings.prompt_tokens_per_second =
      PerSecond(request.prompt.size(), completion.timings.prompt_ms);
  completion.timings.decode_tokens_per_second =
      PerSecond(decode_steps, completion.timings.decode_ms);
  return completion;
}

}  // namespace engine
