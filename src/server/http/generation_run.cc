#include "server/http/generation_run.h"

#include <algorithm>
#include <utility>

namespace server {

ApiResult<std::unique_ptr<GenerationRun>> GenerationRun::Submit(
    engine::Engine& engine, std::vector<engine::GenerationRequest> requests,
    const ReplyOptions& options, const std::string& param) {
  auto run = std::make_unique<GenerationRun>();
  for (engine::GenerationRequest& request : requests) {
    auto generation = engine.Submit(std::move(request));
    if (!generation) return std::unexpected(FromError(generation.error(), param));
    run->choices_.push_back({std::move(*generation), std::make_unique<Reply>(options)});
  }
  return run;
}

std::string GenerationRun::Step(std::chrono::milliseconds wait, ReplyFormat& format) {
  std::string events;
  // One that waits must not keep the others' tokens from their client.
  const std::ptrdiff_t running = std::ranges::count(choices_, false, &Choice::ended);
  if (running > 1) wait = std::max(std::chrono::milliseconds(1), wait / running);
  for (std::size_t i = 0; i < choices_.size() && !failure_; ++i) {
    if (!choices_[i].ended) StepChoice(i, wait, format, events);
  }
  return events;
}

void GenerationRun::StepChoice(std::size_t index, std::chrono::milliseconds wait,
                               ReplyFormat& format, std::string& events) {
  Choice& choice = choices_[index];
  for (const engine::GeneratedToken& token : choice.generation->Next(wait)) {
    if (choice.reply->stopped()) break;
    ++usage_.completion_tokens;
    const Reply::Update update = choice.reply->Feed(token);
    events += format.Update(index, *choice.reply, update);
    if (choice.reply->stopped()) choice.generation->Cancel();
  }
  if (choice.generation->finished()) EndChoice(index, format, events);
}

void GenerationRun::EndChoice(std::size_t index, ReplyFormat& format, std::string& events) {
  Choice& choice = choices_[index];
  choice.ended = true;
  const engine::GenerationSummary& summary = choice.generation->summary();
  usage_.cached_tokens += summary.cached_tokens;
  usage_.queue_ms = std::max(usage_.queue_ms, summary.queue_ms);
  usage_.prompt_ms = std::max(usage_.prompt_ms, summary.prompt_ms);
  usage_.decode_ms = std::max(usage_.decode_ms, summary.decode_ms);
  const bool failed = summary.reason == engine::FinishReason::kFailed;
  const bool shut_down =
      summary.reason == engine::FinishReason::kCancelled && !choice.reply->stopped();
  if (failed || shut_down) {
    failure_ = failed ? FromError(summary.error)
                      : ApiError{.status = 503, .message = "the server is shutting down"};
    return;
  }
  const Reply::Update update = choice.reply->Finish(summary.reason);
  events += format.Update(index, *choice.reply, update);
  usage_.reasoning_tokens += choice.reply->reasoning_tokens();
  events += format.EndChoice(index, *choice.reply);
}

bool GenerationRun::done() const {
  return failure_ || std::ranges::all_of(choices_, &Choice::ended);
}

std::vector<const Reply*> GenerationRun::replies() const {
  std::vector<const Reply*> replies;
  for (const Choice& choice : choices_) replies.push_back(choice.reply.get());
  return replies;
}

}  // namespace server
