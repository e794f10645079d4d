// Both sides of a connection against each other, and each against a partner that misbehaves.
#include "moe/ipc/worker_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "moe/ipc/worker_loop.h"

namespace moe::ipc {
namespace {

using base::Deadline;
using base::ErrorKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

ModelIdentity Model() {
  return {.architecture = "examplemoe",
          .name = "Demo",
          .quantisation = "F32",
          .num_layers = 1,
          .num_experts = 2,
          .directory_hash = 1,
          .shape_hash = 2};
}

LoadOrder Order() {
  return {.model = Model(),
          .plan_fingerprint = 77,
          .rows = {.max_rows = 4, .num_used = 1, .n_embd = 3},
          .owned = {1, 0}};
}

// Answers every row with its double.
class Doubler final : public WorkerService {
 public:
  Welcome Describe() override { return {.model = Model(), .target = "cpu"}; }
  base::Result<base::Bytes> Load(const LoadOrder& order,
                                 const std::function<void(LoadProgress)>& progress,
                                 std::stop_token) override {
    progress({.done = base::Bytes(5), .total = base::Bytes(10)});
    ++num_loads;
    if (load_error) return std::unexpected(*load_error);
    owned = order.owned;
    return base::Bytes(10);
  }
  base::Result<std::uint64_t> Compute(const BatchOrder& batch, const SharedRows& rows) override {
    if (compute_error) return std::unexpected(*compute_error);
    for (std::size_t i = 0; i < batch.num_rows * 3; ++i) rows.results()[i] = 2 * rows.rows()[i];
    return batch.num_rows;
  }
  void Unload() override { unloaded = true; }

  std::optional<base::Error> load_error;
  std::optional<base::Error> compute_error;
  std::vector<std::uint8_t> owned;
  int num_loads = 0;
  bool unloaded = false;
};

constexpr WorkerTimeouts kPatient{
    .welcome = seconds(60), .load = seconds(60), .batch = seconds(60)};
constexpr WorkerTimeouts kImpatient{
    .welcome = milliseconds(20), .load = milliseconds(20), .batch = milliseconds(20)};

struct Ends {
  Ends() {
    auto pair = Channel::Pair();
    EXPECT_TRUE(pair);
    owner.emplace(std::move(pair->first));
    worker.emplace(std::move(pair->second));
  }
  std::optional<Channel> owner;
  std::optional<Channel> worker;
};

template <class T>
std::string MessageOf(const base::Result<T>& result, ErrorKind kind) {
  EXPECT_FALSE(result);
  if (result) return {};
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  return result.error().message;
}

class WorkerSessionTest : public ::testing::Test {
 protected:
  // Serves `service` on a thread of its own.
  WorkerSession Serve() {
    worker_ = std::jthread([this](std::stop_token) {
      served_ = ServeConnection(std::move(*ends_.worker), service_, stop_.get_token());
    });
    auto session = WorkerSession::Open(std::move(*ends_.owner), "worker(cpu)", kPatient);
    EXPECT_TRUE(session) << session.error().message;
    return std::move(*session);
  }
  static base::Result<void> Load(WorkerSession& session, const LoadOrder& order = Order()) {
    if (auto sent = session.OrderLoad(order); !sent) return sent;
    for (;;) {
      auto progress = session.WaitLoad();
      if (!progress) return std::unexpected(progress.error());
      if (!*progress) return {};
    }
  }

