// Policy `layers`: whole layers, contiguous spans, in list order; the classic layer placement, kept
// as a comparison lane. Pure; any thread.
//
// A layer that does not fit wholly on a target goes to the next one, and the target before it gets
// nothing more. Of all contiguous spans in list order this covers the most layers, so it fails only
// where no such placement exists.
#pragma once

#include "moe/plan/placement.h"
#include "moe/plan/plan.h"

namespace moe {

// Layers after the last one that a target has room for are left without an owner.
// Precondition: what ExpertSplitPlan::Make checks of a request.
Placement PlaceLayers(const PlanRequest& request);

}  // namespace moe
