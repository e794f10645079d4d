// The last resort for units that a policy found no room for. Pure; any thread.
//
// Units of different sizes leave gaps: a target may have less than a large unit free while another
// target's small units would fit elsewhere. Largest units first, each goes to a target with room
// (one that keeps its units even over the layers if there is one, else the earliest), or takes the
// place of a colder smaller unit that moves to another target's gap.
#pragma once

#include "moe/plan/hotness.h"
#include "moe/plan/placement.h"

namespace moe {

// Does nothing when every unit has an owner or when all the free bytes together are too few.
void PlaceHomeless(const Hotness& hotness, Placement& placement);

}  // namespace moe
