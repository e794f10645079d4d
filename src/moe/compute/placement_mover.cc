#include "moe/compute/placement_mover.h"

#include <unistd.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "moe/compute/expert_loader_state.h"
#include "moe/compute/shared_compute.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

// How often an exchange begins again when a worker was lost or came back meanwhile.
constexpr int kMostAttempts = 3;

}  // namespace

ExpertLoader::Placed ExpertLoader::Current() const {
  const std::lock_guard lock(mutex_);
  const auto targets_of = [](const auto& map) {
    return std::ranges::to<std::set<TargetId>>(std::views::keys(map));
  };
  std::set<TargetId> workers = targets_of(workers_);
  std::erase_if(workers, [this](TargetId target) {
    return given_up_.contains(target) || (*request_.config)[target].place == TargetPlace::kRpc;
  });
  return {.revision = revision_,
          .generation = generation_,
          .owners = owners_,
          .unlimited = unlimited_,
          .hosts = targets_of(hosts_),
          .devices = targets_of(devices_),
          .workers = std::move(workers),
          .packs = packs_.value_or(false),
          .packed = packed_,
          .shared = shared_};
}

// What the host has packed when it owns its units of `owners`.
base::Result<std::shared_ptr<const PackedExperts>> ExpertLoader::PackGains(
    const Placed& placed, std::span<const std::uint8_t> owners, TargetId host,
    const std::stop_token& stop) const {
  std::shared_ptr<const PackedExperts> present;
  if (const auto found = placed.packed.find(host); found != placed.packed.end()) {
    present = found->second;
  }
  auto gained = Pack(host, owners, present.get(), /*num_threads=*/1, stop);
  if (!gained) return gained;
  if (present != nullptr) present = PackedExperts::Only(present, OwnedFlags(owners, host));
  if ((*gained)->bytes() == base::Bytes()) return present;
  if (present == nullptr) return gained;
  return PackedExperts::Join(std::move(present), std::move(*gained));
}

// Has the pages of an expert's weights in memory.
void ExpertLoader::ReadPages(LayerId layer, ExpertId expert) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const LayerWeights& weights = request_.weights->layers[layer.index()];
  const auto read = [&](const ExpertMatrix& matrix) {
    const volatile std::byte* bytes = matrix.expert(expert);
    for (std::size_t at = 0; at < matrix.expert_bytes; at += page) static_cast<void>(bytes[at]);
  };
  read(weights.gate);
  if (weights.up) read(*weights.up);
  read(weights.down);
}

base::Result<ExpertLoader::Move> ExpertLoader::Prepare(const Placed& placed,
                                                       std::vector<std::uint8_t> owners,
                                                       std::shared_ptr<const Hotness> hotness,
                                                       const std::stop_token& stop) {
  Move move;
  move.revision = placed.revision;
  move.owners = owners;
  move.hotness = std::move(hotness);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == placed.owners[i]) continue;
    if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "moving experts was interrupted");
    const LayerId layer(i / num_experts());
    const ExpertId expert(i % num_experts());
    move.bytes += request_.shape->unit_bytes(layer);
    const TargetId to(owners[i]);
    if (placed.devices.contains(to)) move.fills.push_back({to, layer, expert});
    for (const TargetId target : {to, TargetId(placed.owners[i])}) {
      if (placed.workers.contains(target)) move.worker = target;
    }
    if (!placed.packs || !placed.hosts.contains(to)) ReadPages(layer, expert);
  }
  if (placed.packs) {
    for (const TargetId host : placed.hosts) {
      auto packed = PackGains(placed, owners, host, stop);
      if (!packed) return base::Forward(packed);
      move.packed[host] = std::move(*packed);
    }
  }
  auto plan = PlanOf(std::move(owners), placed.unlimited, *move.hotness);
  if (!plan) return base::Forward(plan);
  const auto factory = [&](TargetId target,
                           const auto&) -> base::Result<std::unique_ptr<MoeExpertCompute>> {
    if (placed.shared[target.index()] == nullptr) return nullptr;
    return std::make_unique<SharedCompute>(placed.shared[target.index()]);
  };
  auto components = ExpertSplitStateComponents::Make(
      *request_.config, std::move(*plan), *request_.stacks, factory, placed.generation + 1);
  if (!components) return base::Forward(components);
  move.components = std::make_shared<const ExpertSplitStateComponents>(std::move(*components));
  return move;
}

