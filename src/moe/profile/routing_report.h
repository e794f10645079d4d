// What a routing profile says: how uneven the traffic of each layer is, beside what a uniform
// router would show after as many tokens. The hottest of few samples always look hot; with the null
// beside the figures nobody trusts noise. Values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "moe/profile/profile.h"

namespace moe {

// Of a layer's experts, rounded up to whole ones.
inline constexpr std::array<double, 3> kHotFractions = {0.10, 0.25, 0.50};

// The hottest experts of a layer.
struct HotShare {
  double fraction = 0;          // one of kHotFractions
  std::size_t num_experts = 0;  // that these are
  double share = 0;             // of the layer's selections that they draw
  double uniform_share = 0;     // the same for a uniform router, on average
};

struct LayerRouting {
  std::array<HotShare, kHotFractions.size()> hottest;  // in the order of kHotFractions
  double entropy = 0;          // of the selections, bits; log2(num_experts) when all are alike
  double uniform_entropy = 0;  // the same for a uniform router, on average
  // The entropy is lower than a uniform router's by more than chance explains (four standard
  // deviations). False says that the profile is no better than none.
  bool beyond_uniform = false;
};

struct RoutingReport {
  std::vector<LayerRouting> layers;
  // Means over the layers; beyond_uniform when one layer is, or all of them together.
  LayerRouting mean;
};

// The uniform router is drawn at random, with a fixed seed: the same profile gives the same report.
// It selects for every token as many experts as the profile's tokens do on average. What weights a
// merge gave is not known here: a profile that was merged with weights above 1 has more noise than
// its null. A layer without any selection counts as uniform.
RoutingReport ReportRouting(const RoutingProfile& profile);

}  // namespace moe
