// What becomes of the experts of workers that are lost, come back or exchange experts: no bit of
// the results changes. The workers are threads here; tests/worker_test.cc has processes.
#include "moe/compute/failover_compute.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <functional>
#include <random>
#include <thread>

#include "moe/compute/expert_loader.h"
#include "moe/compute/hosted_experts.h"
#include "moe/compute/worker_test_model.h"
#include "moe/ipc/socket_path.h"
#include "moe/ipc/worker_loop.h"

namespace moe {
namespace {

using base::ErrorKind;
using ::testing::HasSubstr;

// What may go wrong with a worker.
enum class Fault { kNone, kEnds, kGarbage, kTruncated, kReordered, kWrongCount, kReports, kHangs };
constexpr int kNumFaults = 7;

// Hosted experts that go wrong once, while they load or at a batch.
class FaultyExperts final : public ipc::WorkerService {
 public:
  explicit FaultyExperts(HostedExpertsOptions options) : experts_(std::move(options)) {}

  ipc::Welcome Describe() override { return experts_.Describe(); }
  base::Result<base::Bytes> Load(const ipc::LoadOrder& order,
                                 const std::function<void(ipc::LoadProgress)>& progress,
                                 std::stop_token stop) override {
    if (at_batch < 0) {
      if (auto ruined = Ruin(); !ruined) return base::Forward(ruined);
    }
    return experts_.Load(order, progress, stop);
  }
  base::Result<std::uint64_t> Compute(const ipc::BatchOrder& batch,
                                      const ipc::SharedRows& rows) override {
    const bool now = at_batch >= 0 && num_batches_++ == at_batch;
    if (now) {
      if (auto ruined = Ruin(); !ruined) return base::Forward(ruined);
    }
    auto pairs = experts_.Compute(batch, rows);
    if (pairs && now && fault == Fault::kWrongCount) ++*pairs;
    return pairs;
  }
  void Unload() override { experts_.Unload(); }

  // Set before it is connected to.
  Fault fault = Fault::kNone;
  int at_batch = 0;  // negative: while it loads
  base::UniqueFd socket;
  std::stop_token ended;

 private:
  base::Result<void> Ruin() {
    const auto send = [this](std::string_view bytes) {
      EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    };
    switch (fault) {
      case Fault::kNone:
      case Fault::kWrongCount:
        break;
      case Fault::kEnds:
        ::shutdown(socket.get(), SHUT_RDWR);
        break;
      case Fault::kGarbage:
        send("HTTP/1.1 400 Bad Request\r\n\r\n");
        break;
      case Fault::kTruncated:
        send("ESPW");
        ::shutdown(socket.get(), SHUT_RDWR);
        break;
      case Fault::kReordered:
        send(std::string_view("ESPW\1\0\6\0\377\0\0\0\0\0\0\0", 16));
        break;
      case Fault::kReports:
        return base::Fail(ErrorKind::kDeviceFailure, "out of memory");
      case Fault::kHangs:
        while (!ended.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        break;
    }
    return {};
  }

  HostedExperts experts_;
  int num_batches_ = 0;
};

// Workers that listen on paths, in threads; killing one closes its connection.
class FailoverTest : public ::testing::TestWithParam<Repack> {
 protected:
  struct Listening {
    Listening(const WorkerTestModel& model, const std::string& path, Fault fault = Fault::kNone,
              int at_batch = 0)
        : experts(Hosting(model)) {
      experts.fault = fault;
      experts.at_batch = at_batch;
      experts.ended = stop.get_token();
      auto opened = ipc::Listener::Open(path, "");
      EXPECT_TRUE(opened) << opened.error().message;
      listener = std::make_unique<ipc::Listener>(std::move(*opened));
      thread = std::jthread([this] {
        auto channel = listener->Accept(stop.get_token());
        if (!channel) return;
        experts.socket = base::UniqueFd(::dup(channel->descriptor()));
        connected = true;
        static_cast<void>(ipc::ServeConnection(std::move(*channel), experts, stop.get_token()));
      });
    }
    ~Listening() { stop.request_stop(); }
    void Kill() {
      EXPECT_TRUE(connected);
      ::shutdown(experts.socket.get(), SHUT_RDWR);
    }

