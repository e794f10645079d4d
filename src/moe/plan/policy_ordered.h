// Policy `ordered`: targets are filled in list order to their capacity, hottest units first. Pure;
// any thread.
//
// Uniform hotness: every target owns q or q + 1 units of each layer, with one q per target, and so
// do the first n targets together for every n; so rounding never gathers on one target or layer.
// What a target leaves unused is less than one unit.
//
// With a profile: units go in the order of their share of their layer's traffic; one that is too
// large for what is left is passed over and a colder, smaller one may take its place. With
// `layer_floor` the first target starts with the `experts_per_token` hottest units of each layer,
// rank by rank, as far as its capacity goes.
//
// Where bounded targets are so tight that units of different sizes do not fit this way, a repair
// pass finds them room (plan/repair.h); it may then part from the rules above rather than refuse a
// model that fits.
#pragma once

#include "moe/plan/placement.h"
#include "moe/plan/plan.h"

namespace moe {

// Units that no target has room for are left without an owner.
// Precondition: what ExpertSplitPlan::Make checks of a request.
Placement PlaceOrdered(const PlanRequest& request);

}  // namespace moe
