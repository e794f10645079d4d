#include "moe/plan/repair.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace moe {
namespace {

struct Unit {
  LayerId layer;
  ExpertId expert;
};

std::vector<Unit> HomelessLargestFirst(const Placement& placement) {
  const ModelShape& shape = placement.shape();
  std::vector<Unit> units;
  units.reserve(placement.num_homeless());
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    for (std::size_t expert = 0; expert < shape.num_experts; ++expert) {
      if (placement.owner(LayerId(layer), ExpertId(expert)) == kNoOwner) {
        units.push_back({LayerId(layer), ExpertId(expert)});
      }
    }
  }
  std::ranges::stable_sort(units, std::ranges::greater{},
                           [&](const Unit& unit) { return shape.unit_bytes(unit.layer); });
  return units;
}

// The target with room for a unit of `layer` that then owns least above its most even share.
std::optional<TargetId> FindRoom(LayerId layer, const Placement& placement) {
  std::optional<TargetId> best;
  std::uint32_t best_excess = 0;
  for (std::size_t i = 0; i < placement.num_targets(); ++i) {
    const TargetId target(i);
    if (!placement.Fits(target, layer)) continue;
    const std::uint32_t excess = placement.count(layer, target) - placement.min_count(target);
    if (!best || excess < best_excess) {
      best = target;
      best_excess = excess;
    }
  }
  return best;
}

ExpertId ColdestOf(LayerId layer, TargetId target, const Hotness& hotness,
                   const Placement& placement) {
  std::optional<ExpertId> coldest;
  for (std::size_t i = 0; i < placement.shape().num_experts; ++i) {
    const ExpertId expert(i);
    if (placement.owner(layer, expert) != target.index()) continue;
    if (!coldest || hotness.share(layer, expert) <= hotness.share(layer, *coldest)) {
      coldest = expert;
    }
  }
  return *coldest;
}

// Makes room for a unit of `layer` by moving a smaller one into a gap elsewhere.
std::optional<TargetId> MakeRoom(LayerId layer, const Hotness& hotness, Placement& placement) {
  const ModelShape& shape = placement.shape();
  const base::Bytes need = shape.unit_bytes(layer);
  for (std::size_t i = 0; i < placement.num_targets(); ++i) {
    const TargetId target(i);
    for (std::size_t j = 0; j < shape.layers.size(); ++j) {
      const LayerId other(j);
      const base::Bytes size = shape.unit_bytes(other);
      if (size >= need || placement.count(other, target) == 0) continue;
      if (placement.free(target) + size < need) continue;
      for (std::size_t k = 0; k < placement.num_targets(); ++k) {
        const TargetId gap(k);
        if (gap == target || !placement.Fits(gap, other)) continue;
        const ExpertId moved = ColdestOf(other, target, hotness, placement);
        placement.Take(other, moved);
        placement.Give(other, moved, gap);
        return target;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

void PlaceHomeless(const Hotness& hotness, Placement& placement) {
  if (placement.num_homeless() == 0) return;
  const std::vector<Unit> homeless = HomelessLargestFirst(placement);
  base::Bytes need, free;
  for (const Unit& unit : homeless) need += placement.shape().unit_bytes(unit.layer);
  for (std::size_t i = 0; i < placement.num_targets(); ++i) free += placement.free(TargetId(i));
  if (free < need) return;
  for (const Unit& unit : homeless) {
    std::optional<TargetId> target = FindRoom(unit.layer, placement);
    if (!target) target = MakeRoom(unit.layer, hotness, placement);
    if (!target) return;
    placement.Give(unit.layer, unit.expert, *target);
  }
}

}  // namespace moe