  Ends ends_;
  Doubler service_;
  std::stop_source stop_;
  base::Result<void> served_;
  std::jthread worker_;
};

TEST_F(WorkerSessionTest, LoadsAndComputesBatches) {
  {
    WorkerSession session = Serve();
    EXPECT_EQ(session.welcome().target, "cpu");
    ASSERT_TRUE(Load(session));
    EXPECT_EQ(service_.owned, (std::vector<std::uint8_t>{1, 0}));
    for (std::uint32_t rows : {1U, 4U, 2U}) {
      for (std::size_t i = 0; i < rows * 3; ++i) {
        session.shared().rows()[i] = static_cast<float>(i + rows);
      }
      ASSERT_TRUE(session.StartBatch(0, rows));
      ASSERT_TRUE(session.WaitBatch(rows));
      for (std::size_t i = 0; i < rows * 3; ++i) {
        EXPECT_EQ(session.shared().results()[i], 2 * static_cast<float>(i + rows));
      }
    }
    LoadOrder other = Order();
    other.owned = {1, 1};
    ASSERT_TRUE(Load(session, other)) << "units can be ordered anew";
    EXPECT_EQ(service_.owned, (std::vector<std::uint8_t>{1, 1}));
    ASSERT_TRUE(session.StartBatch(0, 1));
    ASSERT_TRUE(session.WaitBatch(1));
  }
  worker_.join();
  EXPECT_TRUE(served_) << "the connection was closed in order";
  EXPECT_TRUE(service_.unloaded);
}

TEST_F(WorkerSessionTest, AnotherModelIsRefusedWithBothNamed) {
  WorkerSession session = Serve();
  LoadOrder order = Order();
  order.model.name = "Other";
  EXPECT_THAT(MessageOf(session.OrderLoad(order), ErrorKind::kCorruptModel),
              ::testing::AllOf(HasSubstr("Demo"), HasSubstr("Other")));
}

TEST_F(WorkerSessionTest, WhatTheWorkerCannotDoArrivesWithItsKind) {
  service_.load_error = base::Error{ErrorKind::kCapacity, "no room"};
  WorkerSession session = Serve();
  EXPECT_EQ(MessageOf(Load(session), ErrorKind::kCapacity), "worker(cpu): no room");
  worker_.join();
  EXPECT_TRUE(service_.unloaded);
}

TEST_F(WorkerSessionTest, AFailedBatchEndsTheConnection) {
  service_.compute_error = base::Error{ErrorKind::kDeviceFailure, "device gone"};
  WorkerSession session = Serve();
  ASSERT_TRUE(Load(session));
  ASSERT_TRUE(session.StartBatch(0, 1));
  EXPECT_EQ(MessageOf(session.WaitBatch(1), ErrorKind::kDeviceFailure), "worker(cpu): device gone");
  worker_.join();
  EXPECT_FALSE(served_);
}

TEST_F(WorkerSessionTest, AnotherNumberOfPairsIsALostWorker) {
  WorkerSession session = Serve();
  ASSERT_TRUE(Load(session));
  ASSERT_TRUE(session.StartBatch(0, 2));
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost),
              HasSubstr("answered batch 1 with 2 expert rows where batch 1 with 1 was due"));
}

TEST_F(WorkerSessionTest, AStopEndsTheWorker) {
  WorkerSession session = Serve();
  ASSERT_TRUE(Load(session));
  stop_.request_stop();
  worker_.join();
  ASSERT_FALSE(served_);
  EXPECT_EQ(served_.error().kind, ErrorKind::kCancelled);
}

TEST_F(WorkerSessionTest, ASilentWorkerIsLostAtTheDeadline) {
  EXPECT_THAT(MessageOf(WorkerSession::Open(std::move(*ends_.owner), "w", kImpatient),
                        ErrorKind::kWorkerLost),
              HasSubstr("w: no answer in time"));
}

// A worker of which every frame is scripted.
class ScriptedWorkerTest : public ::testing::Test {
 protected:
  WorkerSession Open(const WorkerTimeouts& timeouts = kPatient) {
    Send(FrameType::kWelcome, Encode(Welcome{.model = Model(), .target = "cpu"}));
    auto session = WorkerSession::Open(std::move(*ends_.owner), "w", timeouts);
    EXPECT_TRUE(session);
    return std::move(*session);
  }
  WorkerSession Loaded(const WorkerTimeouts& timeouts = kPatient) {
    WorkerSession session = Open(timeouts);
    EXPECT_TRUE(session.OrderLoad(Order()));
    Send(FrameType::kReady, Encode(Ready{.plan_fingerprint = 77}));
    EXPECT_TRUE(session.WaitLoad());
    return session;
  }
  void Send(FrameType type, const std::vector<std::byte>& payload) {
    EXPECT_TRUE(ends_.worker->Send(type, payload, Deadline::After(seconds(60))));
  }

  Ends ends_;
};

TEST_F(ScriptedWorkerTest, ReadyForAnotherPlanIsALostWorker) {
  WorkerSession session = Open();
  ASSERT_TRUE(session.OrderLoad(Order()));
  Send(FrameType::kReady, Encode(Ready{.plan_fingerprint = 78}));
  EXPECT_THAT(MessageOf(session.WaitLoad(), ErrorKind::kWorkerLost),
              HasSubstr("ready for the plan 000000000000004e, not for 000000000000004d"));
}

TEST_F(ScriptedWorkerTest, AFrameOfAnotherTypeIsALostWorker) {
  WorkerSession session = Loaded();
  ASSERT_TRUE(session.StartBatch(0, 1));
  Send(FrameType::kProgress, Encode(LoadProgress{}));
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost),
              HasSubstr("sent a progress frame where done was due"));
}

