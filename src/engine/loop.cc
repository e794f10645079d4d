#include "engine/loop.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "engine/scheduler.h"

namespace engine {

using base::ErrorKind;
using base::Fail;

EngineLoop::EngineLoop(model::ModelBackend& backend, const model::Vocabulary& vocabulary,
                       EngineOptions options)
    : backend_(backend),
      vocabulary_(vocabulary),
      options_(std::move(options)),
      context_length_(backend.context_length()),
      num_slots_(backend.num_slots()),
      vocab_size_(backend.vocab_size()),
      cache_(num_slots_, options_.checkpoint_budget) {
  statistics_.slots = num_slots_;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

EngineLoop::~EngineLoop() {
  thread_.request_stop();
  thread_.join();
}

base::Result<void> EngineLoop::CheckFits(const GenerationRequest& request) const {
  const std::size_t length = request.prompt.size();
  if (length == 0) {
    return Fail(ErrorKind::kInvalidInput, "the prompt is empty; give at least one token of text");
  }
  if (request.max_tokens == 0) {
    return Fail(ErrorKind::kInvalidInput, "0 tokens to generate; ask for at least 1");
  }
  // The last generated token is never fed back.
  if (length > context_length_ || request.max_tokens - 1 > context_length_ - length) {
    return Fail(ErrorKind::kInvalidInput,
                "a prompt of {} tokens and {} to generate need a context of {}, but it has {}; "
                "raise --ctx or shorten them",
                length, request.max_tokens, length + request.max_tokens - 1, context_length_);
  }
  for (const model::Token token : request.prompt) {
    if (token < 0 || static_cast<std::size_t>(token) >= vocab_size_) {
      return Fail(ErrorKind::kInvalidInput, "token {} of the prompt is not in the vocabulary of {}",
                  token, vocab_size_);
    }
  }
  return {};
}

base::Result<void> EngineLoop::Enqueue(std::unique_ptr<Sequence> sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (draining_) {
      ++statistics_.refused;
      return Fail(ErrorKind::kUnavailable, "the server is shutting down; send it elsewhere");
    }
    if (queue_.size() + statistics_.running >= num_slots_ + options_.queue_limit) {
      ++statistics_.refused;
      return Fail(ErrorKind::kBusy, "{} requests are running and {} are waiting; try again later",
                  statistics_.running, queue_.size());
    }
    queue_.push_back(std::move(sequence));
  }
  changed_.notify_all();
  return {};
}

EngineStatistics EngineLoop::statistics() const {
  const std::lock_guard lock(mutex_);
  EngineStatistics copy = statistics_;
  copy.queued = queue_.size();
  return copy;
}

bool EngineLoop::Drain(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return changed_.wait_for(lock, wait, [&] { return queue_.empty() && statistics_.running == 0; });
}

void EngineLoop::Run(const std::stop_token& stop) {
  while (WaitForWork(stop)) {
    try {
      EndOverdue();
      BetweenSteps();
      Admit();
      Step(stop);
    } catch (const std::exception& error) {
      EndRunning(FinishReason::kFailed,
                 {ErrorKind::kInternal, std::format("the step failed: {}", error.what())});
    }
  }
  EndRunning(FinishReason::kCancelled, {});
  EndWaiting(FinishReason::kCancelled);
}

bool EngineLoop::WaitForWork(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] { return !queue_.empty() || !running_.empty(); };
  if (options_.between_steps) {
    // Without work too, but not so that a request would wait for it at once.
    changed_.wait_for(lock, stop, options_.between_period, has_work);
  } else {
    changed_.wait(lock, stop, has_work);
  }
  return !stop.stop_requested();
}

void EngineLoop::BetweenSteps() {
  if (!options_.between_steps) return;
  if (!running_.empty() && std::chrono::steady_clock::now() < between_due_) return;
  options_.between_steps();
  between_due_ = std::chrono::steady_clock::now() + options_.between_period;
}

