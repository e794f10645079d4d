#include "moe/plan/policy_layers.h"

namespace moe {

Placement PlaceLayers(const PlanRequest& request) {
  const ModelShape& shape = *request.shape;
  Placement placement(shape, request.targets);
  std::size_t target = 0;
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const base::Bytes whole = shape.unit_bytes(LayerId(layer)) * shape.num_experts;
    while (target < request.targets.size() && whole > placement.free(TargetId(target))) ++target;
    if (target == request.targets.size()) break;
    for (std::size_t expert = 0; expert < shape.num_experts; ++expert) {
      placement.Give(LayerId(layer), ExpertId(expert), TargetId(target));
    }
  }
  return placement;
}

}  // namespace moe
