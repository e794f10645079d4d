#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/fake_backend.h"

namespace engine {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<model::Token>;
using Rows = std::span<const model::BatchRow>;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// A generation, read to its end.
struct Read {
  Tokens tokens;
  std::string text;
  std::vector<GeneratedToken> all;
  GenerationSummary summary;
};

Read ReadAll(Generation& generation) {
  Read read;
  while (!generation.finished()) {
    for (GeneratedToken& token : generation.Next(60s)) {
      read.tokens.push_back(token.token);
      read.text += token.piece;
      read.all.push_back(std::move(token));
    }
  }
  read.summary = generation.summary();
  return read;
}

Tokens Range(model::Token first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<model::Token>(i);
  return tokens;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
    ASSERT_TRUE(loaded) << loaded.error().message;
    vocabulary_ = std::make_unique<model::Vocabulary>(*std::move(loaded));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  void Start(std::size_t slots, EngineOptions options = {}, std::size_t context = 256,
             std::size_t max_batch_rows = 64) {
    options.checkpoint_spacing = 1;
    backend_ = std::make_unique<FakeBackend>(vocabulary_->size(), context, max_batch_rows, slots);
    backend_->before_step = [this](Rows rows, const std::stop_token& stop) {
      return before_step_ ? before_step_(rows, stop) : base::Result<void>();
    };
    engine_ = Engine::Start(*backend_, *vocabulary_, options);
  }
  void TearDown() override { engine_.reset(); }

  static GenerationRequest Greedy(Tokens prompt, std::size_t max_tokens = 8) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_end = true;
    request.sampling.temperature = 0;
    return request;
  }
  std::unique_ptr<Generation> Submit(GenerationRequest request) {
    auto generation = engine_->Submit(std::move(request));
    EXPECT_TRUE(generation) << generation.error().message;
    return generation ? *std::move(generation) : nullptr;
  }
  Read Complete(GenerationRequest request) {
    auto generation = Submit(std::move(request));
    return generation ? ReadAll(*generation) : Read();
  }
  std::string Refusal(GenerationRequest request, base::ErrorKind kind) {
    auto generation = engine_->Submit(std::move(request));
    EXPECT_FALSE(generation);
    if (generation) return "accepted";
    EXPECT_EQ(generation.error().kind, kind);
    return generation.error().message;
  }

  // What greedy decoding of FakeBackend gives.
  static Tokens Expected(Tokens history, std::size_t count) {
    Tokens generated;
    while (generated.size() < count) {
      const auto next =
          static_cast<model::Token>(FakeBackend::Likeliest(history, vocabulary_->size()));
      history.push_back(next);
      generated.push_back(next);
    }
    return generated;
  }

  static std::unique_ptr<model::Vocabulary> vocabulary_;
  // On the inference thread, at the start of each step. Set before Start's first request.
  std::function<base::Result<void>(Rows, std::stop_token)> before_step_;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<model::Vocabulary> EngineTest::vocabulary_;

// Holds the inference thread in a step until it is opened.
class Gate {
 public:
  base::Result<void> Pass(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, stop, [&] { return open_; });
    return {};
  }
  void WaitUntilReached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool reached_ = false;
  bool open_ = false;
};

TEST_F(EngineTest, ManyRequestsOverFewSlotsEachGetTheirOwnText) {
  Start(3, {.batch_rows = 16, .mixed_batch_rows = 5});
  std::vector<std::unique_ptr<Generation>> generations;
  const auto prompt = [](int i) { return Range(i, static_cast<std::size_t>(1 + i * 7)); };
  for (int i = 0; i < 12; ++i) generations.push_back(Submit(Greedy(prompt(i), 9)));
  for (int i = 0; i < 12; ++i) {
    const Read read = ReadAll(*generations[static_cast<std::size_t>(i)]);
    EXPECT_EQ(read.tokens, Expected(prompt(i), 9)) << i;
    EXPECT_EQ(read.text, vocabulary_->Text(read.tokens));
    EXPECT_EQ(read.summary.reason, FinishReason::kLength);
    EXPECT_EQ(read.summary.completion_tokens, 9U);
    EXPECT_EQ(read.summary.prompt_tokens, prompt(i).size());
  }
  const EngineStatistics statistics = engine_->statistics();
  EXPECT_EQ(statistics.finished[static_cast<std::size_t>(FinishReason::kLength)], 12U);
  EXPECT_EQ(statistics.generated_tokens, 12U * 9U);
  EXPECT_EQ(statistics.time_to_first_token.count(), 12U);
  EXPECT_EQ(statistics.running, 0U);
  EXPECT_EQ(statistics.queued, 0U);
}