void EngineLoop::EndOverdue() {
  const Sequence::Clock::time_point now = Sequence::Clock::now();
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (const auto reason = sequence->Overdue(now)) {
      cache_.Release(sequence->slot());
      End(sequence, *reason);
    }
  }
  std::erase(running_, nullptr);

  std::vector<std::pair<std::unique_ptr<Sequence>, FinishReason>> overdue;
  {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Sequence>& sequence : queue_) {
      if (const auto reason = sequence->Overdue(now)) {
        overdue.emplace_back(std::move(sequence), *reason);
      }
    }
    std::erase(queue_, nullptr);
  }
  for (auto& [sequence, reason] : overdue) End(sequence, reason);
}

void EngineLoop::Admit() {
  while (cache_.has_idle_slot()) {
    std::unique_ptr<Sequence> next;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(queue_, [&](const std::unique_ptr<Sequence>& one) {
        return !WaitsForPrefix(one->request());
      });
      if (found == queue_.end()) return;
      next = std::move(*found);
      queue_.erase(found);
      ++statistics_.running;
    }
    Begin(std::move(next));
  }
}

bool EngineLoop::WaitsForPrefix(const GenerationRequest& request) {
  if (!request.reuse_prefix || options_.checkpoint_budget == base::Bytes()) return false;
  std::size_t shared = 0;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    shared = std::max(shared, sequence->SharedCheckpoint(request.prompt));
  }
  // Not for less than the step that a detour over a checkpoint may cost.
  return shared > 0 && shared >= cache_.LongestStart(request.prompt) +
                                     std::max<std::size_t>(options_.checkpoint_spacing, 1);
}

void EngineLoop::Begin(std::unique_ptr<Sequence> sequence) {
  const GenerationRequest& request = sequence->request();
  PrefixCache::Start start = cache_.Take(request.prompt, request.reuse_prefix);
  if (start.checkpoint != nullptr) {
    if (auto restored = backend_.RestoreSlot(*start.checkpoint, start.from, start.slot);
        !restored) {
      options_.log.Warning("a prompt is computed anew: {}", restored.error().message);
      cache_.Forget(start.slot);
      start.length = 0;
    }
  }
  if (start.length == 0) backend_.ClearSlot(start.slot);
  sequence->Start(start.slot, start.length, options_.checkpoint_spacing);
  running_.push_back(std::move(sequence));

  const Sequence& begun = *running_.back();
  const std::lock_guard lock(mutex_);
  statistics_.cached_tokens += start.length;
  ++(start.length > 0 ? statistics_.prefix_hits : statistics_.prefix_misses);
  statistics_.queue_time.Add(
      std::chrono::duration<double>(begun.started() - begun.submitted()).count());
}

std::vector<std::size_t> EngineLoop::PlanRows() {
  std::vector<StepDemand> demands;
  for (const std::unique_ptr<Sequence>& sequence : running_) demands.push_back(sequence->Demand());
  const std::size_t most = std::clamp<std::size_t>(
      options_.batch_rows, 1, std::max<std::size_t>(backend_.max_batch_rows(), 1));
  std::vector<std::size_t> counts = PlanStep(
      demands, {.batch_rows = most, .mixed_batch_rows = options_.mixed_batch_rows}, turn_++);
  rows_.clear();
  for (std::size_t i = 0; i < running_.size(); ++i) running_[i]->AppendRows(counts[i], rows_);
  return counts;
}

void EngineLoop::Step(const std::stop_token& stop) {
  if (running_.empty()) return;
  const std::vector<std::size_t> counts = PlanRows();
  StepReport report = {.rows = rows_.size()};
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->Demand().generates) report.prompt_rows += counts[i];
  }
  const Sequence::Clock::time_point begin = Sequence::Clock::now();
  auto logits = backend_.Evaluate(rows_, stop);
  report.seconds = std::chrono::duration<double>(Sequence::Clock::now() - begin).count();
  if (!logits) {
    FailStep(counts, logits.error(), stop.stop_requested());
    return;
  }
  for (const model::BatchRow& row : rows_) cache_.Append(row.slot, row.token);
  Distribute(counts, *logits, report);
}

