#include "moe/compute/hosted_experts.h"

#include <algorithm>
#include <cstring>
#include <format>
#include <thread>
#include <utility>

#include "base/quote.h"
#include "gg/numa.h"
#include "kernels/packed_memory.h"
#include "moe/compute/device_compute.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/packed_experts.h"
#include "moe/compute/release_pages.h"
#include "moe/plan/plan.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

// The two targets of a worker's own view of the plan.
constexpr TargetId kHere(0);
constexpr std::uint8_t kOwnedHere = 0;
constexpr std::uint8_t kOwnedElsewhere = 1;

}  // namespace

ipc::Welcome HostedExperts::Describe() {
  return {.model = options_.shape->identity,
          .target = options_.target,
          .form = options_.device.is_cpu() ? ipc::ResultForm::kPairs : ipc::ResultForm::kSums,
          .memory_free = gg::FreeMemory(options_.device),
          .memory_total = options_.device.memory_total,
          .device_id = options_.device.device_id,
          .shares_host_ram = options_.device.host_memory};
}

base::Result<void> HostedExperts::CheckOrder(const ipc::LoadOrder& order) const {
  const ModelIdentity& model = options_.shape->identity;
  if (order.model != model) {
    return Fail(ErrorKind::kCorruptModel,
                "the worker has the model {} (directory {:016x}), not {} (directory {:016x}); "
                "start it with the same file",
                base::Quote(model.name), model.directory_hash, base::Quote(order.model.name),
                order.model.directory_hash);
  }
  const std::size_t n_embd = options_.weights->layers.front().n_embd();
  if (order.rows.n_embd != n_embd || order.rows.num_used != options_.shape->experts_per_token) {
    return Fail(ErrorKind::kInvalidInput,
                "a load order is for rows of {} with {} experts each; the model has {} and {}",
                order.rows.n_embd, order.rows.num_used, n_embd, options_.shape->experts_per_token);
  }
  return {};
}

base::Bytes HostedExperts::OwnedBytes(const ipc::LoadOrder& order) const {
  base::Bytes sum;
  for (std::size_t i = 0; i < order.owned.size(); ++i) {
    if (order.owned[i] != 0) {
      sum += options_.shape->unit_bytes(LayerId(i / options_.shape->num_experts));
    }
  }
  return sum;
}

bool HostedExperts::Continues(const ipc::LoadOrder& order) const {
  return compute_ != nullptr && order.packed == order_.packed &&
         order.rows.max_rows == order_.rows.max_rows && order.owned.size() == order_.owned.size();
}

base::Result<std::shared_ptr<const ExpertSplitRuntime>> HostedExperts::RuntimeOf(
    std::span<const std::uint8_t> owned) const {
  std::vector<std::uint8_t> owners;
  for (const std::uint8_t one : owned) owners.push_back(one != 0 ? kOwnedHere : kOwnedElsewhere);
  auto plan = ExpertSplitPlan::FromOwners(
      *options_.shape, Hotness::Uniform(*options_.shape),
      {{.name = options_.target, .capacity = {}}, {.name = "elsewhere", .capacity = {}}},
      std::move(owners));
  if (!plan) return base::Forward(plan);
  return ExpertSplitRuntime::Make(*plan);
}

base::Result<base::Bytes> HostedExperts::Load(const ipc::LoadOrder& order, const Progress& progress,
                                              std::stop_token stop) {
  auto fits = CheckOrder(order);
  if (!fits || !Continues(order)) Unload();
  if (!fits) return base::Forward(fits);
  auto runtime = RuntimeOf(order.owned);
  if (!runtime) {
    Unload();
    return base::Forward(runtime);
  }
  runtime_ = std::move(*runtime);
  auto loaded = options_.device.is_cpu() ? LoadHost(order, progress, stop)
                                         : LoadDevice(order, progress, stop);
  if (!loaded) {
    Unload();
    return base::Forward(loaded);
  }
  order_ = order;
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  team_.emplace(options_.device.is_cpu() ? std::min<std::size_t>(order.num_threads, most) : 1);
  return OwnedBytes(order);
}