TEST_F(EngineTest, ManyClientsAtOnce) {
  Start(4, {.queue_limit = 1000});
  std::vector<std::jthread> clients;
  std::atomic<int> wrong = 0;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 10; ++i) {
        const Tokens prompt = Range(client * 3, static_cast<std::size_t>(5 + i * 4));
        auto generation = Submit(Greedy(prompt, 6));
        if (i % 3 == 2) {
          static_cast<void>(generation->Next(1ms));
          generation->Cancel();
        } else if (ReadAll(*generation).tokens != Expected(prompt, 6)) {
          ++wrong;
        }
        static_cast<void>(engine_->statistics());
      }
    });
  }
  clients.clear();
  EXPECT_EQ(wrong, 0);
}

TEST_F(EngineTest, AStreamGetsATokenEveryStepWhileAPromptIsComputed) {
  std::unique_ptr<Generation> late;
  before_step_ = [&](Rows rows, const std::stop_token&) -> base::Result<void> {
    if (rows.size() == 1 && !late) late = Submit(Greedy(Range(50, 100), 1));
    return {};
  };
  Start(2, {.batch_rows = 64, .mixed_batch_rows = 10});
  EXPECT_EQ(Complete(Greedy({3, 4}, 40)).tokens, Expected({3, 4}, 40));
  ReadAll(*late);
  engine_.reset();
  std::size_t mixed = 0;
  for (const auto& batch : backend_->batches) {
    const auto streams = std::ranges::count(batch, 0U, &model::BatchRow::slot);
    if (streams == static_cast<std::ptrdiff_t>(batch.size())) continue;
    EXPECT_EQ(streams, 1);
    EXPECT_LE(batch.size(), 10U);
    ++mixed;
  }
  EXPECT_EQ(mixed, 12U) << "100 rows in steps of 9";
}

TEST_F(EngineTest, TheQueueIsFifoAndBounded) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(1, {.queue_limit = 2});
  auto running = Submit(Greedy({10, 1}, 1));
  gate.WaitUntilReached();
  auto second = Submit(Greedy({20, 1}, 1));
  auto third = Submit(Greedy({30, 1}, 1));
  EXPECT_THAT(Refusal(Greedy({40, 1}, 1), base::ErrorKind::kBusy), HasSubstr("2 are waiting"));
  EngineStatistics statistics = engine_->statistics();
  EXPECT_EQ(statistics.running, 1U);
  EXPECT_EQ(statistics.queued, 2U);
  EXPECT_EQ(statistics.refused, 1U);
  gate.Open();
  for (auto* generation : {&running, &second, &third}) ReadAll(**generation);
  engine_.reset();
  ASSERT_EQ(backend_->batches.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(backend_->batches[i].front().token, static_cast<int>(10 * (i + 1)));
  }
}

TEST_F(EngineTest, CancelEndsWithinOneStepAndFreesTheSlot) {
  Gate gate;
  std::atomic<Generation*> victim = nullptr;
  int steps = 0;
  before_step_ = [&](Rows, const std::stop_token& stop) -> base::Result<void> {
    if (++steps == 5) victim.load()->Cancel();
    return gate.Pass(stop);
  };
  Start(1);
  auto generation = Submit(Greedy({3, 4}, 200));
  victim = generation.get();
  gate.Open();
  const Read read = ReadAll(*generation);
  EXPECT_EQ(read.summary.reason, FinishReason::kCancelled);
  EXPECT_EQ(read.tokens, Expected({3, 4}, 5)) << "the step in which it was cancelled is the last";
  EXPECT_EQ(Complete(Greedy({3, 5}, 4)).tokens, Expected({3, 5}, 4));
}

