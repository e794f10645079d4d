#include "moe/compute/expert_loader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "moe/compute/device_compute.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/measured_compute.h"
#include "moe/compute/node_compute.h"
#include "moe/compute/packed_experts.h"

namespace moe {
namespace {

class Loader {
 public:
  explicit Loader(ExpertLoadRequest request)
      : request_(std::move(request)),
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

  base::Result<LoadedExperts> Run();

 private:
  std::uint8_t& owner(LayerId layer, std::size_t expert) {
    return owners_[layer.index() * num_experts() + expert];
  }
  std::size_t num_experts() const { return request_.shape->num_experts; }
  std::size_t num_layers() const { return request_.shape->layers.size(); }
  const std::string& name(TargetId target) const { return (*request_.config)[target].name; }
  bool on_cpu(TargetId target) const { return request_.devices[target.index()].is_cpu(); }

  std::vector<std::size_t> Owned(LayerId layer, TargetId target);
  base::Bytes OwnedBytes(TargetId target);
  base::Result<std::shared_ptr<const ExpertSplitRuntime>> CurrentRuntime();

  base::Result<void> LoadTarget(TargetId target);
  base::Result<void> LoadDeviceLayer(TargetId target, LayerId layer);
  base::Result<bool> TryKeepOnPrimary(TargetId target, LayerId layer);
  base::Result<DeviceCompute*> DeviceOwner(TargetId target);
  base::Result<void> MoveColdest(TargetId target, LayerId layer, std::size_t count,
                                 const base::Error& reason);
  std::optional<TargetId> NextWithRoom(TargetId target, LayerId layer);
  base::Result<void> MakeHostOwner(TargetId target);
  base::Result<void> UseTheFile(const base::Error& reason);
  base::Bytes HostBuffers() const;
  bool Packs(TargetId first);
  bool PackedUnitsFit(TargetId first) const;
  base::Result<std::shared_ptr<const PackedExperts>> Pack(TargetId target) const;
  void ReleasePages(TargetId target, LayerId layer);
  void ReleaseExperts(LayerId layer, std::size_t first, std::size_t count) const;
  void ReportMoves() const;
  base::Result<ExpertSplitPlan> PlanInForce() const;
  base::Result<LoadedExperts> Assemble();