void EngineLoop::Distribute(std::span<const std::size_t> counts, std::span<const float> logits,
                            StepReport& report) {
  // Clients hear of an end when the statistics know of it.
  struct Ending {
    std::unique_ptr<Sequence> sequence;
    FinishReason reason = FinishReason::kFailed;
    base::Error error;
  };
  std::vector<Ending> endings;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    std::unique_ptr<Sequence>& sequence = running_[i];
    if (counts[i] == 0 || !sequence->Advance(counts[i])) continue;
    const bool first = sequence->completion_tokens() == 0;
    const auto last = sequence->Generate(logits.first(vocab_size_), vocabulary_);
    logits = logits.subspan(vocab_size_);
    if (first && last) report.first_token_seconds.push_back(sequence->FirstTokenSeconds());
    if (last && *last != FinishReason::kEnd) ++report.generated;
    if (last && !last->has_value()) continue;
    cache_.Release(sequence->slot());
    Ending ending = {.sequence = std::move(sequence)};
    if (last) {
      ending.reason = **last;
    } else {
      ending.error = last.error();
    }
    endings.push_back(std::move(ending));
  }
  std::erase(running_, nullptr);
  Record(report);
  for (Ending& one : endings) End(one.sequence, one.reason, std::move(one.error));
  // After the last use of the logits: they are the backend's, valid until its next call.
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->AtCheckpoint()) Checkpoint(*sequence);
  }
}

void EngineLoop::Checkpoint(Sequence& sequence) {
  sequence.PassCheckpoint();
  if (!cache_.WantsCheckpoint(sequence.slot())) return;
  auto checkpoint = backend_.SaveSlot(sequence.slot());
  if (checkpoint) {
    cache_.Keep(sequence.slot(), *std::move(checkpoint));
  } else {
    options_.log.Warning("no checkpoint is kept: {}", checkpoint.error().message);
  }
}

void EngineLoop::FailStep(std::span<const std::size_t> counts, const base::Error& error,
                          bool stopping) {
  if (!stopping) options_.log.Warning("a step of {} rows failed: {}", rows_.size(), error.message);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::uint32_t slot = running_[i]->slot();
    backend_.ClearSlot(slot);
    cache_.Forget(slot);
    cache_.Release(slot);
    if (stopping) {
      End(running_[i], FinishReason::kCancelled);
    } else {
      End(running_[i], FinishReason::kFailed, error);
    }
  }
  std::erase(running_, nullptr);
}

void EngineLoop::Record(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  ++statistics_.steps;
  statistics_.step_rows += report.rows;
  statistics_.last_batch_rows = report.rows;
  statistics_.prompt_tokens += report.prompt_rows;
  statistics_.generated_tokens += report.generated;
  if (report.prompt_rows > 0) {
    statistics_.prefill_seconds += report.seconds;
  } else {
    statistics_.decode_seconds += report.seconds;
    statistics_.decode_step_tokens += report.rows;
  }
  for (const double seconds : report.first_token_seconds) {
    statistics_.time_to_first_token.Add(seconds);
  }
  statistics_.checkpoints = cache_.num_checkpoints();
  statistics_.checkpoint_bytes = cache_.checkpoint_bytes().count();
}

void EngineLoop::End(std::unique_ptr<Sequence>& sequence, FinishReason reason, base::Error error) {
  {
    const std::lock_guard lock(mutex_);
    ++statistics_.finished[static_cast<std::size_t>(reason)];
    if (sequence->has_slot()) --statistics_.running;
    sequence->Finish(reason, std::move(error));
  }
  sequence.reset();
  changed_.notify_all();
}

void EngineLoop::EndRunning(FinishReason reason, const base::Error& error) {
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence) End(sequence, reason, error);
  }
  running_.clear();
  // Nobody knows how far the step came.
  for (std::uint32_t slot = 0; slot < num_slots_; ++slot) {
    backend_.ClearSlot(slot);
    cache_.Forget(slot);
    cache_.Release(slot);
  }
  const std::lock_guard lock(mutex_);
  statistics_.running = 0;
}

void EngineLoop::EndWaiting(FinishReason reason) {
  std::deque<std::unique_ptr<Sequence>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(queue_);
  }
  for (std::unique_ptr<Sequence>& sequence : waiting) End(sequence, reason, {});
}

}  // namespace engine
