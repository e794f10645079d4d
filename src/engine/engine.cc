#include "engine/engine.h"

#include <utility>

#include "base/check.h"
#include "engine/channel.h"
#include "engine/loop.h"
#include "engine/sequence.h"

namespace engine {

Generation::Generation(std::shared_ptr<GenerationChannel> channel) : channel_(std::move(channel)) {}

Generation::~Generation() { channel_->Cancel(); }

std::vector<GeneratedToken> Generation::Next(std::chrono::milliseconds wait) {
  if (finished_) return {};
  GenerationChannel::Taken taken = channel_->Take(wait);
  if (taken.summary) {
    summary_ = *std::move(taken.summary);
    finished_ = true;
  }
  return std::move(taken.tokens);
}

bool Generation::finished() const { return finished_; }

const GenerationSummary& Generation::summary() const {
  ES_CHECK(finished_);
  return summary_;
}

void Generation::Cancel() { channel_->Cancel(); }

Engine::Engine(std::unique_ptr<EngineLoop> loop) : loop_(std::move(loop)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::Start(model::ModelBackend& backend,
                                      const model::Vocabulary& vocabulary, EngineOptions options) {
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<EngineLoop>(backend, vocabulary, std::move(options))));
}

base::Result<std::unique_ptr<Generation>> Engine::Submit(GenerationRequest request) {
  if (auto fits = loop_->CheckFits(request); !fits) return base::Forward(fits);
  if (request.top_logprobs > kMaxTopLogprobs) {
    return base::Fail(base::ErrorKind::kInvalidInput, "top-logprobs is {}; use 0 to {}",
                      request.top_logprobs, kMaxTopLogprobs);
  }
  auto sampler = model::Sampler::Make(request.sampling, loop_->vocabulary());
  if (!sampler) return base::Forward(sampler);
  sampler->Prime(request.prompt);
  auto channel = std::make_shared<GenerationChannel>();
  auto sequence = std::make_unique<Sequence>(std::move(request), *std::move(sampler), channel);
  if (auto queued = loop_->Enqueue(std::move(sequence)); !queued) return base::Forward(queued);
  return std::unique_ptr<Generation>(new Generation(std::move(channel)));
}

EngineStatistics Engine::statistics() const { return loop_->statistics(); }

std::size_t Engine::context_length() const { return loop_->context_length(); }

bool Engine::Drain(std::chrono::milliseconds wait) { return loop_->Drain(wait); }

}  // namespace engine