    FaultyExperts experts;
    std::unique_ptr<ipc::Listener> listener;
    std::stop_source stop;
    std::atomic<bool> connected = false;
    std::jthread thread;
  };

  void SetUp() override {
    folder_ = ::testing::TempDir() + "failover_test.XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Workers "unix:FOLDER/0", ... with these capacities in units, then `rest`.
  LoadedExperts Load(std::vector<std::size_t> capacities, const std::string& rest,
                     OnWorkerLoss policy = OnWorkerLoss::kMove) {
    std::string list;
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      const std::string path = folder_ + "/" + std::to_string(i);
      if (i == workers_.size()) workers_.push_back(std::make_unique<Listening>(model_, path));
      list += "unix:" + path + ",";
    }
    config_ =
        std::make_unique<ExpertSplitTargetConfig>(*ExpertSplitTargetConfig::Parse(list + rest));
    PlanRequest request{.shape = &model_.shape, .hotness = &hotness_};
    std::vector<gg::Device> devices;
    for (std::size_t t = 0; t < config_->size(); ++t) {
      const bool worker = t < capacities.size();
      devices.push_back(worker ? gg::Device{} : Cpu());
      request.targets.push_back({config_->targets()[t].name, {}});
      if (worker) {
        request.targets.back().capacity = model_.shape.unit_bytes(LayerId(0)) * capacities[t];
      } else if (t == capacities.size() && first_cpu_units_) {
        request.targets.back().capacity = model_.shape.unit_bytes(LayerId(0)) * *first_cpu_units_;
      }
    }
    auto plan = ExpertSplitPlan::Make(request);
    EXPECT_TRUE(plan);
    plan_ = std::make_unique<ExpertSplitPlan>(std::move(*plan));
    auto loaded =
        LoadExperts({.config = config_.get(),
                     .shape = &model_.shape,
                     .hotness = &hotness_,
                     .plan = plan_.get(),
                     .stacks = &model_.stacks,
                     .weights = model_.experts->weights(),
                     .devices = std::move(devices),
                     .max_rows = kMaxRows,
                     .repack = GetParam(),
                     .workers = {.program = {},
                                 .model = {},
                                 .timeouts = timeouts_,
                                 .return_after = std::chrono::milliseconds(5)},
                     .on_worker_loss = policy,
                     .movable = movable_,
                     .log = base::Log([this](base::LogLevel level, std::string_view message) {
                       if (level == base::LogLevel::kWarning) warnings_.emplace_back(message);
                     })});
    EXPECT_TRUE(loaded) << loaded.error().message;
    return loaded ? std::move(*loaded) : LoadedExperts{};
  }
  // What one CPU owner of everything computes.
  std::vector<float> Single(const ExpertBatch& batch) {
    FailoverTest* const self = this;
    if (single_ == nullptr) {
      std::shared_ptr<const PackedExperts> packed;
      if (GetParam() == Repack::kAuto) {
        const std::vector<std::uint8_t> owned(kLayers * kExperts, 1);
        packed = *PackedExperts::Make(
            {.weights = self->model_.experts->weights().get(), .owned = owned});
      }
      single_ = *HostCompute::Make({.weights = model_.experts->weights(), .packed = packed});
    }
    return RunBatch(*single_, batch);
  }
  void ExpectSame(MoeExpertCompute& compute) {
    for (const std::size_t rows : {1, 9}) {
      const TestBatch batch(model_.test_shape, rows, kUsed);
      for (std::size_t l = 0; l < kLayers; ++l) {
        EXPECT_EQ(RunBatch(compute, batch.batch(LayerId(l))), Single(batch.batch(LayerId(l))));
      }
    }
  }