TEST_F(ScriptedWorkerTest, AnAnswerWithoutResultsIsALostWorker) {
  WorkerSession session = Loaded();
  ASSERT_TRUE(session.StartBatch(0, 1));
  // The reply word was not published.
  Send(FrameType::kDone, Encode(BatchDone{.number = 1, .num_pairs = 1}));
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost), HasSubstr("answered"));
}

TEST_F(ScriptedWorkerTest, AMalformedMessageIsALostWorker) {
  WorkerSession session = Loaded();
  ASSERT_TRUE(session.StartBatch(0, 1));
  Send(FrameType::kDone, {std::byte{1}});
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost),
              HasSubstr("a done message: ends inside number"));
}

TEST_F(ScriptedWorkerTest, ALateAnswerIsALostWorker) {
  WorkerSession session = Loaded(kImpatient);
  ASSERT_TRUE(session.StartBatch(0, 1));
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost),
              HasSubstr("no answer in time"));
}

TEST_F(ScriptedWorkerTest, AnEndInsideAnAnswerIsALostWorker) {
  WorkerSession session = Loaded();
  ASSERT_TRUE(session.StartBatch(0, 1));
  ends_.worker.reset();
  EXPECT_THAT(MessageOf(session.WaitBatch(1), ErrorKind::kWorkerLost),
              HasSubstr("closed the connection"));
}

// An owner of which every frame is scripted: the worker names the fault and hangs up.
class ScriptedOwnerTest : public ::testing::Test {
 protected:
  // What the worker ends with, and tells the owner.
  std::string Serve(const std::function<void(Channel&)>& script) {
    std::jthread worker(
        [this] { served_ = ServeConnection(std::move(*ends_.worker), service_, {}); });
    EXPECT_TRUE(ends_.owner->Receive(Deadline::After(seconds(60))));
    script(*ends_.owner);
    std::string told;
    for (;;) {
      auto frame = ends_.owner->Receive(Deadline::After(seconds(60)));
      if (!frame) break;
      if (frame->type == FrameType::kFailure) told = DecodeFailure(frame->payload)->message;
    }
    worker.join();
    EXPECT_FALSE(served_);
    EXPECT_TRUE(service_.unloaded);
    EXPECT_EQ(told, served_ ? "" : served_.error().message);
    return told;
  }
  static void Send(Channel& owner, FrameType type, const std::vector<std::byte>& payload,
                   int descriptor = -1) {
    EXPECT_TRUE(owner.Send(type, payload, Deadline::After(seconds(60)), descriptor));
  }
  static void Load(Channel& owner) {
    auto shared = SharedRows::Create(Order().rows);
    ASSERT_TRUE(shared);
    Send(owner, FrameType::kLoad, Encode(Order()), shared->descriptor());
  }

  Ends ends_;
  Doubler service_;
  base::Result<void> served_;
};

TEST_F(ScriptedOwnerTest, ABatchBeforeALoadOrderIsRefused) {
  EXPECT_THAT(Serve([](Channel& owner) {
                Send(owner, FrameType::kBatch, Encode(BatchOrder{.number = 1}));
              }),
              HasSubstr("a batch came before a load order"));
}

TEST_F(ScriptedOwnerTest, ALoadOrderWithoutMemoryIsRefused) {
  EXPECT_THAT(Serve([](Channel& owner) { Send(owner, FrameType::kLoad, Encode(Order())); }),
              HasSubstr("passed no shared memory"));
  EXPECT_EQ(service_.num_loads, 0);
}

TEST_F(ScriptedOwnerTest, ABatchOutOfOrderIsRefused) {
  EXPECT_THAT(Serve([](Channel& owner) {
                Load(owner);
                Send(owner, FrameType::kBatch, Encode(BatchOrder{.number = 2, .num_rows = 1}));
              }),
              HasSubstr("batch 2 came where batch 1 was due"));
}

TEST_F(ScriptedOwnerTest, AWorkersFrameIsRefused) {
  EXPECT_THAT(Serve([](Channel& owner) { Send(owner, FrameType::kReady, Encode(Ready{})); }),
              HasSubstr("a worker takes no ready frame"));
}

TEST_F(ScriptedOwnerTest, AMalformedOrderIsRefused) {
  EXPECT_THAT(Serve([](Channel& owner) { Send(owner, FrameType::kLoad, {std::byte{9}}); }),
              HasSubstr("a load message: ends inside architecture"));
}

}  // namespace
}  // namespace moe::ipc
