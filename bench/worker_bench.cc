// The round trip of a batch through a worker process: one row of 2048 floats, of which the worker
// owns no expert, so that nothing but the way there and back is measured. Prints microseconds; the
// answer of every batch is checked.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "moe/ipc/worker_loop.h"
#include "moe/ipc/worker_session.h"

namespace {

using namespace moe::ipc;

constexpr std::uint32_t kWidth = 2048;
constexpr int kBatches = 20000;
constexpr int kWarmUp = 1000;

const moe::ModelIdentity kModel = {.architecture = "bench", .num_layers = 1, .num_experts = 1};

// Owns nothing: reads the row and answers at once.
class NoExperts final : public WorkerService {
 public:
  Welcome Describe() override { return {.model = kModel, .target = "cpu"}; }
  base::Result<base::Bytes> Load(const LoadOrder&, const std::function<void(LoadProgress)>&,
                                 std::stop_token) override {
    return base::Bytes();
  }
  base::Result<std::uint64_t> Compute(const BatchOrder& batch, const SharedRows& rows) override {
    std::copy_n(rows.rows(), kWidth, rows.results());
    return batch.num_rows;
  }
  void Unload() override {}
};

template <class T>
T OrDie(base::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "worker_bench: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace

int main() {
  auto [owner, worker] = OrDie(Channel::Pair());
  const pid_t child = ::fork();
  if (child == 0) {
    {
      const Channel closed = std::move(owner);
    }  // so that the end of the other one is seen
    NoExperts service;
    static_cast<void>(ServeConnection(std::move(worker), service, {}));
    ::_exit(0);
  }
  std::vector<double> times;
  {
    WorkerSession session = OrDie(WorkerSession::Open(std::move(owner), "worker", {}));
    OrDie(session.OrderLoad(
        {.model = kModel, .rows = {.max_rows = 1, .num_used = 1, .n_embd = kWidth}, .owned = {1}}));
    while (OrDie(session.WaitLoad())) {
    }
    std::vector<float> row(kWidth);
    for (int i = 0; i < kBatches + kWarmUp; ++i) {
      row[static_cast<std::size_t>(i) % kWidth] = static_cast<float>(i);
      const auto start = std::chrono::steady_clock::now();
      std::ranges::copy(row, session.shared().rows());
      OrDie(session.StartBatch(0, 1));
      OrDie(session.WaitBatch(1));
      const auto end = std::chrono::steady_clock::now();
      if (!std::equal(row.begin(), row.end(), session.shared().results())) {
        std::fprintf(stderr, "worker_bench: batch %d came back wrong\n", i);
        return 1;
      }
      if (i >= kWarmUp) {
        times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
      }
    }
  }
  ::waitpid(child, nullptr, 0);
  std::ranges::sort(times);
  const auto at = [&](double part) {
    return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
  };
  std::printf("round trip of one row of %u floats: median %.1f us, p10 %.1f us, p99 %.1f us\n",
              kWidth, at(0.5), at(0.1), at(0.99));
  return 0;
}
