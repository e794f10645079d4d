#include "moe/target/capacity.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <span>
#include <string_view>
#include <utility>

#include "base/quote.h"

namespace moe {
namespace {

using base::Bytes;
using base::ErrorKind;
using base::Fail;

constexpr std::string_view kHostKey = "host RAM";

// What is left of each piece of memory, and which pieces each target's bytes come out of: its own,
// the host's, or both.
class Budgets {
 public:
  explicit Budgets(std::size_t num_targets) : of_target_(num_targets) {}

  // Two reports about one piece of memory: the smaller one counts.
  void Add(std::size_t target, std::string_view key, Bytes free) {
    auto found = std::ranges::find(pieces_, key, &Piece::key);
    if (found == pieces_.end()) {
      pieces_.push_back({std::string(key), free});
      found = pieces_.end() - 1;
    }
    found->left = std::min(found->left, free);
    of_target_[target].push_back(static_cast<std::size_t>(found - pieces_.begin()));
  }

  Bytes left(std::size_t target) const {
    Bytes least = of_target_[target].empty() ? Bytes() : Bytes::Max();
    for (const std::size_t piece : of_target_[target]) least = std::min(least, pieces_[piece].left);
    return least;
  }

  void Charge(std::size_t target, Bytes bytes) {
    for (const std::size_t piece : of_target_[target]) pieces_[piece].left -= bytes;
  }

  void ChargeEveryPiece(Bytes bytes) {
    for (Piece& piece : pieces_) piece.left -= bytes;
  }

 private:
  struct Piece {
    std::string key;
    Bytes left;
  };

