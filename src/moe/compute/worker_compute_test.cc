// Owners behind a connection, against the same experts in this process. The workers are threads
// here; tests/worker_test.cc has processes.
#include "moe/compute/worker_compute.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "moe/compute/host_compute.h"
#include "moe/compute/hosted_experts.h"
#include "moe/compute/worker_test_model.h"
#include "moe/ipc/worker_loop.h"

namespace moe {
namespace {

using base::ErrorKind;
using ::testing::HasSubstr;

ipc::LoadOrder Order(const WorkerTestModel& model, bool packed = false) {
  return {.model = model.shape.identity,
          .packed = packed,
          .num_threads = 2,
          .rows = {.max_rows = kMaxRows,
                   .num_used = kUsed,
                   .n_embd = static_cast<std::uint32_t>(model.test_shape.n_embd)}};
}

// A worker that is a thread of this process.
class ThreadWorker {
 public:
  explicit ThreadWorker(const WorkerTestModel& model) : experts_(Hosting(model)) {
    auto ends = ipc::Channel::Pair();
    EXPECT_TRUE(ends);
    end_ = base::UniqueFd(::dup(ends->second.descriptor()));
    thread_ = std::jthread([this, channel = std::move(ends->second)]() mutable {
      static_cast<void>(ipc::ServeConnection(std::move(channel), experts_, {}));
    });
    auto session = ipc::WorkerSession::Open(std::move(ends->first), "w", {});
    EXPECT_TRUE(session) << session.error().message;
    compute_ = std::make_unique<WorkerCompute>("w", std::move(*session), nullptr);
  }
  ~ThreadWorker() { Kill(); }

