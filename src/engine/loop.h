// The inference thread: admits requests, runs steps, ends what is over.
//
// Everything below `mutex_` is shared with clients; everything else belongs to the thread. A fault
// of the backend ends the requests that were in the step, and the thread goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "model/backend.h"
#include "model/text/vocabulary.h"

namespace engine {

class EngineLoop {
 public:
  // Starts the thread.
  EngineLoop(model::ModelBackend& backend, const model::Vocabulary& vocabulary,
             EngineOptions options);
  ~EngineLoop();

  // Any thread. As Engine's.
  base::Result<void> CheckFits(const GenerationRequest& request) const;
  base::Result<void> Enqueue(std::unique_ptr<Sequence> sequence);
  EngineStatistics statistics() const;
  bool Drain(std::chrono::milliseconds wait);

  const model::Vocabulary& vocabulary() const { return vocabulary_; }
  std::size_t context_length() const { return context_length_; }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;
  // What a step did, for the statistics.
  struct StepReport {
    std::size_t rows = 0;
    std::size_t prompt_rows = 0;
    std::size_t generated = 0;
    double seconds = 0;
    std::vector<double> first_token_seconds;
  };

  void Run(const std::stop_token& stop);
  // False when there is nothing to do any more.
  bool WaitForWork(const std::stop_token& stop);
  void EndOverdue();
  // Calls EngineOptions::between_steps when it is due.
  void BetweenSteps();
  void Admit();
  // Whether a running sequence is about to compute what `request` begins with.
  bool WaitsForPrefix(const GenerationRequest& request);
  void Begin(std::unique_ptr<Sequence> sequence);
  void Step(const std::stop_token& stop);
  // Rows for each of running_; fills rows_.
  std::vector<std::size_t> PlanRows();
  void Distribute(std::span<const std::size_t> counts, std::span<const float> logits,
                  StepReport& report);
  void Checkpoint(Sequence& sequence);
  void FailStep(std::span<const std::size_t> counts, const base::Error& error, bool stopping);
  void Record(const StepReport& report);
  // Tells the client and the statistics; the slot keeps what it holds.
  void End(std::unique_ptr<Sequence>& sequence, FinishReason reason, base::Error error = {});
  // Every sequence that has a slot; the slots are empty afterwards.
  void EndRunning(FinishReason reason, const base::Error& error);
  void EndWaiting(FinishReason reason);

  model::ModelBackend& backend_;
  const model::Vocabulary& vocabulary_;
  const EngineOptions options_;
  const std::size_t context_length_;
  const std::size_t num_slots_;
  const std::size_t vocab_size_;

  Sequences running_;
  PrefixCache cache_;
  std::vector<model::BatchRow> rows_;
  std::size_t turn_ = 0;
  std::chrono::steady_clock::time_point between_due_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;  // work has come, or something has ended
  std::deque<std::unique_ptr<Sequence>> queue_;
  bool draining_ = false;
  EngineStatistics statistics_;

  std::jthread thread_;  // last: it uses everything above
};

}  // namespace engine