  std::vector<Piece> pieces_;
  std::vector<std::vector<std::size_t>> of_target_;  // [num_targets] positions in pieces_
};

bool IsHostItself(const ExpertSplitTarget& target) {
  return target.inner_place == TargetPlace::kCpu;
}

bool IsOnThisMachine(const ExpertSplitTarget& target) {
  return target.inner_place != TargetPlace::kRpc || target.host == "localhost" ||
         target.host.starts_with("127.");
}

// Identities are unique within a machine only; a remote's are told apart by its address.
std::string PieceKey(const ExpertSplitTarget& target, const TargetMemory& memory) {
  const std::string_view name = target.name;
  // "worker(cpu:0)#2" uses the memory of "cpu:0".
  const std::string_view inside =
      target.place == TargetPlace::kWorker
          ? name.substr(name.find('(') + 1, name.rfind(')') - name.find('(') - 1)
          : name;
  if (memory.device_id.empty()) return std::format("target {}", inside);
  if (IsOnThisMachine(target)) return std::format("device {}", memory.device_id);
  return std::format("device {} of {}", memory.device_id, target.host);
}

bool UsesHostRam(const ExpertSplitTarget& target, const TargetMemory& memory, Bytes host_total) {
  if (!IsOnThisMachine(target)) return false;
  return memory.shares_host_ram || target.inner_place == TargetPlace::kNuma ||
         (memory.total == host_total && host_total > Bytes());
}

Bytes PercentOf(Bytes whole, std::uint64_t percent_e6) {
  using Wide = unsigned __int128;
  constexpr std::uint64_t kWhole = 100'000'000;
  return Bytes(static_cast<std::uint64_t>(Wide{whole.count()} * percent_e6 / kWhole));
}

// Nullopt for `auto`.
std::optional<Bytes> FixedCapacity(const TargetCapacity& capacity, Bytes unit_bytes) {
  switch (capacity.policy) {
    case CapacityPolicy::kAuto:
      return std::nullopt;
    case CapacityPolicy::kBytes:
      return capacity.bytes;
    case CapacityPolicy::kPercent:
      return PercentOf(unit_bytes, capacity.percent_e6);
  }
  return std::nullopt;
}

std::unexpected<base::Error> Missing(const ExpertSplitTarget& target, std::size_t position,
                                     const std::vector<std::string>& present) {
  std::string names;
  for (const std::string& name : present) names += (names.empty() ? "" : ", ") + name;
  return Fail(ErrorKind::kInvalidInput,
              "target list item {} {}: missing device; present are {}; plan for one that is "
              "elsewhere by giving it a size, as in {}=16GiB",
              position, base::Quote(target.name), names.empty() ? "none" : names,
              target.name.substr(0, target.name.find('#')));
}

// Dense weights on a CPU primary stay in the mapped file unless everything is copied.
bool WeightsStayMapped(const CapacityRequest& request, const ExpertSplitTarget& primary) {
  return primary.in_process_cpu() && request.cpu_units == CpuUnits::kMapped;
}

std::unexpected<base::Error> DensePartTooLarge(const CapacityRequest& request,
                                               const ExpertSplitTarget& primary,
                                               const DensePartBytes& need, Bytes have,
                                               Bytes total) {
  return Fail(ErrorKind::kCapacity,
              "target {} needs {} for the dense part (weights {}, KV cache {}, recurrent state {}, "
              "compute buffers {}) but has {} free of {}; free memory there, lower --ctx or "
              "--parallel, or put {} first in --targets",
              base::Quote(primary.name), FormatBytes(need.total()),
              WeightsStayMapped(request, primary) ? "mapped" : FormatBytes(need.weights),
              FormatBytes(need.kv_cache), FormatBytes(need.recurrent_state),
              FormatBytes(need.compute_buffers), FormatBytes(have), FormatBytes(total),
              primary.in_process_cpu() ? "a device with more memory" : "a larger device or cpu");
}

}  // namespace

base::Result<std::vector<std::optional<Bytes>>> ResolveCapacities(const CapacityRequest& request,
                                                                  MemoryProbe& probe) {
  const std::span<const ExpertSplitTarget> targets = request.config->targets();
  const std::size_t primary = request.config->primary().index();
  const HostMemory host = probe.Host();
  const Bytes host_free = std::min(host.available, host.total);

  Budgets budgets(targets.size());
  std::vector<bool> present(targets.size(), true);
  Bytes primary_total = host.total;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (IsHostItself(targets[i])) {
      budgets.Add(i, kHostKey, host_free);
      continue;
    }
    const std::optional<TargetMemory> memory = probe.Target(targets[i]);
    present[i] = memory.has_value();
    if (!memory) continue;
    budgets.Add(i, PieceKey(targets[i], *memory), std::min(memory->free, memory->total));
    if (UsesHostRam(targets[i], *memory, host.total)) budgets.Add(i, kHostKey, host_free);
    if (i == primary) primary_total = memory->total;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!present[i] && targets[i].capacity.policy != CapacityPolicy::kBytes) {
      return Missing(targets[i], i + 1, probe.PresentTargets());
    }
  }

  DensePartBytes need = request.dense;
  if (WeightsStayMapped(request, targets[primary])) need.weights = Bytes();
  if (present[primary] && need.total() > budgets.left(primary)) {
    return DensePartTooLarge(request, targets[primary], need, budgets.left(primary), primary_total);
  }
  budgets.Charge(primary, need.total());
  budgets.ChargeEveryPiece(request.safety_margin);

  std::vector<std::optional<Bytes>> capacities(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (i != primary) budgets.Charge(i, request.owner_buffers);
    const std::optional<Bytes> fixed = FixedCapacity(targets[i].capacity, request.unit_bytes);
    // No plan puts more than the model on a target, whatever it may own.
    if (fixed) budgets.Charge(i, std::min(*fixed, request.unit_bytes));
    capacities[i] = fixed;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].capacity.policy != CapacityPolicy::kAuto) continue;
    if (IsHostItself(targets[i]) && request.cpu_units == CpuUnits::kMapped) continue;
    const Bytes left = std::min(budgets.left(i), request.unit_bytes);
    budgets.Charge(i, left);
    capacities[i] = left;
  }
  return capacities;
}

}  // namespace moe
