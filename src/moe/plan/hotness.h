// How often each unit is selected; the planner's view of a routing profile. A value; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/plan/model_shape.h"
#include "moe/target/ids.h"

namespace moe {

class Hotness {
 public:
  // Every expert of a layer equally likely.
  static Hotness Uniform(const ModelShape& shape);

  // `counts` is [num_layers][num_experts]: how often each unit was selected. A layer without any
  // selection counts as uniform. Precondition: the dimensions are those of `shape`.
  static Hotness FromCounts(const ModelShape& shape,
                            const std::vector<std::vector<std::uint64_t>>& counts);

  // True when nothing but the uniform assumption is known.
  bool uniform() const { return uniform_; }
  // Share of the layer's selections that go to this expert; a layer's shares sum to 1.
  double share(LayerId layer, ExpertId expert) const {
    return shares_[layer.index() * num_experts_ + expert.index()];
  }

 private:
  bool uniform_ = true;
  std::size_t num_experts_ = 0;
  std::vector<double> shares_;  // [num_layers, num_experts]
};

}  // namespace moe