base::Result<void> ExpertLoader::FillOne(Move& move) {
  const Fill& fill = move.fills[move.num_filled];
  auto complete = devices_.at(fill.target)->FillVacancy(fill.layer, fill.expert);
  if (!complete) return base::Forward(complete);
  if (*complete) ++move.num_filled;
  return {};
}

bool ExpertLoader::Commit(const Move& move) {
  const std::lock_guard lock(mutex_);
  if (move.revision != revision_) return false;
  const std::shared_ptr<const ExpertSplitRuntime>& runtime = move.components->runtime();
  if (move.worker) {
    WorkerCompute& worker = *workers_[*move.worker];
    // One that is lost here is noticed by the next batch.
    if (!worker.OrderLoad(*runtime, *move.worker, OrderFor(*move.worker)) ||
        !WaitForUnits(worker, {}, {})) {
      return false;
    }
  }
  for (const auto& [target, host] : hosts_) {
    const auto packed = move.packed.find(target);
    if (packed == move.packed.end()) {
      host->SetRuntime(runtime);
      continue;
    }
    // What computed with these weights before computes with them again.
    ES_CHECK(host->SetUnits(runtime, packed->second));
    packed_[target] = packed->second;
  }
  for (const auto& [target, device] : devices_) device->SetRuntime(runtime);
  owners_ = move.owners;
  hotness_ = move.hotness;
  generation_ = runtime->generation();
  ++revision_;
  return true;
}

void ExpertLoader::Tidy(const Placed& before, const Move& move) const {
  for (const auto& [host, packed] : move.packed) {
    const auto found = before.packed.find(host);
    if (found != before.packed.end() && found->second != nullptr) {
      found->second->GiveBackAllBut(packed.get());
    }
  }
  for (const Fill& fill : move.fills) ReleaseExperts(fill.layer, fill.expert.index(), 1);
}

// A move that waits for Step, and what became of it.
struct PlacementMover::Pending {
  ExpertLoader::Move move;
  std::optional<base::Result<bool>> outcome = {};
};

PlacementMover::PlacementMover(std::shared_ptr<ExpertLoader> loader,
                               std::shared_ptr<FailoverCompute> compute)
    : loader_(std::move(loader)), compute_(std::move(compute)) {}

PlacementMover::~PlacementMover() = default;

MovableUnits PlacementMover::units() const {
  ExpertLoader::Placed placed = loader_->Current();
  MovableUnits units{.owners = std::move(placed.owners),
                     .targets = std::vector<Movable>(loader_->config().size(), Movable::kNo),
                     .fixed_layers = loader_->kept_on_primary()};
  if (placed.hosts.empty()) return units;  // nowhere to stay on the way
  for (const TargetId target : placed.hosts) units.targets[target.index()] = Movable::kHere;
  for (const TargetId target : placed.devices) units.targets[target.index()] = Movable::kHere;
  for (const TargetId target : placed.workers) units.targets[target.index()] = Movable::kWorker;
  return units;
}

std::vector<std::vector<PlacementMover::Goal>> PlacementMover::GoalsOf(
    std::span<const UnitExchange> exchanges) const {
  const MovableUnits units = this->units();
  const std::size_t num_experts = loader_->shape().num_experts;
  std::vector<std::vector<Goal>> groups(1);
  for (const auto& [layer, first, second] : exchanges) {
    const std::uint8_t* const owners = units.owners.data() + layer.index() * num_experts;
    const std::size_t of_first = owners[first.index()];
    const std::size_t of_second = owners[second.index()];
    // A worker may have got its unit back since the pair was chosen.
    if (!units.Exchangeable(of_first, of_second)) continue;
    const bool with_worker =
        units.targets[of_first] == Movable::kWorker || units.targets[of_second] == Movable::kWorker;
    std::vector<Goal>& goals = with_worker ? groups.emplace_back() : groups.front();
    goals.push_back({layer, first, TargetId(of_second)});
    goals.push_back({layer, second, TargetId(of_first)});
  }
  return groups;
}

