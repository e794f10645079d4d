// Policy `balanced`: the owners that are expected to compute fastest (plan/cost_model.h), within
// the capacities. Pure; any thread.
//
// The list's order does not matter, the targets' speeds do. Several placements are made, by list
// order and by speed, of experts and of whole layers, and improved by a search (owner_search.h);
// the best of all is taken. So it never costs more than `ordered` or `layers` on the same request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moe/plan/placement.h"
#include "moe/plan/plan.h"

namespace moe {

// Units that no target has room for are left without an owner.
// Precondition: what ExpertSplitPlan::Make checks of a request.
Placement PlaceBalanced(const PlanRequest& request);

// Policy `layers` over the request's targets in the order that is expected to be fastest: the best
// that whole layers can do with the same capacities. [num_layers * num_experts]; nothing when whole
// layers fit in no order. With more than seven targets only some orders are tried.
std::optional<std::vector<std::uint8_t>> BestLayerOwners(const PlanRequest& request);

}  // namespace moe