TEST_F(EngineTest, DestroyingAGenerationCancelsIt) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(1);
  auto running = Submit(Greedy({3, 4}, 200));
  gate.WaitUntilReached();
  auto waiting = Submit(Greedy({9}, 200));
  running.reset();
  waiting.reset();
  gate.Open();
  EXPECT_TRUE(engine_->Drain(60s));
  EXPECT_EQ(engine_->statistics().finished[static_cast<std::size_t>(FinishReason::kCancelled)], 2U);
  EXPECT_EQ(engine_->statistics().generated_tokens, 1U);
}

TEST_F(EngineTest, ARunningRequestRunsOutOfTime) {
  before_step_ = [&](Rows, const std::stop_token&) -> base::Result<void> {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < begin + 1ms) std::this_thread::yield();
    return {};
  };
  Start(1);
  GenerationRequest request = Greedy({3, 4}, 250);
  request.timeout = 20ms;
  const Read read = Complete(request);
  EXPECT_EQ(read.summary.reason, FinishReason::kTimeout);
  EXPECT_LE(read.tokens.size(), 20U);
  EXPECT_EQ(read.tokens, Expected({3, 4}, read.tokens.size()));
}

TEST_F(EngineTest, AWaitingRequestRunsOutOfTime) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(1);
  auto running = Submit(Greedy({3, 4}, 20));
  gate.WaitUntilReached();
  GenerationRequest request = Greedy({3, 4}, 20);
  request.timeout = 1ms;
  const auto submitted = std::chrono::steady_clock::now();
  auto waiting = Submit(request);
  while (std::chrono::steady_clock::now() < submitted + 10ms) std::this_thread::yield();
  gate.Open();
  const Read waited = ReadAll(*waiting);
  EXPECT_EQ(waited.summary.reason, FinishReason::kTimeout);
  EXPECT_EQ(waited.summary.prompt_ms, 0.0);
  EXPECT_GE(waited.summary.queue_ms, 1.0);
  EXPECT_EQ(ReadAll(*running).summary.reason, FinishReason::kLength);
}

TEST_F(EngineTest, ABackendFailureEndsItsRequestsAndTheEngineLivesOn) {
  std::atomic<bool> failing = false;
  before_step_ = [&](Rows, const std::stop_token&) -> base::Result<void> {
    if (failing) return base::Fail(base::ErrorKind::kWorkerLost, "the worker is gone");
    return {};
  };
  Start(2);
  GenerationRequest request = Greedy(Range(1, 30), 5);
  request.boundaries = {10, 20};
  EXPECT_EQ(Complete(request).tokens, Expected(Range(1, 30), 5));
  failing = true;
  const Read failed = Complete(request);
  EXPECT_EQ(failed.summary.reason, FinishReason::kFailed);
  EXPECT_EQ(failed.summary.error.kind, base::ErrorKind::kWorkerLost);
  EXPECT_EQ(failed.summary.error.message, "the worker is gone");
  EXPECT_EQ(failed.summary.cached_tokens, 20U);
  failing = false;
  const Read after = Complete(request);
  EXPECT_EQ(after.tokens, Expected(Range(1, 30), 5));
  EXPECT_EQ(after.summary.cached_tokens, 0U) << "nothing of a failed slot is reused";
}

TEST_F(EngineTest, WhatAStepThrowsEndsRequestsToo) {
  std::atomic<bool> failing = true;
  before_step_ = [&](Rows, const std::stop_token&) -> base::Result<void> {
    if (failing) throw std::bad_alloc();
    return {};
  };
  Start(1);
  const Read failed = Complete(Greedy({3, 4}));
  EXPECT_EQ(failed.summary.reason, FinishReason::kFailed);
  EXPECT_EQ(failed.summary.error.kind, base::ErrorKind::kInternal);
  failing = false;
  EXPECT_EQ(Complete(Greedy({3, 4})).tokens, Expected({3, 4}, 8));
}

