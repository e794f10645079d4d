// Which execution path a plan needs: single, hot-cold or multi. Pure; any thread.
//
// Let N be the set of non-CPU targets (worker processes and remotes count as such) that own a unit,
// plus the primary if it is not the CPU. Two or more in N: multi. Else every unit on the primary:
// single. Else hot-cold.
#pragma once

#include <string_view>

#include "moe/plan/plan.h"
#include "moe/target/target_config.h"

namespace moe {

enum class PlacementPath { kSingle, kHotCold, kMulti };

// "single", "hot-cold" or "multi".
std::string_view PlacementPathName(PlacementPath path);

// Precondition: `plan` was made for the targets of `config`, in its order.
PlacementPath PathOf(const ExpertSplitPlan& plan, const ExpertSplitTargetConfig& config);

// The one line by which plan, run and serve show a placement:
//   [expert-split] plan cuda:0=5861|cpu=24859 units=30720 path=hot-cold
//   fingerprint=0123456789abcdef
std::string PlacementLine(const ExpertSplitPlan& plan, PlacementPath path);

}  // namespace moe
