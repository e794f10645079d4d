#include "engine/speed.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace engine {
namespace {

class Measurement {
 public:
  Measurement(model::ModelBackend& backend, const SpeedRequest& request, std::stop_token stop)
      : backend_(backend),
        request_(request),
        stop_(std::move(stop)),
        random_(request.seed),
        token_(0, static_cast<std::int32_t>(backend.vocab_size()) - 1) {}

  // Seconds for request_.prompt_tokens, or for request_.decode_tokens, behind `depth` others.
  base::Result<double> Prompt() { return Timed(request_.prompt_tokens, request_.batch_rows); }
  base::Result<double> Decode() { return Timed(request_.decode_tokens, 1); }

 private:
  base::Result<double> Timed(std::size_t num_tokens, std::size_t step) {
    backend_.ClearSlot(0);
    if (auto done = Feed(request_.depth, request_.batch_rows); !done) return base::Forward(done);
    const auto start = std::chrono::steady_clock::now();
    if (auto done = Feed(num_tokens, step); !done) return base::Forward(done);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Logits for the last token of each step of one, and of the whole.
  base::Result<void> Feed(std::size_t num_tokens, std::size_t step) {
    step = std::clamp<std::size_t>(step, 1, backend_.max_batch_rows());
    std::vector<model::BatchRow> rows;
    for (std::size_t done = 0; done < num_tokens; done += rows.size()) {
      const std::size_t count = std::min(step, num_tokens - done);
      const std::size_t position = backend_.slot_length(0);
      rows.clear();
      for (std::size_t i = 0; i < count; ++i) {
        rows.push_back({.token = token_(random_),
                        .position = static_cast<std::uint32_t>(position + i),
                        .wants_logits = step == 1 || done + i + 1 == num_tokens});
      }
      if (auto computed = backend_.Evaluate(rows, stop_); !computed) return base::Forward(computed);
    }
    return {};
  }

  model::ModelBackend& backend_;
  const SpeedRequest& request_;
  std::stop_token stop_;
  std::mt19937 random_;
  std::uniform_int_distribution<std::int32_t> token_;
};

base::Result<void> CheckRequest(const model::ModelBackend& backend, const SpeedRequest& request) {
  const std::size_t longest = std::max(request.prompt_tokens, request.decode_tokens);
  if (longest == 0 || request.repeats == 0) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "{} prompt tokens, {} generated tokens, {} repeats: nothing to measure; give "
                      "-p or -n, and -r, at least 1",
                      request.prompt_tokens, request.decode_tokens, request.repeats);
  }
  const std::size_t context = backend.context_length();
  if (request.depth > context || longest > context - request.depth) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "{} tokens behind {} others do not fit a context of {}; raise --ctx or "
                      "measure fewer",
                      longest, request.depth, context);
  }
  return {};
}

}  // namespace

SampleSummary Summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::ranges::sort(samples);
  const std::size_t half = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {.median = median, .min = samples.front(), .max = samples.back()};
}

base::Result<Speed> MeasureSpeed(
    model::ModelBackend& backend, const SpeedRequest& request,
    const std::function<void(std::size_t done, std::size_t total)>& progress,
    std::stop_token stop) {
  if (auto checked = CheckRequest(backend, request); !checked) return base::Forward(checked);
  Measurement measurement(backend, request, std::move(stop));
  const std::size_t kinds =
      (request.prompt_tokens > 0 ? 1U : 0U) + (request.decode_tokens > 0 ? 1U : 0U);
  const std::size_t total = kinds * (request.repeats + 1);
  std::size_t runs = 0;
  const auto run = [&](base::Result<double> seconds, std::size_t num_tokens,
                       std::vector<double>& samples) -> base::Result<void> {
    if (!seconds) return base::Forward(seconds);
    if (runs++ >= kinds) samples.push_back(static_cast<double>(num_tokens) / *seconds);
    if (progress) progress(runs, total);
    return {};
  };
  Speed speed;
  for (std::size_t repeat = 0; repeat <= request.repeats; ++repeat) {
    if (request.prompt_tokens > 0) {
      auto done = run(measurement.Prompt(), request.prompt_tokens, speed.prompt);
      if (!done) return base::Forward(done);
    }
    if (request.decode_tokens > 0) {
      auto done = run(measurement.Decode(), request.decode_tokens, speed.decode);
      if (!done) return base::Forward(done);
    }
  }
  backend.ClearSlot(0);
  return speed;
}

}  // namespace engine