  ExpertLoadRequest request_;
  std::vector<std::uint8_t> owners_;  // [num_layers, num_experts], as things stand
  std::vector<std::unique_ptr<MoeExpertCompute>> computes_;  // [targets]
  std::map<TargetId, DeviceCompute*> devices_;               // into computes_
  std::map<TargetId, HostCompute*> hosts_;                   // into computes_
  std::map<TargetId, std::size_t> node_positions_;           // of NUMA nodes, in teams_
  std::shared_ptr<const NodeTeams> teams_;                   // nullptr without such targets
  std::vector<LayerId> kept_;
  std::optional<bool> packs_;  // decided once, when the first CPU owner is made
  struct Moves {
    std::size_t units = 0;
    base::Bytes bytes;
    std::string reason;
  };
  std::map<std::pair<TargetId, TargetId>, Moves> moves_;
};

std::vector<std::size_t> Loader::Owned(LayerId layer, TargetId target) {
  std::vector<std::size_t> experts;
  for (std::size_t e = 0; e < num_experts(); ++e) {
    if (owner(layer, e) == target.index()) experts.push_back(e);
  }
  return experts;
}

base::Bytes Loader::OwnedBytes(TargetId target) {
  base::Bytes sum;
  for (std::size_t l = 0; l < num_layers(); ++l) {
    sum += request_.shape->unit_bytes(LayerId(l)) * Owned(LayerId(l), target).size();
  }
  return sum;
}

base::Result<ExpertSplitPlan> Loader::PlanInForce() const {
  const auto targets = request_.plan->targets();
  return ExpertSplitPlan::FromOwners(*request_.shape, *request_.hotness,
                                     {targets.begin(), targets.end()}, owners_);
}

base::Result<std::shared_ptr<const ExpertSplitRuntime>> Loader::CurrentRuntime() {
  auto plan = PlanInForce();
  if (!plan) return base::Forward(plan);
  return ExpertSplitRuntime::Make(*plan);
}

// The next target of the list that may own one more unit of this layer.
std::optional<TargetId> Loader::NextWithRoom(TargetId target, LayerId layer) {
  for (std::size_t t = target.index() + 1; t < request_.config->size(); ++t) {
    const auto& capacity = request_.plan->targets()[t].capacity;
    if (!capacity || OwnedBytes(TargetId(t)) + request_.shape->unit_bytes(layer) <= *capacity) {
      return TargetId(t);
    }
  }
  return std::nullopt;
}

base::Result<void> Loader::MoveColdest(TargetId target, LayerId layer, std::size_t count,
                                       const base::Error& reason) {
  std::vector<std::size_t> experts = Owned(layer, target);
  std::ranges::stable_sort(
      experts, {}, [&](std::size_t e) { return request_.hotness->share(layer, ExpertId(e)); });
  for (const std::size_t expert : std::span(experts).first(count)) {
    const auto next = NextWithRoom(target, layer);
    if (!next) {
      return base::Fail(base::ErrorKind::kCapacity,
                        "{}, and no later target has room for its units; add a target such as cpu "
                        "to the end of --targets, or give {} a smaller capacity",
                        reason.message, name(target));
    }
    owner(layer, expert) = static_cast<std::uint8_t>(next->index());
    Moves& moved = moves_[{target, *next}];
    ++moved.units;
    moved.bytes += request_.shape->unit_bytes(layer);
    moved.reason = reason.message;
  }
  return {};
}

base::Result<DeviceCompute*> Loader::DeviceOwner(TargetId target) {
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

base::Result<bool> Loader::TryKeepOnPrimary(TargetId target, LayerId layer) {
  if (!request_.keep_on_primary || target != request_.config->primary() ||
      Owned(layer, target).size() != num_experts()) {
    return false;
  }
  auto kept = request_.keep_on_primary(layer);
  if (kept && *kept) kept_.push_back(layer);
  return kept;
}

// Loads what the target owns of the layer; halves that as long as there is no room for it.
base::Result<void> Loader::LoadDeviceLayer(TargetId target, LayerId layer) {
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

void Loader::ReleaseExperts(LayerId layer, std::size_t first, std::size_t count) const {
  if (request_.file == nullptr) return;
  const LayerStacks& stacks = (*request_.stacks)[layer.index()];
  const auto release = [&](const ExpertStack& stack) {
    const std::size_t bytes = stack.bytes_per_expert.count();
    request_.file->shards()[stack.shard].ReleasePages(stack.offset + first * bytes, count * bytes);
  };
  release(stacks.gate);
  if (stacks.up) release(*stacks.up);
  release(stacks.down);
}

// By runs of neighbours, whose pages go wholly.
void Loader::ReleasePages(TargetId target, LayerId layer) {
  const std::vector<std::size_t> experts = Owned(layer, target);
  for (std::size_t i = 0; i < experts.size();) {
    const std::size_t first = i;
    while (i < experts.size() && experts[i] - experts[first] == i - first) ++i;
    ReleaseExperts(layer, experts[first], i - first);
  }
}

bool Loader::Packs(TargetId first) {
  if (!packs_) packs_ = request_.repack == Repack::kAuto && PackedUnitsFit(first);
  return *packs_;
}

// `first` is the first CPU owner: targets before it have their units by now.
bool Loader::PackedUnitsFit(TargetId first) const {
  base::Bytes packed;
  base::Bytes others;  // in the host's memory too
  for (std::size_t l = 0; l < num_layers(); ++l) {
    const auto run = PackedExperts::RunBytes(request_.weights->layers[l]);
    const base::Bytes unit = request_.shape->unit_bytes(LayerId(l));
    for (const std::uint8_t owner : std::span(owners_).subspan(l * num_experts(), num_experts())) {
      if (on_cpu(TargetId(owner))) {
        (run ? packed : others) += run.value_or(unit);
      } else if (owner > first.index() && request_.devices[owner].host_memory) {
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
base::Bytes Loader::HostBuffers() const {
  std::size_t widest = 0;
  for (const LayerWeights& layer : request_.weights->layers) {
    widest = std::max(widest, 2 * layer.n_embd() + request_.shape->experts_per_token *
                                                       (2 * layer.n_ff() + layer.n_embd()));
  }
  const auto owners = static_cast<std::size_t>(
      std::ranges::count_if(request_.devices, [](const gg::Device& d) { return d.is_cpu(); }));
  return base::Bytes(sizeof(float)) * widest * request_.max_rows * owners;
}

base::Result<std::shared_ptr<const PackedExperts>> Loader::Pack(TargetId target) const {
  std::vector<std::uint8_t> owned(owners_.size());
  std::ranges::transform(owners_, owned.begin(), [&](std::uint8_t owner) {
    return static_cast<std::uint8_t>(owner == target.index());
  });
  PackRequest pack{.weights = request_.weights.get(),
                   .owned = owned,
                   .num_threads = request_.pack_threads,
                   .release = [this](LayerId layer, std::size_t first,
                                     std::size_t count) { ReleaseExperts(layer, first, count); },
                   .stop = request_.stop,
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

base::Result<void> Loader::MakeHostOwner(TargetId target) {
  auto runtime = CurrentRuntime();
  if (!runtime) return base::Forward(runtime);
  std::shared_ptr<const PackedExperts> packed;
  if (Packs(target)) {
    auto made = Pack(target);
    if (!made) {
      if (made.error().kind != base::ErrorKind::kCapacity) return base::Forward(made);
      if (auto done = UseTheFile(made.error()); !done) return done;
      return MakeHostOwner(target);
    }
    packed = std::move(*made);
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
base::Result<void> Loader::UseTheFile(const base::Error& reason) {
  request_.log.Warning("{}: experts on the CPU are used as the file has them", reason.message);
  packs_ = false;
  const std::map<TargetId, HostCompute*> packed = hosts_;
  for (const auto& [target, host] : packed) {
    if (auto made = MakeHostOwner(target); !made) return made;
  }
  return {};
}

base::Result<void> Loader::LoadTarget(TargetId target) {
  const base::Bytes total = OwnedBytes(target);
  if (total == base::Bytes()) return {};
  if (on_cpu(target)) return MakeHostOwner(target);
  base::Bytes done;
  for (std::size_t l = 0; l < num_layers(); ++l) {
    const LayerId layer(l);
    if (Owned(layer, target).empty()) continue;
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

void Loader::ReportMoves() const {
  for (const auto& [pair, moved] : moves_) {
    request_.log.Warning("{}: moved {} units ({}) to {}", moved.reason, moved.units,
                         base::FormatBytes(moved.bytes), name(pair.second));
  }
}

base::Result<LoadedExperts> Loader::Assemble() {
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
    return std::move(computes_[target.index()]);
  };
  auto components = ExpertSplitStateComponents::Make(*request_.config, std::move(*plan),
                                                     *request_.stacks, factory);
  if (!components) return base::Forward(components);
  return LoadedExperts{std::make_shared<const ExpertSplitStateComponents>(std::move(*components)),
                       std::move(kept_)};
}

base::Result<LoadedExperts> Loader::Run() {
  for (std::size_t t = 0; t < request_.config->size(); ++t) {
    if (auto loaded = LoadTarget(TargetId(t)); !loaded) return base::Forward(loaded);
  }
  ReportMoves();
  return Assemble();
}

}  // namespace

base::Result<LoadedExperts> LoadExperts(ExpertLoadRequest request) {
  return Loader(std::move(request)).Run();
}

}  // namespace moe
