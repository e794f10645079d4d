#include "moe/plan/policy_balanced.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "moe/plan/owner_search.h"
#include "moe/plan/policy_layers.h"
#include "moe/plan/policy_ordered.h"

namespace moe {
namespace {

using Owners = std::vector<std::uint8_t>;
using Order = std::vector<std::size_t>;

// Layer costs evaluated for each start.
constexpr std::size_t kBudget = 350'000;
constexpr std::size_t kMaxPermuted = 5;

Order ListOrder(const PlanRequest& request) {
  Order order(request.targets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

Order FastestFirst(const PlanRequest& request) {
  Order order = ListOrder(request);
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t t) {
    return request.costs->speeds[t].decode_bytes_per_second;
  });
  return order;
}

// What `place` makes of the targets in this order; nothing when units are left over.
std::optional<Owners> PlaceInOrder(const PlanRequest& request, const Order& order,
                                   Placement (*place)(const PlanRequest&)) {
  PlanRequest reordered = request;
  reordered.layer_floor = false;
  for (std::size_t i = 0; i < order.size(); ++i) reordered.targets[i] = request.targets[order[i]];
  const Placement placement = place(reordered);
  if (placement.num_homeless() > 0) return std::nullopt;
  Owners owners(placement.owners().begin(), placement.owners().end());
  for (std::uint8_t& owner : owners) owner = static_cast<std::uint8_t>(order[owner]);
  return owners;
}

double Cost(const PlanRequest& request, const Owners& owners) {
  return ExpectSeconds(*request.shape, *request.hotness, owners, *request.costs)
      .Weighted(*request.costs);
}

// Keeps the cheaper one.
class Cheapest {
 public:
  explicit Cheapest(const PlanRequest& request) : request_(request) {}

  void Offer(Owners owners) {
    const double cost = Cost(request_, owners);
    if (best_ && cost >= cost_) return;
    cost_ = cost;
    best_ = std::move(owners);
  }
  void Offer(std::optional<Owners> owners) {
    if (owners) Offer(*std::move(owners));
  }
  const std::optional<Owners>& best() const { return best_; }

 private:
  const PlanRequest& request_;
  std::optional<Owners> best_;
  double cost_ = 0;
};

Placement PlacementOf(const PlanRequest& request, const Owners& owners) {
  Placement placement(*request.shape, request.targets);
  const std::size_t num_experts = request.shape->num_experts;
  for (std::size_t unit = 0; unit < owners.size(); ++unit) {
    placement.Give(LayerId(unit / num_experts), ExpertId(unit % num_experts),
                   TargetId(owners[unit]));
  }
  return placement;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> BestLayerOwners(const PlanRequest& request) {
  Cheapest cheapest(request);
  Order order = ListOrder(request);
  if (order.size() <= kMaxPermuted) {
    do {
      cheapest.Offer(PlaceInOrder(request, order, PlaceLayers));
    } while (std::ranges::next_permutation(order).found);
  } else {
    cheapest.Offer(PlaceInOrder(request, order, PlaceLayers));
    cheapest.Offer(PlaceInOrder(request, FastestFirst(request), PlaceLayers));
  }
  return cheapest.best();
}

Placement PlaceBalanced(const PlanRequest& request) {
  ES_CHECK(request.costs != nullptr && request.costs->speeds.size() == request.targets.size());
  Placement ordered = PlaceOrdered(request);
  if (ordered.num_homeless() > 0) return ordered;
  std::vector<Owners> starts = {Owners(ordered.owners().begin(), ordered.owners().end())};
  const auto add = [&starts](std::optional<Owners> owners) {
    if (owners && !std::ranges::contains(starts, *owners)) starts.push_back(*std::move(owners));
  };
  add(PlaceInOrder(request, ListOrder(request), PlaceOrdered));
  add(PlaceInOrder(request, FastestFirst(request), PlaceOrdered));
  add(BestLayerOwners(request));

  OwnerSearch search(request);
  Cheapest cheapest(request);
  for (const Owners& start : starts) {
    cheapest.Offer(start);
    cheapest.Offer(search.Improve(start, kBudget));
  }
  return PlacementOf(request, *cheapest.best());
}

}  // namespace moe