TEST_F(EngineTest, DrainRefusesTheNewAndWaitsForTheOld) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(1);
  auto running = Submit(Greedy({3, 4}, 20));
  auto waiting = Submit(Greedy({9}, 20));
  gate.WaitUntilReached();
  EXPECT_FALSE(engine_->Drain(1ms));
  EXPECT_THAT(Refusal(Greedy({1}), base::ErrorKind::kUnavailable), HasSubstr("shutting down"));
  gate.Open();
  EXPECT_TRUE(engine_->Drain(60s));
  EXPECT_EQ(ReadAll(*running).tokens, Expected({3, 4}, 20));
  EXPECT_EQ(ReadAll(*waiting).tokens, Expected({9}, 20));
}

TEST_F(EngineTest, EndingTheEngineEndsARunningStepAndCancelsAll) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(1);
  auto running = Submit(Greedy({3, 4}, 20));
  gate.WaitUntilReached();
  auto waiting = Submit(Greedy({9}, 20));
  engine_.reset();
  EXPECT_EQ(ReadAll(*running).summary.reason, FinishReason::kCancelled);
  EXPECT_EQ(ReadAll(*waiting).summary.reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, StopsAtEndOfGeneration) {
  model::Token end = -1;
  for (std::size_t t = 0; t < vocabulary_->size(); ++t) {
    if (vocabulary_->IsEndOfGeneration(static_cast<model::Token>(t))) {
      end = static_cast<model::Token>(t);
    }
  }
  Start(1);
  GenerationRequest request = Greedy({end});
  request.ignore_end = false;
  const Read read = Complete(request);
  EXPECT_TRUE(read.tokens.empty());
  EXPECT_EQ(read.summary.reason, FinishReason::kEnd);
}

TEST_F(EngineTest, ASecondTurnComputesItsNewPartOnly) {
  Start(2);
  const Tokens prompt = Range(1, 40);
  const Read first = Complete(Greedy(prompt, 6));
  // The last generated token was never computed.
  const Tokens second_prompt = Join(Join(prompt, first.tokens), Range(90, 10));
  const Read second = Complete(Greedy(second_prompt, 6));
  EXPECT_EQ(second.tokens, Expected(second_prompt, 6));
  EXPECT_EQ(second.summary.cached_tokens, 45U);
  const EngineStatistics statistics = engine_->statistics();
  EXPECT_EQ(statistics.prompt_tokens, 40U + 11U);
  EXPECT_EQ(statistics.cached_tokens, 45U);
  EXPECT_EQ(statistics.prefix_hits, 1U);
  EXPECT_EQ(statistics.prefix_misses, 1U);
}

TEST_F(EngineTest, AnEditedTurnGoesOnFromTheLastCommonMessage) {
  Start(2);
  GenerationRequest request = Greedy(Range(1, 60), 6);
  request.boundaries = {10, 25, 45, 55};
  Complete(request);
  request.prompt = Join(Range(1, 50), Range(150, 15));
  const Read edited = Complete(request);
  EXPECT_EQ(edited.tokens, Expected(request.prompt, 6));
  EXPECT_EQ(edited.summary.cached_tokens, 45U);
  engine_.reset();
  EXPECT_EQ(backend_->restores, 1U);
}

TEST_F(EngineTest, ACommonStartIsTakenOverByOtherSlots) {
  Start(3);
  GenerationRequest request = Greedy(Join(Range(1, 20), Range(100, 40)), 6);
  request.boundaries = {20};
  Complete(request);
  request.prompt = Join(Range(1, 20), Range(60, 40));
  const Read other = Complete(request);
  EXPECT_EQ(other.tokens, Expected(request.prompt, 6));
  EXPECT_EQ(other.summary.cached_tokens, 20U);
  request.prompt = Join(Range(1, 20), Range(100, 45));
  EXPECT_EQ(Complete(request).tokens, Expected(request.prompt, 6));
}