  // Whether `condition` comes true in time.
  static bool SettleUntil(FailoverCompute& failover, const std::function<bool()>& condition) {
    const base::Deadline deadline = base::Deadline::After(std::chrono::minutes(1));
    while (!condition()) {
      if (auto settled = failover.Settle(); !settled || deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  ipc::WorkerTimeouts timeouts_;
  bool movable_ = false;
  std::optional<std::size_t> first_cpu_units_;  // that the first CPU of this process may own
  WorkerTestModel model_{GGML_TYPE_Q4_K};
  Hotness hotness_ = Hotness::Uniform(model_.shape);
  std::string folder_;
  std::vector<std::unique_ptr<Listening>> workers_;
  std::unique_ptr<ExpertSplitTargetConfig> config_;
  std::unique_ptr<ExpertSplitPlan> plan_;
  std::vector<std::string> warnings_;
  std::unique_ptr<HostCompute> single_;
};

TEST_P(FailoverTest, UnitsOfLostWorkersMoveAndNoBitChanges) {
  LoadedExperts loaded = Load({4, 4}, "cpu");
  ASSERT_NE(loaded.failover, nullptr);
  FailoverCompute& failover = *loaded.failover;
  ExpectSame(failover);
  EXPECT_EQ(failover.components()->plan().units(TargetId(2)), 4U);

  workers_[0]->Kill();
  ExpectSame(failover);
  const auto second = failover.components();
  EXPECT_EQ(second->runtime()->generation(), 1U);
  EXPECT_EQ(second->plan().units(TargetId(0)), 0U);
  EXPECT_EQ(second->plan().units(TargetId(1)), 4U) << "it is full";
  EXPECT_EQ(second->plan().units(TargetId(2)), 8U);
  ASSERT_EQ(failover.lost().size(), 1U);
  EXPECT_EQ(failover.lost()[0].target, TargetId(0));
  EXPECT_THAT(warnings_, ::testing::Contains(HasSubstr("moved 4 units")));

  workers_[1]->Kill();
  ExpectSame(failover);
  EXPECT_EQ(failover.components()->plan().units(TargetId(2)), 12U);
  EXPECT_EQ(failover.components()->compute().path(), PlacementPath::kSingle);
  EXPECT_EQ(failover.lost().size(), 2U);
  std::uint64_t pairs = 0;
  for (std::size_t t = 0; t < 3; ++t) pairs += failover.TargetPairs(TargetId(t));
  EXPECT_EQ(pairs, 3 * kLayers * (1 + 9) * kUsed) << "each pair is counted once";
}

TEST_P(FailoverTest, AnotherWorkerWithRoomTakesTheUnits) {
  LoadedExperts loaded = Load({4, 10}, "cpu");
  ASSERT_NE(loaded.failover, nullptr);
  workers_[0]->Kill();
  ExpectSame(*loaded.failover);
  const ExpertSplitPlan& plan = loaded.failover->components()->plan();
  EXPECT_EQ(plan.units(TargetId(1)), 10U);
  EXPECT_EQ(plan.units(TargetId(2)), 2U);
}

TEST_P(FailoverTest, BothWorkersLostAtOnceCostOneBatchNothing) {
  LoadedExperts loaded = Load({4, 4}, "cpu");
  ASSERT_NE(loaded.failover, nullptr);
  workers_[0]->Kill();
  workers_[1]->Kill();
  ExpectSame(*loaded.failover);
  EXPECT_EQ(loaded.failover->lost().size(), 2U);
}

TEST_P(FailoverTest, WithPolicyFailOneBatchFailsAndTheNextIsComputed) {
  LoadedExperts loaded = Load({4}, "cpu", OnWorkerLoss::kFail);
  ASSERT_NE(loaded.failover, nullptr);
  ExpectSame(*loaded.failover);
  workers_[0]->Kill();
  const TestBatch batch(model_.test_shape, 8, kUsed);
  base::Result<void> run = loaded.failover->Begin(batch.batch());
  if (run) {
    loaded.failover->Prepare({});
    loaded.failover->Expand({});
    loaded.failover->Reduce({});
    run = loaded.failover->Finish();
  }
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().kind, ErrorKind::kWorkerLost);
  ExpectSame(*loaded.failover);
  EXPECT_EQ(loaded.failover->lost().size(), 1U);
}

TEST_P(FailoverTest, AWorkerThatIsThereAgainGetsItsUnitsBack) {
  LoadedExperts loaded = Load({4, 10}, "cpu");
  ASSERT_NE(loaded.failover, nullptr);
  FailoverCompute& failover = *loaded.failover;
  for (std::uint64_t losses = 1; losses < 3; ++losses) {
    workers_[0]->Kill();
    ExpectSame(failover);
    ASSERT_EQ(failover.missing().size(), 1U);
    EXPECT_EQ(failover.components()->plan().units(TargetId(1)), 10U) << "took some over";
    workers_[0].reset();
    workers_[0] = std::make_unique<Listening>(model_, folder_ + "/0");
    ASSERT_TRUE(SettleUntil(failover, [&] { return failover.missing().empty(); }));
    ExpectSame(failover);
    EXPECT_TRUE(std::ranges::equal(failover.components()->plan().owners(), plan_->owners()));
    EXPECT_EQ(failover.lost().size(), losses);
    EXPECT_EQ(failover.components()->runtime()->generation(), 2 * losses);
  }
}

TEST_P(FailoverTest, AWorkerThatEndsBetweenRequestsIsNoticed) {
  LoadedExperts loaded = Load({4}, "cpu");
  ASSERT_NE(loaded.failover, nullptr);
  ASSERT_TRUE(loaded.failover->Settle());
  EXPECT_TRUE(loaded.failover->missing().empty());
  workers_[0]->Kill();
  ASSERT_TRUE(SettleUntil(*loaded.failover, [&] { return !loaded.failover->missing().empty(); }));
  EXPECT_THAT(loaded.failover->missing()[0].reason, HasSubstr("closed the connection"));
  EXPECT_EQ(loaded.failover->components()->plan().units(TargetId(0)), 0U);
  ExpectSame(*loaded.failover);
}

// Files of this process, the anonymous one of the shared memory too, cannot grow as long as it
// lives.
class NoFileGrows {
 public:
  NoFileGrows() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~NoFileGrows() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

TEST_P(FailoverTest, WithoutSharedMemoryTheUnitsMoveWhileLoading) {
  LoadedExperts loaded;
  {
    const NoFileGrows no_memory;
    loaded = Load({4}, "cpu");
  }
  ASSERT_NE(loaded.failover, nullptr);
  ASSERT_EQ(loaded.failover->lost().size(), 1U);
  EXPECT_THAT(loaded.failover->lost()[0].reason, HasSubstr("shared memory"));
  EXPECT_EQ(loaded.failover->components()->plan().units(TargetId(0)), 0U);
  ExpectSame(*loaded.failover);
}

TEST_P(FailoverTest, AWorkerExchangesUnitsAndNoBitChanges) {
  movable_ = true;
  LoadedExperts loaded = Load({4}, "cpu");
  ASSERT_NE(loaded.mover, nullptr);
  for (std::size_t round = 0; round < 4; ++round) {
    const MovableUnits units = loaded.mover->units();
    const LayerId layer(round % kLayers);
    const auto owners = std::span(units.owners).subspan(layer.index() * kExperts, kExperts);
    const auto with_owner = [&](std::uint8_t owner) {
      return ExpertId(static_cast<std::size_t>(std::ranges::find(owners, owner) - owners.begin()));
    };
    const UnitExchange pair{layer, with_owner(0), with_owner(1)};
    base::Result<base::Bytes> moved;
    std::atomic<bool> done = false;
    std::jthread exchanging([&](const std::stop_token& stop) {
      moved = loaded.mover->Exchange(std::span(&pair, 1), std::make_shared<const Hotness>(hotness_),
                                     stop);
      done = true;
    });
    while (!done) {
      ExpectSame(*loaded.failover);
      loaded.mover->Step();
    }
    exchanging.join();
    ASSERT_TRUE(moved) << moved.error().message;
    EXPECT_EQ(*moved, model_.shape.unit_bytes(layer) * 2);
    ExpectSame(*loaded.failover);
    const ExpertSplitPlan& plan = loaded.failover->components()->plan();
    EXPECT_EQ(plan.owner(layer, pair.first), TargetId(1));
    EXPECT_EQ(plan.owner(layer, pair.second), TargetId(0));
    EXPECT_EQ(plan.units(TargetId(0)), 4U);
  }
  EXPECT_TRUE(loaded.failover->lost().empty());
}

TEST_P(FailoverTest, WorkersAreLostAndComeBackWhileUnitsMove) {
  movable_ = true;
  first_cpu_units_ = 4;
  LoadedExperts loaded = Load({4}, "cpu:0,cpu:1");
  ASSERT_NE(loaded.mover, nullptr);
  EXPECT_EQ(loaded.mover->units().targets,
            (std::vector{Movable::kWorker, Movable::kHere, Movable::kHere}));
  std::atomic<int> exchanged = 0;
  std::jthread exchanging([&](const std::stop_token& stop) {
    std::mt19937 random(1);
    while (!stop.stop_requested()) {
      const MovableUnits units = loaded.mover->units();
      const LayerId layer(random() % kLayers);
      const ExpertId first(random() % kExperts);
      const ExpertId second(random() % kExperts);
      const auto owner = [&](ExpertId expert) {
        return units.owners[layer.index() * kExperts + expert.index()];
      };
      if (!units.Exchangeable(owner(first), owner(second))) continue;
      const UnitExchange pair{layer, first, second};
      const auto moved = loaded.mover->Exchange(std::span(&pair, 1),
                                                std::make_shared<const Hotness>(hotness_), stop);
      if (moved) {
        ++exchanged;
      } else {
        EXPECT_TRUE(moved.error().kind == ErrorKind::kCancelled ||
                    moved.error().kind == ErrorKind::kUnavailable)
            << moved.error().message;
      }
    }
  });
  const auto work = [&](int exchanges) {
    const base::Deadline deadline = base::Deadline::After(std::chrono::minutes(1));
    for (const int before = exchanged; exchanged < before + exchanges && !deadline.passed();) {
      ExpectSame(*loaded.failover);
      loaded.mover->Step();
    }
    EXPECT_FALSE(deadline.passed());
  };
  for (int losses = 1; losses < 3; ++losses) {
    work(3);
    workers_[0]->Kill();
    work(3);
    EXPECT_EQ(loaded.failover->missing().size(), 1U);
    workers_[0].reset();
    workers_[0] = std::make_unique<Listening>(model_, folder_ + "/0");
    ASSERT_TRUE(SettleUntil(*loaded.failover, [&] { return loaded.failover->missing().empty(); }));
    EXPECT_EQ(loaded.failover->components()->plan().units(TargetId(0)), 4U);
  }
  work(3);
}

// EXPERT_SPLIT_SOAK_FAULTS rounds (7), in each of which one worker of two goes wrong in one of the
// ways above, while it loads or at one of its batches.
TEST_P(FailoverTest, WhateverGoesWrongNoBitChanges) {
  const char* const rounds_text = std::getenv("EXPERT_SPLIT_SOAK_FAULTS");
  const int rounds = rounds_text != nullptr ? std::atoi(rounds_text) : kNumFaults;
  std::mt19937 random(1);
  for (int round = 0; round < rounds; ++round) {
    const auto fault = static_cast<Fault>(1 + round % kNumFaults);
    const auto faulty = random() % 2;
    int at_batch = static_cast<int>(random() % 4) - 1;
    if (fault == Fault::kWrongCount) at_batch = std::max(at_batch, 0);
    SCOPED_TRACE(
        std::format("fault {} of worker {} at batch {}", round % kNumFaults + 1, faulty, at_batch));
    timeouts_.batch = timeouts_.load =
        fault == Fault::kHangs ? std::chrono::seconds(2) : std::chrono::seconds(60);
    workers_.clear();
    for (std::size_t i = 0; i < 2; ++i) {
      workers_.push_back(std::make_unique<Listening>(model_, folder_ + "/" + std::to_string(i),
                                                     i == faulty ? fault : Fault::kNone, at_batch));
    }
    LoadedExperts loaded = Load({5, 5}, "cpu");
    ASSERT_NE(loaded.failover, nullptr);
    for (int i = 0; i < 2; ++i) ExpectSame(*loaded.failover);
    ASSERT_EQ(loaded.failover->lost().size(), 1U);
    EXPECT_EQ(loaded.failover->lost()[0].target, TargetId(faulty));
    workers_[faulty]->stop.request_stop();
  }
}

INSTANTIATE_TEST_SUITE_P(Repack, FailoverTest, ::testing::Values(Repack::kOff, Repack::kAuto));

}  // namespace
}  // namespace moe
