// TrafficWindow: what the routers have selected lately.
//
// Counts that fade: each token halves them by its part of the half-life, so that they follow the
// traffic and forget what was before it. Measured in tokens, not in time: a server that waits
// forgets nothing. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/profile/profile.h"
#include "moe/target/ids.h"

namespace moe {

class TrafficWindow {
 public:
  // Precondition: half_life_tokens is above 0.
  TrafficWindow(const ModelShape& shape, double half_life_tokens);

  // `total` is everything counted so far, as RoutingRecorder::Snapshot gives it: at least what it
  // was at the call before.
  void Observe(const RoutingProfile& total);

  // That the counts are of, faded as they are.
  double tokens() const { return tokens_; }
  // Faded selections of a unit.
  double count(LayerId layer, ExpertId expert) const {
    return counts_[layer.index() * num_experts_ + expert.index()];
  }
  // Of the layer's selections, 0 to 1; 0 before anything was observed.
  double share(LayerId layer, ExpertId expert) const;
  // For plans. Precondition: `shape` is that of the constructor.
  Hotness HotnessNow(const ModelShape& shape) const;

 private:
  std::size_t num_experts_ = 0;
  std::size_t num_used_ = 1;
  double half_life_tokens_ = 1;
  double tokens_ = 0;
  std::vector<double> counts_;  // [num_layers, num_experts]
  std::optional<RoutingProfile> last_;
};

}  // namespace moe