TEST_F(EngineTest, EqualPromptsAtOnceAreComputedOnce) {
  Gate gate;
  before_step_ = [&](Rows, const std::stop_token& stop) { return gate.Pass(stop); };
  Start(4);
  auto blocker = Submit(Greedy({9}, 1));
  gate.WaitUntilReached();
  GenerationRequest request = Greedy(Range(1, 60), 5);
  request.boundaries = {20, 50};
  std::vector<std::unique_ptr<Generation>> generations;
  for (int i = 0; i < 4; ++i) generations.push_back(Submit(request));
  // Begins otherwise, so it waits for nobody.
  auto other = Submit(Greedy(Range(100, 10), 5));
  gate.Open();
  for (const auto& generation : generations) {
    EXPECT_EQ(ReadAll(*generation).tokens, Expected(request.prompt, 5));
  }
  EXPECT_EQ(ReadAll(*other).tokens, Expected(Range(100, 10), 5));
  EXPECT_EQ(engine_->statistics().prompt_tokens, 1U + 60U + 3U * 10U + 10U);
}

TEST_F(EngineTest, NothingStaleIsReusedAfterCancellationsAtAnyStep) {
  std::atomic<bool> ready = true;
  std::atomic<Generation*> victim = nullptr;
  std::atomic<int> countdown = -1;
  before_step_ = [&](Rows, const std::stop_token&) -> base::Result<void> {
    ready.wait(false);
    if (countdown.fetch_sub(1) == 0) victim.load()->Cancel();
    return {};
  };
  Start(2, {.batch_rows = 7});
  for (int at = 0; at < 12; ++at) {
    GenerationRequest request = Greedy(Join(Range(1, 20), Range(100 + at, 30)), 10);
    request.boundaries = {10, 20, 30, 40};
    ready = false;
    auto generation = Submit(request);
    victim = generation.get();
    countdown = at;
    ready = true;
    ready.notify_all();
    EXPECT_EQ(ReadAll(*generation).summary.reason, FinishReason::kCancelled);
    request.prompt = Join(Range(1, 25), Range(200, 20));
    EXPECT_EQ(Complete(request).tokens, Expected(request.prompt, 10)) << at;
    request.prompt = Join(Range(1, 20), Range(100 + at, 35));
    EXPECT_EQ(Complete(request).tokens, Expected(request.prompt, 10)) << at;
  }
}

TEST_F(EngineTest, CheckpointsStayWithinTheirBudget) {
  Start(4, {.checkpoint_budget = FakeBackend::kCheckpointBytes * 3});
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = Greedy(Range(i * 30, 50), 2);
    request.boundaries = {10, 20, 30};
    Complete(request);
    EXPECT_LE(engine_->statistics().checkpoint_bytes, 3 * FakeBackend::kCheckpointBytes.count());
    EXPECT_EQ(engine_->statistics().checkpoints, 3U);
  }
}

TEST_F(EngineTest, ReuseCanBeDeclined) {
  Start(1);
  GenerationRequest request = Greedy(Range(1, 30));
  request.reuse_prefix = false;
  Complete(request);
  request.prompt = Range(1, 40);
  const Read read = Complete(request);
  EXPECT_EQ(read.summary.cached_tokens, 0U);
  EXPECT_EQ(read.tokens, Expected(Range(1, 40), 8));
}

TEST_F(EngineTest, SameSeedSameTextWhateverElseRuns) {
  Start(3, {.queue_limit = 100});
  GenerationRequest request = Greedy({7, 8, 9}, 30);
  request.sampling = {.temperature = 5, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 11};
  request.sampling.frequency_penalty = 0.5F;
  const Tokens alone = Complete(request).tokens;
  std::vector<std::unique_ptr<Generation>> others;
  for (int i = 0; i < 9; ++i) {
    GenerationRequest other = request;
    other.prompt = Range(i, 20);
    other.sampling.seed = static_cast<std::uint32_t>(i);
    others.push_back(Submit(other));
  }
  EXPECT_EQ(Complete(request).tokens, alone);
  request.sampling.seed = 12;
  EXPECT_NE(Complete(request).tokens, alone);
}

