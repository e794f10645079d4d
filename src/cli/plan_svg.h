// A plan as a picture. Values; any thread.
#pragma once

#include <string>

#include "moe/plan/hotness.h"
#include "moe/plan/plan.h"

namespace cli {

// An SVG document: a row a layer, a column an expert, coloured by owner and the fuller the more of
// its layer's traffic an expert draws, with a legend of the targets. Experts are in the router's
// order. Readable from 4 x 8 to 100 x 512.
std::string PlanSvg(const moe::ExpertSplitPlan& plan, const moe::Hotness& hotness);

}  // namespace cli
