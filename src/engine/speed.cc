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
  base::Result<double> Prompt() {
    if (auto ready = Prepare(1); !ready) return base::Forward(ready);
    return Timed([&] { return Feed(0, request_.prompt_tokens); });
  }
  base::Result<double> Decode() {
    if (auto ready = Prepare(request_.sequences); !ready) return base::Forward(ready);
    return Timed([&] { return Generate(); });
  }

  // What the nodes of the same work have taken.
  base::Result<std::vector<model::NodeTime>> ProfilePrompt() {
    if (auto ready = Prepare(1); !ready) return base::Forward(ready);
    return Profiled([&] { return Feed(0, request_.prompt_tokens); });
  }
  base::Result<std::vector<model::NodeTime>> ProfileDecode() {
    if (auto ready = Prepare(request_.sequences); !ready) return base::Forward(ready);
    return Profiled([&] { return Generate(); });
  }

  void ClearSlots() {
    for (std::uint32_t slot = 0; slot < request_.sequences; ++slot) backend_.ClearSlot(slot);
  }

 private:
  template <class Work>
  static base::Result<double> Timed(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    if (auto done = work(); !done) return base::Forward(done);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  template <class Work>
  base::Result<std::vector<model::NodeTime>> Profiled(const Work& work) {
    backend_.TimeNodes(true);
    auto done = work();
    backend_.TimeNodes(false);
    if (!done) return base::Forward(done);
    return backend_.node_times();
  }

  // Leaves `depth` tokens in each of the first `num_slots` slots.
  base::Result<void> Prepare(std::size_t num_slots) {
    ClearSlots();
    for (std::uint32_t slot = 0; slot < num_slots; ++slot) {
      if (auto done = Feed(slot, request_.depth); !done) return done;
    }
    return {};
  }

  model::BatchRow NextRow(std::uint32_t slot, std::size_t position, bool wants_logits) {
    return {.token = token_(random_),
            .slot = slot,
            .position = static_cast<std::uint32_t>(position),
            .wants_logits = wants_logits};
  }

  // A token of every sequence a step.
  base::Result<void> Generate() {
    std::vector<model::BatchRow> rows;
    for (std::size_t done = 0; done < request_.decode_tokens; ++done) {
      rows.clear();
      for (std::uint32_t slot = 0; slot < request_.sequences; ++slot) {
        rows.push_back(NextRow(slot, backend_.slot_length(slot), true));
      }
      if (auto computed = backend_.Evaluate(rows, stop_); !computed) return base::Forward(computed);
    }
    return {};
  }

  // A prompt of `num_tokens`, with logits for its last one.
  base::Result<void> Feed(std::uint32_t slot, std::size_t num_tokens) {
    const std::size_t step =
        std::clamp<std::size_t>(request_.batch_rows, 1, backend_.max_batch_rows());
    std::vector<model::BatchRow> rows;
    for (std::size_t done = 0; done < num_tokens; done += rows.size()) {
      const std::size_t count = std::min(step, num_tokens - done);
      const std::size_t position = backend_.slot_length(slot);
      rows.clear();
      for (std::size_t i = 0; i < count; ++i) {
        rows.push_back(NextRow(slot, position + i, done + i + 1 == num_tokens));
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
  const std::size_t most = std::min(backend.num_slots(), backend.max_batch_rows());
  if (request.sequences == 0 || request.sequences > most) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "{} sequences: must be 1 to {}, the slots and rows of a step; change "
                      "--parallel or --batch",
                      request.sequences, most);
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
      auto done =
          run(measurement.Decode(), request.decode_tokens * request.sequences, speed.decode);
      if (!done) return base::Forward(done);
    }
  }
  measurement.ClearSlots();
  return speed;
}

base::Result<StepProfile> ProfileNodes(model::ModelBackend& backend, const SpeedRequest& request,
                                       std::stop_token stop) {
  if (auto checked = CheckRequest(backend, request); !checked) return base::Forward(checked);
  Measurement measurement(backend, request, std::move(stop));
  StepProfile profile;
  if (request.prompt_tokens > 0) {
    if (auto warm = measurement.Prompt(); !warm) return base::Forward(warm);
    auto times = measurement.ProfilePrompt();
    if (!times) return base::Forward(times);
    profile.prompt = *std::move(times);
  }
  if (request.decode_tokens > 0) {
    if (auto warm = measurement.Decode(); !warm) return base::Forward(warm);
    auto times = measurement.ProfileDecode();
    if (!times) return base::Forward(times);
    for (model::NodeTime& time : *times) {
      time.num_nodes /= request.decode_tokens;
      time.ms /= static_cast<double>(request.decode_tokens);
    }
    profile.decode = *std::move(times);
  }
  measurement.ClearSlots();
  return profile;
}

}  // namespace engine
