#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace engine {
namespace {

double Milliseconds(Sequence::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Sequence::Sequence(GenerationRequest request, model::Sampler sampler,
                   std::shared_ptr<GenerationChannel> channel)
    : request_(std::move(request)),
      sampler_(std::move(sampler)),
      channel_(std::move(channel)),
      submitted_(Clock::now()) {}

Sequence::~Sequence() {
  if (!finished_) {
    Finish(FinishReason::kFailed, {base::ErrorKind::kInternal, "the request was dropped"});
  }
}

std::optional<FinishReason> Sequence::Overdue(Clock::time_point now) const {
  if (channel_->cancelled()) return FinishReason::kCancelled;
  if (request_.timeout.count() > 0 && now - submitted_ >= request_.timeout) {
    return FinishReason::kTimeout;
  }
  return std::nullopt;
}

void Sequence::Start(std::uint32_t slot, std::size_t cached, std::size_t checkpoint_spacing) {
  started_ = Clock::now();
  slot_ = slot;
  has_slot_ = true;
  cached_ = computed_ = cached;
  checkpoints_ =
      CheckpointsOf(request_.boundaries, cached, request_.prompt.size(), checkpoint_spacing);
  stops_ = checkpoints_;
}

StepDemand Sequence::Demand() const {
  if (computed_ >= request_.prompt.size()) return {.generates = true};
  const std::size_t end = stops_.empty() ? request_.prompt.size() : stops_.front();
  return {.prompt_rows = end - computed_};
}

void Sequence::AppendRows(std::size_t count, std::vector<model::BatchRow>& rows) const {
  const std::size_t length = request_.prompt.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = computed_ + i;
    rows.push_back({.token = at < length ? request_.prompt[at] : next_,
                    .slot = slot_,
                    .position = static_cast<std::uint32_t>(at),
                    .wants_logits = at + 1 >= length});
  }
}

bool Sequence::Advance(std::size_t count) {
  computed_ += count;
  return computed_ >= request_.prompt.size();
}

std::size_t Sequence::SharedCheckpoint(std::span<const model::Token> prompt) const {
  if (stops_.empty()) return 0;
  const auto mine = std::span<const model::Token>(request_.prompt);
  const std::size_t most = std::min(prompt.size() - 1, stops_.back());
  const auto common = static_cast<std::size_t>(
      std::ranges::mismatch(mine.first(stops_.back()), prompt.first(most)).in1 - mine.begin());
  std::size_t shared = 0;
  for (const std::size_t stop : stops_) {
    if (stop <= common) shared = stop;
  }
  return shared;
}

base::Result<std::optional<FinishReason>> Sequence::Generate(std::span<const float> logits,
                                                             const model::Vocabulary& vocabulary) {
  const auto picked = sampler_.Next(logits);
  if (!picked) return std::unexpected(picked.error());
  if (first_token_ == Clock::time_point()) first_token_ = Clock::now();
  next_ = *picked;
  if (!request_.ignore_end && vocabulary.IsEndOfGeneration(next_)) return FinishReason::kEnd;
  ++completion_tokens_;
  GeneratedToken token = {.token = next_, .piece = vocabulary.Piece(next_)};
  if (request_.logprobs) {
    auto probabilities = model::LogProbabilitiesOf(logits, next_, request_.top_logprobs);
    token.log_probability = probabilities.token;
    token.top = std::move(probabilities.top);
  }
  channel_->Push(std::move(token));
  if (completion_tokens_ >= request_.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

double Sequence::FirstTokenSeconds() const {
  return Milliseconds(first_token_ - submitted_) / 1000.0;
}

void Sequence::Finish(FinishReason reason, base::Error error) {
  const Clock::time_point now = Clock::now();
  const bool generated = first_token_ != Clock::time_point();
  GenerationSummary summary = {.reason = reason,
                               .error = std::move(error),
                               .prompt_tokens = request_.prompt.size(),
                               .cached_tokens = cached_,
                               .completion_tokens = completion_tokens_};
  summary.queue_ms = Milliseconds((has_slot_ ? started_ : now) - submitted_);
  if (has_slot_) summary.prompt_ms = Milliseconds((generated ? first_token_ : now) - started_);
  if (generated) {
    summary.decode_ms = Milliseconds(now - first_token_);
    summary.first_token_ms = Milliseconds(first_token_ - submitted_);
  }
  finished_ = true;
  channel_->Finish(std::move(summary));
}

}  // namespace engine