// Everything of the order; what is packed already stays where it is.
base::Result<std::shared_ptr<const PackedExperts>> HostedExperts::Pack(
    const ipc::LoadOrder& order, const Progress& progress, const std::stop_token& stop) const {
  const auto allocate = [node = options_.numa_node](base::Bytes size) {
    auto memory = kernels::PackedMemory::Allocate(size);
    if (memory && node) gg::PreferNode({memory->data(), size.count()}, *node);
    return memory;
  };
  std::vector<std::uint8_t> fresh = order.owned;
  if (packed_ != nullptr) {
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (order_.owned[i] != 0) fresh[i] = 0;
    }
  }
  auto made = PackedExperts::Make(
      {.weights = options_.weights.get(),
       .owned = fresh,
       .num_threads = order.num_threads,
       .release =
           [this](LayerId layer, std::size_t first, std::size_t count) {
             ReleaseExpertPages(options_.file, (*options_.stacks)[layer.index()], first, count);
           },
       .progress = [&](base::Bytes done,
                       base::Bytes total) { progress({.done = done, .total = total}); },
       .stop = stop,
       .allocate = allocate});
  if (!made || packed_ == nullptr) return made;
  auto kept = PackedExperts::Only(packed_, order.owned);
  if (kept == nullptr) return made;
  if ((*made)->bytes() == base::Bytes()) return kept;
  return PackedExperts::Join(std::move(kept), std::move(*made));
}

base::Result<void> HostedExperts::LoadHost(const ipc::LoadOrder& order, const Progress& progress,
                                           const std::stop_token& stop) {
  std::shared_ptr<const PackedExperts> packed;
  if (order.packed) {
    auto made = Pack(order, progress, stop);
    if (!made) return base::Forward(made);
    packed = std::move(*made);
  }
  if (host_ != nullptr) {
    if (auto set = host_->SetUnits(runtime_, packed); !set) return set;
    if (packed_ != nullptr) packed_->GiveBackAllBut(packed.get());
    packed_ = std::move(packed);
    return {};
  }
  auto made = HostCompute::Make({.name = options_.target,
                                 .weights = options_.weights,
                                 .runtime = runtime_,
                                 .target = kHere,
                                 .packed = packed});
  if (!made) return base::Forward(made);
  packed_ = std::move(packed);
  host_ = made->get();
  compute_ = std::move(*made);
  return {};
}

base::Result<void> HostedExperts::ReplaceOnDevice(const ipc::LoadOrder& order) {
  std::vector<std::uint8_t> common = order.owned;
  for (std::size_t i = 0; i < common.size(); ++i) common[i] = common[i] & order_.owned[i];
  auto runtime = RuntimeOf(common);
  if (!runtime) return base::Forward(runtime);
  device_->SetRuntime(std::move(*runtime));
  const std::size_t num_experts = options_.shape->num_experts;
  for (std::size_t i = 0; i < common.size(); ++i) {
    if (order.owned[i] == 0 || common[i] != 0) continue;
    const LayerId layer(i / num_experts);
    for (bool complete = false; !complete;) {
      auto filled = device_->FillVacancy(layer, ExpertId(i % num_experts));
      // Without a place the layer is loaded anew.
      if (!filled && filled.error().kind != base::ErrorKind::kInternal) return Forward(filled);
      complete = !filled || *filled;
    }
  }
  device_->SetRuntime(runtime_);
  device_->UnloadSurplus();
  return {};
}