TEST_F(EngineTest, LogProbabilitiesAreTheModelsOwn) {
  Start(1);
  GenerationRequest request = Greedy({7}, 1);
  request.logprobs = true;
  request.top_logprobs = 3;
  const Read read = Complete(request);
  ASSERT_EQ(read.all.size(), 1U);
  double sum = 0;
  for (std::size_t t = 0; t < vocabulary_->size(); ++t) {
    sum += std::exp(-0.1 * std::abs(static_cast<double>(t) - 7));
  }
  EXPECT_NEAR(read.all[0].log_probability, -std::log(sum), 1e-5);
  ASSERT_EQ(read.all[0].top.size(), 3U);
  EXPECT_EQ(read.all[0].top[0].token, 7);
  EXPECT_EQ(read.all[0].top[1].token, 6);
  EXPECT_NEAR(read.all[0].top[2].log_probability, -0.1 - std::log(sum), 1e-5);
  request.logprobs = false;
  EXPECT_TRUE(Complete(request).all[0].top.empty());
}

TEST_F(EngineTest, RefusesRequestsThatCannotBeServed) {
  Start(1);
  const auto kInvalid = base::ErrorKind::kInvalidInput;
  EXPECT_THAT(Refusal(Greedy({}), kInvalid), HasSubstr("empty"));
  EXPECT_THAT(Refusal(Greedy({1}, 0), kInvalid), HasSubstr("0 tokens"));
  const std::string too_long = Refusal(Greedy(Tokens(250, 1), 9), kInvalid);
  EXPECT_THAT(too_long, HasSubstr("250 tokens"));
  EXPECT_THAT(too_long, HasSubstr("258"));
  EXPECT_THAT(too_long, HasSubstr("256"));
  EXPECT_THAT(Refusal(Greedy({-1}), kInvalid), HasSubstr("token -1"));
  EXPECT_THAT(Refusal(Greedy({100000}), kInvalid), HasSubstr("token 100000"));
  GenerationRequest request = Greedy({1});
  request.top_logprobs = 21;
  EXPECT_THAT(Refusal(request, kInvalid), HasSubstr("21"));
  request = Greedy({1});
  request.sampling.grammar = "root ::= (";
  EXPECT_THAT(Refusal(request, kInvalid), HasSubstr("the group does not end"));
  request = Greedy({1});
  request.sampling.top_p = 2;
  EXPECT_THAT(Refusal(request, kInvalid), HasSubstr("top-p"));
  EXPECT_EQ(Complete(Greedy(Tokens(249, 1), 8)).tokens.size(), 8U) << "this fits exactly";
}

TEST_F(EngineTest, BetweenStepsIsCalledBeforeARequestAndWhileIdle) {
  std::mutex mutex;
  std::condition_variable called;
  int calls = 0;
  Start(2, {.between_steps =
                [&] {
                  const std::lock_guard lock(mutex);
                  ++calls;
                  called.notify_all();
                },
            .between_period = 1ms});
  int during = 0;
  before_step_ = [&](Rows, const std::stop_token&) {
    const std::lock_guard lock(mutex);
    during += std::exchange(calls, 0);
    return base::Result<void>();
  };
  auto generation = engine_->Submit(Greedy(Range(1, 3), 20));
  ASSERT_TRUE(generation);
  ReadAll(**generation);
  std::unique_lock lock(mutex);
  EXPECT_GE(during, 1) << "before it began";
  calls = 0;
  EXPECT_TRUE(called.wait_for(lock, 60s, [&] { return calls > 1; })) << "idle";
}

TEST_F(EngineTest, BetweenStepsIsCalledWhileARequestRuns) {
  for (const auto& [period, expected] : {std::pair(0ms, 19), std::pair(3600000ms, 0)}) {
    int calls = 0;
    int steps = 0;
    int calls_before_step = 0;
    Start(2, {.between_steps = [&] { ++calls; }, .between_period = period});
    before_step_ = [&](Rows, const std::stop_token&) {
      if (steps++ == 0) calls = 0;
      calls_before_step = calls;
      return base::Result<void>();
    };
    EXPECT_EQ(Complete(Greedy(Range(1, 3), 20)).tokens.size(), 20U);
    engine_.reset();
    EXPECT_EQ(steps, 20);
    EXPECT_EQ(calls_before_step, expected);
  }
}

}  // namespace
}  // namespace engine