  WorkerCompute& compute() { return *compute_; }
  // As if its process had ended.
  void Kill() {
    ::shutdown(end_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  base::Result<void> Load(const ExpertSplitRuntime& runtime, const ipc::LoadOrder& order) {
    if (auto sent = compute_->OrderLoad(runtime, TargetId(0), order); !sent) return sent;
    for (;;) {
      auto progress = compute_->WaitLoad();
      if (!progress) return base::Forward(progress);
      if (!*progress) return {};
    }
  }

 private:
  HostedExperts experts_;
  base::UniqueFd end_;
  std::unique_ptr<WorkerCompute> compute_;
  std::jthread thread_;
};

std::unique_ptr<HostCompute> Host(const WorkerTestModel& model,
                                  std::shared_ptr<const ExpertSplitRuntime> runtime,
                                  std::size_t target) {
  auto host = HostCompute::Make({.weights = model.experts->weights(),
                                 .runtime = std::move(runtime),
                                 .target = TargetId(target)});
  EXPECT_TRUE(host) << host.error().message;
  return std::move(*host);
}

class WorkerComputeTest : public ::testing::TestWithParam<int> {};

TEST_P(WorkerComputeTest, GivesTheBitsOfTheSameExpertsInThisProcess) {
  const WorkerTestModel model(GetParam());
  const auto runtime = SplitAtRandom(model.test_shape, 2);
  ThreadWorker worker(model);
  ASSERT_TRUE(worker.Load(*runtime, Order(model)));
  const auto rest = Host(model, runtime, 1);
  const auto all = Host(model, nullptr, 0);
  MoeExpertCompute* const split[] = {&worker.compute(), rest.get()};
  for (const std::size_t rows : {1, 33, 5}) {
    const TestBatch batch(model.test_shape, rows, kUsed);
    for (std::size_t l = 0; l < kLayers; ++l) {
      EXPECT_EQ(RunBatch(split, batch.batch(LayerId(l)), 2),
                RunBatch(*all, batch.batch(LayerId(l)), 2));
    }
  }
  EXPECT_GT(worker.compute().num_pairs(0), 0U);
  EXPECT_EQ(worker.compute().num_pairs(0) + rest->num_pairs(0), all->num_pairs(0));
}

TEST_P(WorkerComputeTest, PackedItGivesTheBitsOfPackedExperts) {
  const WorkerTestModel model(GetParam());
  ThreadWorker worker(model);
  const auto runtime = SplitAs(model.test_shape, std::vector<std::uint8_t>(kLayers * kExperts, 0));
  ASSERT_TRUE(worker.Load(*runtime, Order(model, /*packed=*/true)));
  const std::vector<std::uint8_t> owned(kLayers * kExperts, 1);
  auto packed = PackedExperts::Make({.weights = model.experts->weights().get(), .owned = owned});
  ASSERT_TRUE(packed);
  auto host = HostCompute::Make({.weights = model.experts->weights(), .packed = *packed});
  ASSERT_TRUE(host);
  const TestBatch batch(model.test_shape, 7, kUsed);
  EXPECT_EQ(RunBatch(worker.compute(), batch.batch()), RunBatch(**host, batch.batch()));
}

INSTANTIATE_TEST_SUITE_P(Types, WorkerComputeTest,
                         ::testing::Values(GGML_TYPE_F32, GGML_TYPE_Q4_K));

TEST(WorkerCompute, OwnsOtherUnitsAfterANewOrder) {
  const WorkerTestModel model(GGML_TYPE_F32);
  ThreadWorker worker(model);
  const auto all = Host(model, nullptr, 0);
  const TestBatch batch(model.test_shape, 3, kUsed);
  std::vector<std::uint8_t> owners(kLayers * kExperts, 0);
  for (std::size_t first = 1; first < 3; ++first) {
    std::ranges::fill(std::span(owners).first(first), std::uint8_t{1});
    const auto runtime = SplitAs(model.test_shape, owners);
    ASSERT_TRUE(worker.Load(*runtime, Order(model)));
    const auto rest = Host(model, runtime, 1);
    MoeExpertCompute* const split[] = {&worker.compute(), rest.get()};
    EXPECT_EQ(RunBatch(split, batch.batch()), RunBatch(*all, batch.batch()));
  }
}

TEST(WorkerCompute, ABatchWithoutItsPairsIsNotSent) {
  const WorkerTestModel model(GGML_TYPE_F32);
  ThreadWorker worker(model);
  std::vector<std::uint8_t> owners(kLayers * kExperts, 1);
  owners.back() = 0;  // one expert of the second layer
  ASSERT_TRUE(worker.Load(*SplitAs(model.test_shape, owners), Order(model)));
  worker.Kill();
  const TestBatch batch(model.test_shape, 3, kUsed);
  EXPECT_TRUE(worker.compute().Begin(batch.batch(LayerId(0))));
  EXPECT_TRUE(worker.compute().Finish());
  EXPECT_EQ(worker.compute().part(0).pairs, nullptr);
  EXPECT_FALSE(worker.compute().lost());
}

TEST(WorkerCompute, OnceLostItStaysLost) {
  const WorkerTestModel model(GGML_TYPE_F32);
  ThreadWorker worker(model);
  const auto runtime = SplitAs(model.test_shape, std::vector<std::uint8_t>(kLayers * kExperts, 0));
  ASSERT_TRUE(worker.Load(*runtime, Order(model)));
  worker.Kill();
  const TestBatch batch(model.test_shape, 3, kUsed);
  base::Result<void> run = worker.compute().Begin(batch.batch());
  if (run) run = worker.compute().Finish();
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().kind, ErrorKind::kWorkerLost);
  EXPECT_THAT(run.error().message, HasSubstr("w: the other side closed the connection"));
  run = worker.compute().Begin(batch.batch());
  ASSERT_FALSE(run);
  EXPECT_THAT(run.error().message, HasSubstr("closed the connection"));
  ASSERT_TRUE(worker.compute().lost());
}

TEST(HostedExperts, ABatchOfAnotherModelIsRefused) {
  const WorkerTestModel model(GGML_TYPE_F32);
  HostedExperts hosted(Hosting(model));
  ipc::LoadOrder order = Order(model);
  order.owned.assign(kLayers * kExperts, 1);
  auto shared = ipc::SharedRows::Create(order.rows);
  ASSERT_TRUE(shared);
  ASSERT_TRUE(hosted.Load(order, [](ipc::LoadProgress) {}, {}));
  const auto error = [&](const ipc::BatchOrder& batch) {
    auto pairs = hosted.Compute(batch, *shared);
    EXPECT_FALSE(pairs);
    return pairs ? std::string() : pairs.error().message;
  };
  EXPECT_THAT(error({.number = 1, .layer = kLayers, .num_rows = 1}),
              HasSubstr("layer 2 of a model"));
  shared->ids()[0] = kExperts;
  EXPECT_THAT(error({.number = 1, .layer = 0, .num_rows = 1}), HasSubstr("expert 6 of 6"));
  shared->ids()[0] = -1;
  EXPECT_THAT(error({.number = 1, .layer = 0, .num_rows = 1}), HasSubstr("expert -1 of 6"));
  order.rows.n_embd = 7;
  EXPECT_FALSE(hosted.Load(order, [](ipc::LoadProgress) {}, {}));
  order = Order(model);
  order.model.name = "another";
  auto other = hosted.Load(order, [](ipc::LoadProgress) {}, {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().kind, ErrorKind::kCorruptModel);
  EXPECT_THAT(other.error().message,
              ::testing::AllOf(HasSubstr("\"random\""), HasSubstr("\"another\"")));
}

}  // namespace
}  // namespace moe