base::Result<void> HostedExperts::LoadDevice(const ipc::LoadOrder& order, const Progress& progress,
                                             const std::stop_token& stop) {
  if (device_ == nullptr) {
    auto made = DeviceCompute::Make({.name = options_.target,
                                     .device = options_.device,
                                     .weights = options_.weights,
                                     .runtime = runtime_,
                                     .target = kHere,
                                     .num_used = order.rows.num_used,
                                     .max_rows = order.rows.max_rows,
                                     .upload = options_.upload});
    if (!made) return base::Forward(made);
    device_ = made->get();
    compute_ = std::move(*made);
  } else if (auto replaced = ReplaceOnDevice(order); !replaced) {
    return replaced;
  }
  ipc::LoadProgress now{.total = OwnedBytes(order)};
  const auto uploaded = [&](base::Bytes piece) {
    now.done += piece;
    progress(now);
  };
  for (std::size_t l = 0; l < options_.shape->layers.size(); ++l) {
    if (runtime_->num_local(LayerId(l), kHere) == 0) continue;
    if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "loading was interrupted");
    if (auto loaded = device_->LoadLayer(LayerId(l), uploaded); !loaded) return loaded;
    ReleasePages(LayerId(l));
  }
  return {};
}

void HostedExperts::ReleasePages(LayerId layer) const {
  std::vector<std::size_t> experts;
  for (const ExpertId expert : runtime_->experts(layer, kHere)) experts.push_back(expert.index());
  ReleaseExpertPages(options_.file, (*options_.stacks)[layer.index()], experts);
}

void HostedExperts::Unload() {
  host_ = nullptr;
  device_ = nullptr;
  compute_.reset();
  packed_.reset();
  runtime_.reset();
  team_.reset();
}

base::Result<ExpertBatch> HostedExperts::TakeBatch(const ipc::BatchOrder& batch,
                                                   const ipc::SharedRows& rows) {
  if (batch.layer >= options_.shape->layers.size()) {
    return Fail(ErrorKind::kInvalidInput, "a batch is of layer {} of a model of {}", batch.layer,
                options_.shape->layers.size());
  }
  const std::size_t num_pairs = std::size_t{batch.num_rows} * rows.shape().num_used;
  ids_.assign(rows.ids(), rows.ids() + num_pairs);
  weights_.assign(rows.weights(), rows.weights() + num_pairs);
  const auto wrong = std::ranges::find_if(ids_, [&](std::int32_t id) {
    return id < 0 || static_cast<std::uint32_t>(id) >= options_.shape->num_experts;
  });
  if (wrong != ids_.end()) {
    return Fail(ErrorKind::kInvalidInput, "a batch names expert {} of {}", *wrong,
                options_.shape->num_experts);
  }
  return ExpertBatch{.layer = LayerId(batch.layer),
                     .num_rows = batch.num_rows,
                     .num_used = rows.shape().num_used,
                     .n_embd = rows.shape().n_embd,
                     .rows = rows.rows(),
                     .ids = ids_.data(),
                     .weights = weights_.data()};
}

base::Result<std::uint64_t> HostedExperts::Compute(const ipc::BatchOrder& order,
                                                   const ipc::SharedRows& rows) {
  auto batch = TakeBatch(order, rows);
  if (!batch) return base::Forward(batch);
  std::uint64_t num_pairs = 0;
  for (const std::int32_t id : ids_) {
    const ExpertId expert(static_cast<std::size_t>(id));
    num_pairs += runtime_->place(batch->layer, expert).owner == kHere ? 1 : 0;
  }
  if (num_pairs == 0) return num_pairs;
  if (auto run = team_->Run(*compute_, *batch); !run) return base::Forward(run);

  const ExpertPart part = compute_->part(0);
  if (part.form == PartForm::kSums) {
    std::copy_n(part.sums, batch->num_rows * batch->n_embd, rows.results());
    return num_pairs;
  }
  float* result = rows.results();
  for (std::size_t pair = 0; pair < ids_.size(); ++pair) {
    if (part.pairs[pair] == nullptr) continue;
    std::copy_n(part.pairs[pair], batch->n_embd, result);
    result += batch->n_embd;
  }
  return num_pairs;
}

}  // namespace moe
