// The engine: many generations at once on one model.
//
// One inference thread owns the backend and runs it in steps. A step mixes rows of all running
// sequences: one row of each that is generating, and a chunk of the prompts that are not computed
// yet, so that a stream waits no longer for its next token than one chunk takes. Requests beyond
// the backend's slots wait in a bounded queue, first come, first served; one whose prompt begins
// like one that is being computed waits for that part. A slot keeps what it computed after its
// request has ended; a later request whose prompt begins alike goes on from the slot's end or from
// a checkpoint (engine/prefix_cache.h).
//
// A request's text depends on the request and the model alone (on CPU owners to the bit), not on
// what else runs, on how its prompt was chunked or on how much of it was reused.
//
// Threads: the engine may be used from any threads, a Generation by one thread at a time except for
// Cancel. A Generation may outlive its engine; it has then been cancelled.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"
#include "engine/statistics.h"
#include "model/backend.h"
#include "model/text/log_probability.h"
#include "model/text/sampler.h"
#include "model/text/vocabulary.h"

namespace engine {

class EngineLoop;         // engine/loop.h
class GenerationChannel;  // engine/channel.h

struct GenerationRequest {
  std::vector<model::Token> prompt;  // at least one token
  // Ends of messages in `prompt` (numbers of tokens, in ascending order): what comes before one is
  // worth going back to, because a later prompt may differ behind it. Others than 1 to
  // prompt.size() - 1 are passed over.
  std::vector<std::size_t> boundaries;
  std::size_t max_tokens = 128;  // at least 1
  bool ignore_end = false;       // go on past an end-of-generation token
  model::SamplingSettings sampling;
  bool logprobs = false;                 // fill GeneratedToken::log_probability and ::top
  std::size_t top_logprobs = 0;          // alternatives a token, at most kMaxTopLogprobs
  bool reuse_prefix = true;              // false: compute the whole prompt
  std::chrono::milliseconds timeout{0};  // from submission to the last token; 0: none
};

inline constexpr std::size_t kMaxTopLogprobs = 20;

struct GeneratedToken {
  model::Token token = 0;
  std::string piece;  // bytes, special tokens included; may cut a UTF-8 sequence
  // Of the model's own distribution, before any sampling setting. Natural logarithms.
  float log_probability = 0;
  std::vector<model::TokenProbability> top;  // the likeliest first; `token` need not be among them
};

struct GenerationSummary {
  FinishReason reason = FinishReason::kFailed;
  base::Error error;  // of kFailed alone; of the kinds that ModelBackend::Evaluate gives
  std::size_t prompt_tokens = 0;
  std::size_t cached_tokens = 0;  // of them, those that were not computed again
  std::size_t completion_tokens = 0;
  double queue_ms = 0;        // from submission to having a slot
  double prompt_ms = 0;       // from there to the first generated token
  double decode_ms = 0;       // from there to the end
  double first_token_ms = 0;  // from submission to the first generated token; 0 without one
};

// One generation, as its client sees it. Destroying it cancels.
class Generation {
 public:
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // The tokens generated since the last call, in order and without a closing end-of-generation
  // token. Waits for at least one; empty when `wait` has passed without one, or when there will be
  // no more.
  std::vector<GeneratedToken> Next(std::chrono::milliseconds wait);

  // Whether everything was handed out by Next and no more will come.
  bool finished() const;
  // What came of it. Precondition: finished().
  const GenerationSummary& summary() const;

  // Ends it within one step, as kCancelled, unless it has ended. Any thread.
  void Cancel();

 private:
  friend class Engine;
  explicit Generation(std::shared_ptr<GenerationChannel> channel);

  std::shared_ptr<GenerationChannel> channel_;  // shared with the inference thread
  bool finished_ = false;
  GenerationSummary summary_;
};

struct EngineOptions {
  std::size_t queue_limit = 64;  // requests that wait for a slot
  std::size_t batch_rows = 512;  // rows of a step; cut to what the backend takes
  // Rows of a step in which somebody waits for the next token of a stream: prompts give way.
  std::size_t mixed_batch_rows = 128;
  base::Bytes checkpoint_budget = base::Bytes::MiB(1024);  // of all checkpoints; 0: none are kept
  // Boundaries closer than this many tokens behind the last checkpoint are passed over, except the
  // last one of a prompt.
  std::size_t checkpoint_spacing = 64;
  base::Log log;  // failures of the backend, and that alone
  // Called on the inference thread between two steps: before a request begins while none is
  // running, and about once every `between_period`, whether requests are running or not. May use
  // the backend, but not its slots. May be empty.
  std::function<void()> between_steps;
  std::chrono::milliseconds between_period{1000};
};

class Engine {
 public:
  // Starts the inference thread, which from here on is the only one that may use `backend`. The
  // backend's slots must be empty. `backend` and `vocabulary` outlive the engine.
  static std::unique_ptr<Engine> Start(model::ModelBackend& backend,
                                       const model::Vocabulary& vocabulary, EngineOptions options);

  // Cancels everything, within one step, and ends the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Takes as long as its grammar takes to parse. Errors: kInvalidInput for an
  // empty prompt, tokens outside the vocabulary, prompt and max_tokens together beyond the context
  // (the message has all numbers), a sampling setting out of range, a grammar that does not parse;
  // kBusy when the queue is full; kUnavailable after Drain was called.
  base::Result<std::unique_ptr<Generation>> Submit(GenerationRequest request);

  EngineStatistics statistics() const;
  // Tokens that one request can hold, prompt and generated ones together.
  std::size_t context_length() const;

  // Refuses new requests from now on and waits until all accepted ones have ended, at most for
  // `wait`. True when they have.
  bool Drain(std::chrono::milliseconds wait);

 private:
  explicit Engine(std::unique_ptr<EngineLoop> loop);

  std::unique_ptr<EngineLoop> loop_;
};

}  // namespace engine
