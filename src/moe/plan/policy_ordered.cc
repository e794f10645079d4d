#include "moe/plan/policy_ordered.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "moe/plan/repair.h"

namespace moe {
namespace {

// Units still to be handed out, per layer, while hotness is uniform. Invariant: the counts of any
// two layers differ by at most one.
class EvenRemainder {
 public:
  explicit EvenRemainder(const ModelShape& shape)
      : shape_(shape), left_(shape.layers.size(), shape.num_experts), by_size_(left_.size()) {
    std::iota(by_size_.begin(), by_size_.end(), std::size_t{0});
    std::ranges::stable_sort(by_size_,
                             [&](std::size_t a, std::size_t b) { return Size(a) > Size(b); });
  }

  // How many units of each layer a target with `capacity` takes: q or q + 1 of each.
  std::vector<std::uint32_t> Take(base::Bytes capacity) {
    base::Bytes all, one_each;
    for (std::size_t layer = 0; layer < left_.size(); ++layer) {
      all += Size(layer) * left_[layer];
      one_each += Size(layer);
    }
    std::vector<std::uint32_t> taken = left_;
    if (all > capacity) {
      const auto q = static_cast<std::uint32_t>(capacity.count() / one_each.count());
      taken.assign(left_.size(), q);
      AddOneMore(capacity - one_each * q, taken);
    }
    for (std::size_t layer = 0; layer < left_.size(); ++layer) left_[layer] -= taken[layer];
    return taken;
  }

 private:
  base::Bytes Size(std::size_t layer) const { return shape_.unit_bytes(LayerId(layer)); }

  // One more unit of some layers, within `budget`. Fuller layers come first, all of them before any
  // other: that keeps the invariant.
  void AddOneMore(base::Bytes budget, std::vector<std::uint32_t>& taken) const {
    const std::uint32_t fewest = std::ranges::min(left_);
    base::Bytes fuller;
    for (std::size_t layer = 0; layer < left_.size(); ++layer) {
      if (left_[layer] > fewest) fuller += Size(layer);
    }
    const bool whole = fuller <= budget;
    if (whole) budget -= fuller;
    // Large units first: what stays unused is then less than the smallest one left out.
    for (const std::size_t layer : by_size_) {
      const bool is_fuller = left_[layer] > fewest;
      if (is_fuller && whole) {
        ++taken[layer];
      } else if (is_fuller != whole && Size(layer) <= budget) {
        ++taken[layer];
        budget -= Size(layer);
      }
    }
  }

  const ModelShape& shape_;
  std::vector<std::uint32_t> left_;   // [num_layers]
  std::vector<std::size_t> by_size_;  // layers, largest units first
};

// Experts of a layer go to the targets as contiguous ranges, so that they load as one piece each.
void PlaceEvenly(const PlanRequest& request, Placement& placement) {
  const ModelShape& shape = *request.shape;
  EvenRemainder remainder(shape);
  std::vector<std::size_t> next(shape.layers.size(), 0);
  for (std::size_t target = 0; target < request.targets.size(); ++target) {
    const auto taken = remainder.Take(placement.free(TargetId(target)));
    for (std::size_t layer = 0; layer < taken.size(); ++layer) {
      for (std::uint32_t i = 0; i < taken[layer]; ++i) {
        placement.Give(LayerId(layer), ExpertId(next[layer]++), TargetId(target));
      }
    }
  }
}

struct RankedUnit {
  double share = 0;
  std::uint32_t rank = 0;  // within its layer, hottest 0
  LayerId layer;
  ExpertId expert;
};

// Every unit, hottest first. Of equally hot units those that rank higher in their layer come first,
// which spreads ties over the layers.
std::vector<RankedUnit> RankUnits(const ModelShape& shape, const Hotness& hotness) {
  std::vector<RankedUnit> units;
  units.reserve(shape.num_units());
  std::vector<RankedUnit> layer_units(shape.num_experts);
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    for (std::size_t expert = 0; expert < shape.num_experts; ++expert) {
      layer_units[expert] = {hotness.share(LayerId(layer), ExpertId(expert)), 0, LayerId(layer),
                             ExpertId(expert)};
    }
    std::ranges::stable_sort(layer_units, std::ranges::greater{}, &RankedUnit::share);
    for (std::uint32_t rank = 0; rank < shape.num_experts; ++rank) layer_units[rank].rank = rank;
    units.insert(units.end(), layer_units.begin(), layer_units.end());
  }
  std::ranges::sort(units, [](const RankedUnit& a, const RankedUnit& b) {
    return std::tuple(-a.share, a.rank, a.layer) < std::tuple(-b.share, b.rank, b.layer);
  });
  return units;
}

// Gives `target` each of `units` (hottest first) that fits, and removes those from the list.
void Fill(TargetId target, std::vector<RankedUnit>& units, Placement& placement) {
  std::erase_if(units, [&](const RankedUnit& unit) {
    if (!placement.Fits(target, unit.layer)) return false;
    placement.Give(unit.layer, unit.expert, target);
    return true;
  });
}

void PlaceHottestFirst(const PlanRequest& request, Placement& placement) {
  std::vector<RankedUnit> units = RankUnits(*request.shape, *request.hotness);
  if (request.layer_floor) {
    std::vector<RankedUnit> top;
    std::ranges::copy_if(units, std::back_inserter(top), [&](const RankedUnit& unit) {
      return unit.rank < request.shape->experts_per_token;
    });
    std::ranges::stable_sort(top, {}, &RankedUnit::rank);
    Fill(TargetId(0), top, placement);
    std::erase_if(units, [&](const RankedUnit& unit) {
      return placement.owner(unit.layer, unit.expert) != kNoOwner;
    });
  }
  for (std::size_t target = 0; target < request.targets.size() && !units.empty(); ++target) {
    Fill(TargetId(target), units, placement);
  }
}

}  // namespace

Placement PlaceOrdered(const PlanRequest& request) {
  Placement placement(*request.shape, request.targets);
  if (request.hotness->uniform()) {
    PlaceEvenly(request, placement);
  } else {
    PlaceHottestFirst(request, placement);
  }
  PlaceHomeless(*request.hotness, placement);
  return placement;
}

}  // namespace moe
