#include "moe/compute/measure_speed.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "moe/compute/device_compute.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/packed_experts.h"
#include "moe/runtime/runtime.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// More than caches hold, so that weights come from memory.
constexpr base::Bytes kMeasuredBytes = base::Bytes::MiB(128);
constexpr auto kSampleTime = std::chrono::milliseconds(40);
constexpr std::size_t kSamples = 3;
constexpr std::size_t kMaxBatches = 1000;  // of a sample
const TargetId kMeasured(0);

// Rows whose slots select experts of the measured target in turn, or of elsewhere.
class Batch {
 public:
  Batch(const ModelShape& shape, std::size_t n_embd, std::size_t num_rows)
      : num_rows_(num_rows),
        num_used_(shape.experts_per_token),
        n_embd_(n_embd),
        rows_(num_rows * n_embd),
        ids_(num_rows * num_used_),
        weights_(num_rows * num_used_, 1.0F / static_cast<float>(num_used_)) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = static_cast<float>(i * 7919 % 2001) / 1000.0F - 1;
    }
  }

  // The first `num_here` slots of each row select the next of the `num_owned` measured experts, the
  // others experts behind those.
  void Route(std::size_t num_owned, std::size_t num_here) {
    for (std::size_t row = 0; row < num_rows_; ++row) {
      for (std::size_t slot = 0; slot < num_used_; ++slot) {
        const std::size_t id =
            slot < num_here ? (next_ + slot) % num_owned : num_owned + slot - num_here;
        ids_[row * num_used_ + slot] = static_cast<std::int32_t>(id);
      }
      next_ = (next_ + num_here) % num_owned;
    }
  }

  ExpertBatch get() const {
    return {.layer = LayerId(0),
            .num_rows = num_rows_,
            .num_used = num_used_,
            .n_embd = n_embd_,
            .rows = rows_.data(),
            .ids = ids_.data(),
            .weights = weights_.data()};
  }

 private:
  std::size_t num_rows_;
  std::size_t num_used_;
  std::size_t n_embd_;
  std::vector<float> rows_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  std::size_t next_ = 0;
};

// Computes batches of one owner with a team of threads, of which the caller is thread 0.
class Team {
 public:
  Team(MoeExpertCompute& owner, std::size_t num_threads)
      : owner_(owner), barrier_(static_cast<std::ptrdiff_t>(num_threads)), size_(num_threads) {
    for (std::size_t i = 1; i < num_threads; ++i) {
      threads_.emplace_back([this, i] {
        for (;;) {
          barrier_.arrive_and_wait();
          if (ended_) return;
          Phases(i);
        }
      });
    }
  }
  ~Team() {
    ended_ = true;
    barrier_.arrive_and_wait();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  base::Result<void> Compute(const ExpertBatch& batch) {
    if (auto begun = owner_.Begin(batch); !begun) return begun;
    barrier_.arrive_and_wait();
    Phases(0);
    return owner_.Finish();
  }

 private:
  void Phases(std::size_t index) {
    const TeamThread thread{.index = index, .count = size_};
    owner_.Prepare(thread);
    barrier_.arrive_and_wait();
    owner_.Expand(thread);
    barrier_.arrive_and_wait();
    owner_.Reduce(thread);
    barrier_.arrive_and_wait();
  }

  MoeExpertCompute& owner_;
  std::barrier<> barrier_;
  std::size_t size_;
  bool ended_ = false;  // written before a barrier that the readers wait at
  std::vector<std::jthread> threads_;
};

// A plan of the first layer alone: its first `num_owned` experts are measured.
base::Result<std::shared_ptr<const ExpertSplitRuntime>> FirstLayerRuntime(const ModelShape& shape,
                                                                          std::size_t num_owned) {
  ModelShape first = shape;
  first.layers.resize(1);
  first.identity.num_layers = 1;
  std::vector<std::uint8_t> owners(first.num_experts, 1);
  std::fill_n(owners.begin(), num_owned, std::uint8_t{0});
  auto plan = ExpertSplitPlan::FromOwners(first, Hotness::Uniform(first),
                                          {{"measured", {}}, {"elsewhere", {}}}, owners);
  if (!plan) return base::Forward(plan);
  return ExpertSplitRuntime::Make(*plan);
}

base::Result<std::unique_ptr<MoeExpertCompute>> MakeOwner(
    const SpeedRequest& request, std::shared_ptr<const ExpertWeights> weights,
    std::shared_ptr<const ExpertSplitRuntime> runtime) {
  if (!request.device.is_cpu()) {
    auto made = DeviceCompute::Make({.name = request.device.name,
                                     .device = request.device,
                                     .weights = std::move(weights),
                                     .runtime = std::move(runtime),
                                     .target = kMeasured,
                                     .num_used = request.shape->experts_per_token,
                                     .max_rows = request.prompt_rows});
    if (!made) return base::Forward(made);
    if (auto loaded = (*made)->LoadLayer(LayerId(0)); !loaded) return base::Forward(loaded);
    return std::move(*made);
  }
  std::shared_ptr<const PackedExperts> packed;
  if (request.repack == Repack::kAuto && PackedExperts::RunBytes(weights->layers[0])) {
    std::vector<std::uint8_t> owned(weights->num_experts, 0);
    std::fill_n(owned.begin(), runtime->num_local(LayerId(0), kMeasured), std::uint8_t{1});
    auto made = PackedExperts::Make(
        {.weights = weights.get(), .owned = owned, .num_threads = request.num_threads});
    if (!made) return base::Forward(made);
    packed = std::move(*made);
  }
  auto made = HostCompute::Make({.name = request.device.name,
                                 .weights = std::move(weights),
                                 .runtime = std::move(runtime),
                                 .target = kMeasured,
                                 .packed = std::move(packed)});
  if (!made) return base::Forward(made);
  return std::move(*made);
}

// Seconds of a batch: the fastest of some samples, because everything that disturbs makes slower.
// `route` chooses the experts of the next batch.
base::Result<double> Seconds(Team& team, Batch& batch, const std::function<void()>& route) {
  double best = std::numeric_limits<double>::infinity();
  // The first one reads files, builds graphs and makes room for results.
  for (std::size_t sample = 0; sample <= kSamples; ++sample) {
    const auto start = Clock::now();
    std::size_t count = 0;
    while (count < (sample == 0 ? 1 : kMaxBatches) &&
           (count == 0 || Clock::now() - start < kSampleTime)) {
      route();
      if (auto done = team.Compute(batch.get()); !done) return base::Forward(done);
      ++count;
    }
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    if (sample > 0) best = std::min(best, elapsed.count() / static_cast<double>(count));
  }
  return best;
}

}  // namespace

