// One request while it waits and runs: what of it is computed and what comes next. The inference
// thread's own; it knows neither threads nor the backend.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/channel.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "model/backend.h"
#include "model/text/sampler.h"
#include "model/text/vocabulary.h"

namespace engine {

class Sequence {
 public:
  using Clock = std::chrono::steady_clock;

  Sequence(GenerationRequest request, model::Sampler sampler,
           std::shared_ptr<GenerationChannel> channel);
  // Tells the client, if Finish did not, that it failed.
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const GenerationRequest& request() const { return request_; }
  // Why the client would have it end, if so: cancelled, or out of time at `now`.
  std::optional<FinishReason> Overdue(Clock::time_point now) const;

  // It has `slot`, which holds the first `cached` tokens of the prompt.
  void Start(std::uint32_t slot, std::size_t cached, std::size_t checkpoint_spacing);
  bool has_slot() const { return has_slot_; }
  std::uint32_t slot() const { return slot_; }
  std::size_t cached_tokens() const { return cached_; }
  Clock::time_point submitted() const { return submitted_; }
  Clock::time_point started() const { return started_; }

  StepDemand Demand() const;
  // Appends its next `count` rows, at least 1 and at most those of Demand.
  void AppendRows(std::size_t count, std::vector<model::BatchRow>& rows) const;
  // The rows were computed. True when the last of them gave logits.
  bool Advance(std::size_t count);
  // Whether a checkpoint is due now.
  bool AtCheckpoint() const { return !stops_.empty() && stops_.front() == computed_; }
  void PassCheckpoint() { stops_ = stops_.subspan(1); }
  // The last checkpoint to come that `prompt` could go on from; 0 for none.
  std::size_t SharedCheckpoint(std::span<const model::Token> prompt) const;

  // Picks the next token and hands it to the client. Why that was the last one, if it was. Errors:
  // those of Sampler::Next.
  base::Result<std::optional<FinishReason>> Generate(std::span<const float> logits,
                                                     const model::Vocabulary& vocabulary);
  std::size_t completion_tokens() const { return completion_tokens_; }
  // Seconds from submission to the first generated token, once it is there.
  double FirstTokenSeconds() const;

  // Tells the client. Nothing may follow.
  void Finish(FinishReason reason, base::Error error = {});

 private:
  GenerationRequest request_;
  model::Sampler sampler_;
  std::shared_ptr<GenerationChannel> channel_;
  Clock::time_point submitted_;
  Clock::time_point started_;
  Clock::time_point first_token_;
  std::uint32_t slot_ = 0;
  bool has_slot_ = false;
  bool finished_ = false;
  std::size_t cached_ = 0;
  std::size_t computed_ = 0;  // tokens in the slot
  std::vector<std::size_t> checkpoints_;
  std::span<const std::size_t> stops_;  // of checkpoints_, those to come
  model::Token next_ = 0;               // generated last, not computed yet
  std::size_t completion_tokens_ = 0;
};

}  // namespace engine