base::Result<bool> PlacementMover::Follow(std::span<const Goal> goals, bool to_devices,
                                          const std::shared_ptr<const Hotness>& hotness,
                                          const std::stop_token& stop, base::Bytes& moved) {
  const auto in_force = compute_->components();  // ends here, not on the thread that computes
  const ExpertLoader::Placed placed = loader_->Current();
  std::vector<std::uint8_t> owners = placed.owners;
  for (const Goal& goal : goals) {
    std::uint8_t& owner =
        owners[goal.layer.index() * loader_->shape().num_experts + goal.expert.index()];
    const TargetId from(owner);
    if (!placed.hosts.contains(goal.to) && !placed.devices.contains(goal.to) &&
        !placed.workers.contains(goal.to)) {
      return Fail(ErrorKind::kUnavailable, "a worker was lost while experts moved");
    }
    if (placed.hosts.contains(goal.to) || placed.workers.contains(goal.to) || to_devices) {
      owner = static_cast<std::uint8_t>(goal.to.index());
    } else if (!placed.hosts.contains(from) && !placed.hosts.empty()) {
      owner = static_cast<std::uint8_t>(placed.hosts.begin()->index());
    }
  }
  if (owners == placed.owners) return true;
  auto move = loader_->Prepare(placed, std::move(owners), hotness, stop);
  if (!move) return base::Forward(move);
  Pending pending{.move = std::move(*move)};
  {
    std::unique_lock lock(mutex_);
    pending_ = &pending;
    settled_.wait(lock, stop, [&] { return pending.outcome.has_value(); });
    pending_ = nullptr;
  }
  if (!pending.outcome) return Fail(ErrorKind::kCancelled, "moving experts was interrupted");
  if (!*pending.outcome || !**pending.outcome) return *pending.outcome;
  loader_->Tidy(placed, pending.move);
  moved += pending.move.bytes;
  return true;
}

base::Result<void> PlacementMover::FollowAll(std::span<const Goal> goals,
                                             const std::shared_ptr<const Hotness>& hotness,
                                             const std::stop_token& stop, base::Bytes& moved) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    auto left = Follow(goals, /*to_devices=*/false, hotness, stop, moved);
    if (!left) return base::Forward(left);
    if (!*left) continue;
    auto arrived = Follow(goals, /*to_devices=*/true, hotness, stop, moved);
    if (!arrived) return base::Forward(arrived);
    if (*arrived) return {};
  }
  return Fail(ErrorKind::kUnavailable, "workers come and go while experts move");
}

base::Result<base::Bytes> PlacementMover::Exchange(std::span<const UnitExchange> exchanges,
                                                   std::shared_ptr<const Hotness> hotness,
                                                   const std::stop_token& stop) {
  base::Bytes moved;
  for (const std::vector<Goal>& goals : GoalsOf(exchanges)) {
    if (auto followed = FollowAll(goals, hotness, stop, moved); !followed) {
      return base::Forward(followed);
    }
  }
  return moved;
}

bool PlacementMover::Step(std::chrono::microseconds most) {
  const std::lock_guard lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + most;
  while (pending_ != nullptr && !pending_->outcome) {
    ExpertLoader::Move& move = pending_->move;
    if (move.num_filled < move.fills.size()) {
      if (auto filled = loader_->FillOne(move); !filled) pending_->outcome = base::Forward(filled);
    } else {
      const bool committed = loader_->Commit(move);
      if (committed) compute_->Adopt(move.components);
      pending_->outcome = committed;
    }
    if (pending_->outcome) settled_.notify_all();
    if (std::chrono::steady_clock::now() >= end) break;
  }
  return pending_ != nullptr && !pending_->outcome;
}

}  // namespace moe