base::Result<TargetSpeed> MeasureSpeed(const SpeedRequest& request) {
  const ModelShape& shape = *request.shape;
  auto weights = std::make_shared<ExpertWeights>(
      ExpertWeights{.num_experts = shape.num_experts, .layers = {request.weights->layers.at(0)}});
  const std::size_t n_embd = weights->layers[0].n_embd();
  const auto unit = static_cast<double>(shape.unit_bytes(LayerId(0)).count());
  const std::size_t num_used = shape.experts_per_token;
  // All but one of a token's experts must be able to lie elsewhere.
  const std::size_t most = std::max(num_used, shape.num_experts - (num_used - 1));
  const std::size_t num_owned = std::clamp<std::size_t>(
      static_cast<std::size_t>(static_cast<double>(kMeasuredBytes.count()) / unit), num_used, most);
  auto runtime = FirstLayerRuntime(shape, num_owned);
  if (!runtime) return base::Forward(runtime);
  auto owner = MakeOwner(request, weights, *std::move(runtime));
  if (!owner) return base::Forward(owner);
  Team team(**owner, request.device.is_cpu() ? request.num_threads : 1);

  Batch row(shape, n_embd, 1);
  auto all = Seconds(team, row, [&] { row.Route(num_owned, num_used); });
  if (!all) return base::Forward(all);
  double fixed = 0;
  if (num_used > 1 && num_owned + num_used - 1 <= shape.num_experts) {
    auto one = Seconds(team, row, [&] { row.Route(num_owned, 1); });
    if (!one) return base::Forward(one);
    const double each = (*all - *one) / static_cast<double>(num_used - 1);
    // At least half of the time is taken to be work, whatever noise there is.
    fixed = std::clamp(*one - each, 0.0, *all / 2);
  }
  // As many rows an expert as when all of the layer's experts were here.
  const std::size_t rows =
      std::max<std::size_t>(1, request.prompt_rows * num_owned / shape.num_experts);
  Batch prompt(shape, n_embd, rows);
  auto many = Seconds(team, prompt, [&] { prompt.Route(num_owned, num_used); });
  if (!many) return base::Forward(many);

  const double token_bytes = unit * static_cast<double>(num_used);
  return TargetSpeed{.decode_bytes_per_second = token_bytes / (*all - fixed),
                     .prompt_bytes_per_second = token_bytes * static_cast<double>(rows) /
                                                std::max(*many - fixed, *many / 2),
                     .layer_seconds = fixed};
}

}  // namespace moe
