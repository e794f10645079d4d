#include "moe/compute/expert_loader.h"

#include <algorithm>
#include <span>
#include <utility>

#include "moe/compute/expert_loader_state.h"
#include "moe/compute/measured_compute.h"
#include "moe/compute/release_pages.h"
#include "moe/compute/shared_compute.h"

namespace moe {

ExpertLoader::ExpertLoader(ExpertLoadRequest request)
    : request_(std::move(request)),
      hotness_(std::make_shared<const Hotness>(*request_.hotness)),
      owners_(request_.plan->owners().begin(), request_.plan->owners().end()),
      computes_(request_.config->size()) {
  std::vector<gg::NumaNode> nodes;
  for (std::size_t t = 0; t < request_.config->size(); ++t) {
    const ExpertSplitTarget& target = (*request_.config)[TargetId(t)];
    if (target.place != TargetPlace::kNuma) continue;
    const auto found = std::ranges::find(request_.numa_nodes, target.index, &gg::NumaNode::index);
    node_positions_[TargetId(t)] = nodes.size();
    nodes.push_back(found != request_.numa_nodes.end() ? *found
                                                       : gg::NumaNode{.index = target.index});
  }
  if (!nodes.empty()) teams_ = std::make_shared<const NodeTeams>(std::move(nodes));
}

std::vector<std::size_t> ExpertLoader::Owned(LayerId layer, TargetId target) {
  std::vector<std::size_t> experts;
  for (std::size_t e = 0; e < num_experts(); ++e) {
    if (owner(layer, e) == target.index()) experts.push_back(e);
  }
  return experts;
}

base::Bytes ExpertLoader::OwnedBytes(TargetId target) {
  base::Bytes sum;
  for (std::size_t l = 0; l < num_layers(); ++l) {
    sum += request_.shape->unit_bytes(LayerId(l)) * Owned(LayerId(l), target).size();
  }
  return sum;
}

base::Result<ExpertSplitPlan> ExpertLoader::PlanOf(std::vector<std::uint8_t> owners,
                                                   const std::set<TargetId>& unlimited,
                                                   const Hotness& hotness) const {
  const auto planned = request_.plan->targets();
  std::vector<PlanTarget> targets(planned.begin(), planned.end());
  for (const TargetId target : unlimited) targets[target.index()].capacity.reset();
  std::vector<base::Bytes> owned(targets.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owned[owners[i]] += request_.shape->unit_bytes(LayerId(i / num_experts()));
  }
  for (std::size_t t = 0; t < targets.size(); ++t) {
    // Units on their way from one device to another are on a CPU, however full it is.
    if ((*request_.config)[TargetId(t)].in_process_cpu() && targets[t].capacity) {
      targets[t].capacity = std::max(*targets[t].capacity, owned[t]);
    }
  }
  return ExpertSplitPlan::FromOwners(*request_.shape, hotness, std::move(targets),
                                     std::move(owners));
}

base::Result<ExpertSplitPlan> ExpertLoader::PlanInForce() const {
  return PlanOf(owners_, unlimited_, *hotness_);
}

base::Result<std::shared_ptr<const ExpertSplitRuntime>> ExpertLoader::CurrentRuntime() {
  auto plan = PlanInForce();
  if (!plan) return base::Forward(plan);
  return ExpertSplitRuntime::Make(*plan);
}

// The next target of the list that may own one more unit of this layer.
std::optional<TargetId> ExpertLoader::NextWithRoom(TargetId target, LayerId layer) {
  for (std::size_t t = target.index() + 1; t < request_.config->size(); ++t) {
    const auto& capacity = request_.plan->targets()[t].capacity;
    if (given_up_.contains(TargetId(t))) continue;
    if (!capacity || OwnedBytes(TargetId(t)) + request_.shape->unit_bytes(layer) <= *capacity) {
      return TargetId(t);
    }
  }
  return std::nullopt;
}

base::Result<void> ExpertLoader::MoveColdest(TargetId target, LayerId layer, std::size_t count,
                                             const base::Error& reason) {
  std::vector<std::size_t> experts = Owned(layer, target);
  std::ranges::stable_sort(experts, {},
                           [&](std::size_t e) { return hotness_->share(layer, ExpertId(e)); });
  for (const std::size_t expert : std::span(experts).first(count)) {
    const auto next = NextWithRoom(target, layer);
    if (!next) {
      return base::Fail(base::ErrorKind::kCapacity,
                        "{}, and no later target has room for its units; add a target such as cpu "
                        "to the end of --targets, or give {} a smaller capacity",
                        reason.message, name(target));
    }
    owner(layer, expert) = static_cast<std::uint8_t>(next->index());
    stale_.insert(*next);
    Moves& moved = moves_[{target, *next}];
    ++moved.units;
    moved.bytes += request_.shape->unit_bytes(layer);
    moved.reason = reason.message;
  }
  return {};
}

base::Result<DeviceCompute*> ExpertLoader::DeviceOwner(TargetId target) {
  if (const auto found = devices_.find(target); found != devices_.end()) return found->second;
  auto runtime = CurrentRuntime();
  if (!runtime) return base::Forward(runtime);
  auto made = DeviceCompute::Make({.name = name(target),
                                   .device = request_.devices[target.index()],
                                   .weights = request_.weights,
                                   .runtime = *runtime,
                                   .target = target,
                                   .num_used = request_.shape->experts_per_token,
                                   .max_rows = request_.max_rows,
                                   .allocate = request_.allocate});
  if (!made) return base::Forward(made);
  DeviceCompute* compute = made->get();
  devices_[target] = compute;
  computes_[target.index()] =
      std::make_unique<MeasuredCompute>(std::move(*made), ComputePlace::kElsewhere);
  return compute;
}

base::Result<bool> ExpertLoader::TryKeepOnPrimary(TargetId target, LayerId layer) {
  if (!request_.keep_on_primary || target != request_.config->primary() ||
      Owned(layer, target).size() != num_experts()) {
    return false;
  }
  auto kept = request_.keep_on_primary(layer);
  if (kept && *kept) kept_.push_back(layer);
  return kept;
}

// Loads what the target owns of the layer; halves that as long as there is no room for it.
base::Result<void> ExpertLoader::LoadDeviceLayer(TargetId target, LayerId layer) {
  auto kept = TryKeepOnPrimary(target, layer);
  if (!kept) return base::Forward(kept);
  if (*kept) return {};
  auto compute = DeviceOwner(target);
  if (!compute) return base::Forward(compute);
  while (const std::size_t count = Owned(layer, target).size()) {
    auto loaded = (*compute)->LoadLayer(layer);
    if (loaded || loaded.error().kind != base::ErrorKind::kCapacity) return loaded;
    auto moved = MoveColdest(target, layer, (count + 1) / 2, loaded.error());
    if (!moved) return moved;
    auto runtime = CurrentRuntime();
    if (!runtime) return base::Forward(runtime);
    (*compute)->SetRuntime(*runtime);
  }
  return {};
}

void ExpertLoader::ReleaseExperts(LayerId layer, std::size_t first, std::size_t count) const {
  ReleaseExpertPages(request_.file, (*request_.stacks)[layer.index()], first, count);
}

void ExpertLoader::ReleasePages(TargetId target, LayerId layer) {
  ReleaseExpertPages(request_.file, (*request_.stacks)[layer.index()], Owned(layer, target));
}

bool ExpertLoader::Packs(TargetId first) {
  if (!packs_) packs_ = request_.repack == Repack::kAuto && PackedUnitsFit(first);
  return *packs_;
}

// Targets before `first` have their units by now.
bool ExpertLoader::PackedUnitsFit(TargetId first) const {
  base::Bytes packed;
  base::Bytes others;  // in the host's memory too
  for (std::size_t l = 0; l < num_layers(); ++l) {
    const auto run = PackedExperts::RunBytes(request_.weights->layers[l]);
    const base::Bytes unit = request_.shape->unit_bytes(LayerId(l));
    for (const std::uint8_t owner : std::span(owners_).subspan(l * num_experts(), num_experts())) {
      if (on_cpu(TargetId(owner))) {
        (run ? packed : others) += run.value_or(unit);
      } else if (owner >= first.index() && in_host_memory(TargetId(owner))) {
        others += unit;
      }
    }
  }
  if (packed == base::Bytes()) return false;
  return FitsPacked("experts on the CPU are", packed,
                    others + request_.untouched_bytes + HostBuffers(), request_.packing_memory,
                    request_.log);
}

// What CPU owners compute their largest batch in. Vectors are counted as floats, twice where they
// are converted.
base::Bytes ExpertLoader::HostBuffers() const {
  std::size_t widest = 0;
  for (const LayerWeights& layer : request_.weights->layers) {
    widest = std::max(widest, 2 * layer.n_embd() + request_.shape->experts_per_token *
                                                       (2 * layer.n_ff() + layer.n_embd()));
  }
  const auto owners = static_cast<std::size_t>(
      std::ranges::count_if(request_.devices, [](const gg::Device& d) { return d.is_cpu(); }));
  return base::Bytes(sizeof(float)) * widest * request_.max_rows * owners;
}

std::vector<std::uint8_t> ExpertLoader::OwnedFlags(std::span<const std::uint8_t> owners,
                                                   TargetId target) {
  std::vector<std::uint8_t> owned;
  for (const std::uint8_t owner : owners) owned.push_back(owner == target.index() ? 1 : 0);
  return owned;
}

// What the target is of `owners` and is not in `present`, which may be nullptr.
base::Result<std::shared_ptr<const PackedExperts>> ExpertLoader::Pack(
    TargetId target, std::span<const std::uint8_t> owners, const PackedExperts* present,
    std::size_t num_threads, std::stop_token stop) const {
  std::vector<std::uint8_t> owned(owners.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto* layer = present != nullptr ? present->layer(LayerId(i / num_experts())) : nullptr;
    const bool there = layer != nullptr && layer->runs[i % num_experts()] != nullptr;
    owned[i] = static_cast<std::uint8_t>(owners[i] == target.index() && !there);
  }
  PackRequest pack{.weights = request_.weights.get(),
                   .owned = owned,
                   .num_threads = num_threads,
                   .release = [this](LayerId layer, std::size_t first,
                                     std::size_t count) { ReleaseExperts(layer, first, count); },
                   .stop = std::move(stop),
                   .allocate = request_.packing_memory.allocate};
  if (const auto node = node_positions_.find(target); node != node_positions_.end()) {
    pack.allocate = [this, index = teams_->nodes()[node->second].index](base::Bytes size) {
      auto memory = request_.packing_memory.allocate(size);
      if (memory) gg::PreferNode({memory->data(), size.count()}, index);
      return memory;
    };
  }
  if (request_.progress) {
    pack.progress = [this, target](base::Bytes done, base::Bytes total) {
      request_.progress(target, done, total);
    };
  }
  return PackedExperts::Make(pack);
}

base::Result<void> ExpertLoader::MakeHostOwner(TargetId target) {
  auto runtime = CurrentRuntime();
  if (!runtime) return base::Forward(runtime);
  std::shared_ptr<const PackedExperts> packed;
  if (Packs(target)) {
    std::shared_ptr<const PackedExperts>& present = packed_[target];
    if (present != nullptr)
      present = PackedExperts::Keep(std::move(present), OwnedFlags(owners_, target));
    auto made = Pack(target, owners_, present.get(), request_.pack_threads, request_.stop);
    if (!made) {
      if (made.error().kind != base::ErrorKind::kCapacity) return base::Forward(made);
      if (auto done = UseTheFile(made.error()); !done) return done;
      return MakeHostOwner(target);
    }
    if (present == nullptr) {
      present = std::move(*made);
    } else if ((*made)->bytes() > base::Bytes()) {
      present = PackedExperts::Join(std::move(present), std::move(*made));
    }
    packed = present;
    // Once more: reading a neighbour may have mapped pages around its own.
    for (std::size_t l = 0; l < num_layers(); ++l) {
      if (packed->layer(LayerId(l)) != nullptr) ReleasePages(target, LayerId(l));
    }
  }
  auto made = HostCompute::Make({.name = name(target),
                                 .weights = request_.weights,
                                 .runtime = *runtime,
                                 .target = target,
                                 .packed = std::move(packed)});
  if (!made) return base::Forward(made);
  hosts_[target] = made->get();
  std::unique_ptr<MoeExpertCompute> owner =
      std::make_unique<MeasuredCompute>(std::move(*made), ComputePlace::kOnTeam);
  if (const auto node = node_positions_.find(target); node != node_positions_.end()) {
    owner = std::make_unique<NodeCompute>(std::move(owner), teams_, node->second);
  }
  computes_[target.index()] = std::move(owner);
  return {};
}

// All CPU owners use one layout, so those that have packed their units go back to the file.
base::Result<void> ExpertLoader::UseTheFile(const base::Error& reason) {
  request_.log.Warning("{}: experts on the CPU are used as the file has them", reason.message);
  packs_ = false;
  packed_.clear();
  for (const auto& [target, worker] : workers_) {
    if (on_cpu(target) && !given_up_.contains(target)) stale_.insert(target);
  }
  const std::map<TargetId, HostCompute*> packed = hosts_;
  for (const auto& [target, host] : packed) {
    if (auto made = MakeHostOwner(target); !made) return made;
  }
  return {};
}

base::Result<void> ExpertLoader::LoadTarget(TargetId target) {
  stale_.erase(target);
  const base::Bytes total = OwnedBytes(target);
  if (total == base::Bytes()) return {};
  if (on_cpu(target)) return MakeHostOwner(target);
  base::Bytes done;
  for (std::size_t l = 0; l < num_layers(); ++l) {
    const LayerId layer(l);
    if (Owned(layer, target).empty() || std::ranges::contains(kept_, layer)) continue;
    if (request_.stop.stop_requested()) {
      return base::Fail(base::ErrorKind::kCancelled, "loading was interrupted");
    }
    if (auto loaded = LoadDeviceLayer(target, layer); !loaded) return loaded;
    ReleasePages(target, layer);
    done += request_.shape->unit_bytes(layer) * Owned(layer, target).size();
    if (request_.progress) request_.progress(target, done, total);
  }
  return {};
}

void ExpertLoader::ReportMoves() {
  for (const auto& [pair, moved] : moves_) {
    request_.log.Warning("{}: moved {} units ({}) to {}", moved.reason, moved.units,
                         base::FormatBytes(moved.bytes), name(pair.second));
  }
  moves_.clear();
}

base::Result<std::shared_ptr<const ExpertSplitStateComponents>> ExpertLoader::Assemble(
    std::uint64_t generation) {
  auto plan = PlanInForce();
  if (!plan) return base::Forward(plan);
  const auto factory = [&](TargetId target,
                           const std::shared_ptr<const ExpertSplitMaterialization>& storage)
      -> base::Result<std::unique_ptr<MoeExpertCompute>> {
    if (const auto device = devices_.find(target); device != devices_.end()) {
      device->second->SetRuntime(storage->shared_runtime());
    }
    if (const auto host = hosts_.find(target); host != hosts_.end()) {
      host->second->SetRuntime(storage->shared_runtime());
    }
    std::unique_ptr<MoeExpertCompute>& compute = computes_[target.index()];
    if (workers_.empty() && !request_.movable) return std::move(compute);
    std::shared_ptr<MoeExpertCompute>& shared = shared_[target.index()];
    if (compute != nullptr) shared = std::move(compute);
    if (shared == nullptr) return nullptr;
    return std::make_unique<SharedCompute>(shared);
  };
  shared_.resize(computes_.size());
  auto components = ExpertSplitStateComponents::Make(*request_.config, std::move(*plan),
                                                     *request_.stacks, factory, generation);
  if (!components) return base::Forward(components);
  generation_ = generation;
  return std::make_shared<const ExpertSplitStateComponents>(std::move(*components));
}

base::Result<LoadedExperts> ExpertLoader::Run(const std::shared_ptr<ExpertLoader>& self) {
  ExpertLoader& loader = *self;
  ExpertLoadRequest& request = loader.request_;
  if (auto opened = loader.OpenAllWorkers(); !opened) return base::Forward(opened);
  std::vector<TargetId> workers;
  for (const auto& [target, worker] : loader.workers_) workers.push_back(target);
  if (auto loaded = loader.LoadWorkers(workers); !loaded) return base::Forward(loaded);
  for (std::size_t t = 0; t < request.config->size(); ++t) {
    if (loader.outside(TargetId(t))) continue;
    if (auto loaded = loader.LoadTarget(TargetId(t)); !loaded) return base::Forward(loaded);
  }
  if (auto loaded = loader.ReloadStale(); !loaded) return base::Forward(loaded);
  loader.ReportMoves();
  auto components = loader.Assemble(0);
  if (!components) return base::Forward(components);
  LoadedExperts loaded{.components = std::move(*components), .kept_on_primary = loader.kept_};
  const bool moves = request.movable && loaded.components->compute().routed() != nullptr;
  if (workers.empty() && !moves) return loaded;
  loader.ShareThreads();
  request.keep_on_primary = {};
  request.progress = {};
  request.stop = {};
  loaded.failover = std::make_shared<FailoverCompute>(
      loaded.components, std::exchange(loader.lost_, {}),
      [self](std::uint64_t generation) { return self->Replace(generation); },
      [self](std::uint64_t generation) { return self->Settle(generation); },
      request.on_worker_loss);
  if (moves) loaded.mover = std::make_shared<PlacementMover>(self, loaded.failover);
  return loaded;
}

base::Result<LoadedExperts> LoadExperts(ExpertLoadRequest request) {
  return ExpertLoader::Run(std::make_shared<ExpertLoader>(std::move(request)));
}

}  // namespace moe
