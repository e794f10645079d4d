#include "moe/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace moe {

LayerCost::LayerCost(const ModelShape& shape, LayerId layer, const CostModel& costs)
    : primary_(costs.primary.index()),
      num_experts_(shape.num_experts),
      num_used_(shape.experts_per_token),
      rows_(costs.prompt_rows),
      prompt_weight_(costs.prompt_tokens_per_generated) {
  ES_CHECK(primary_ < costs.speeds.size());
  const double bytes = num_used_ * static_cast<double>(shape.unit_bytes(layer).count());
  for (const TargetSpeed& speed : costs.speeds) {
    owners_.push_back({.decode = bytes / speed.decode_bytes_per_second,
                       .prompt = bytes / speed.prompt_bytes_per_second,
                       .fixed = speed.layer_seconds});
  }
  leave_ = std::exchange(owners_[primary_].fixed, 0);
}

LayerCost::Phase LayerCost::Decode(std::span<const OwnerLoad> loads) const {
  Phase phase;
  for (std::size_t t = 0; t < owners_.size(); ++t) {
    const double share = loads[t].share;
    const double seconds =
        std::min(1.0, num_used_ * share) * owners_[t].fixed + share * owners_[t].decode;
    phase.slowest = std::max(phase.slowest, seconds);
    phase.squares += seconds * seconds;
  }
  return phase;
}

LayerCost::Phase LayerCost::Prompt(std::span<const OwnerLoad> loads) const {
  Phase phase;
  for (std::size_t t = 0; t < owners_.size(); ++t) {
    const double share = loads[t].share;
    const double seconds = std::min(1.0, rows_ * num_used_ * share) * owners_[t].fixed / rows_ +
                           share * owners_[t].prompt;
    phase.slowest = std::max(phase.slowest, seconds);
    phase.squares += seconds * seconds;
  }
  return phase;
}

ExpectedSeconds LayerCost::Seconds(std::span<const OwnerLoad> loads) const {
  const double leave = LeaveSeconds(loads);
  return {.decode = Decode(loads).slowest + leave, .prompt = Prompt(loads).slowest + leave / rows_};
}

double LayerCost::Score(std::span<const OwnerLoad> loads, double smoothing) const {
  const double leave = LeaveSeconds(loads);
  const Phase decode = Decode(loads);
  const Phase prompt = Prompt(loads);
  return decode.slowest + leave + smoothing * std::sqrt(decode.squares) +
         prompt_weight_ * (prompt.slowest + leave / rows_ + smoothing * std::sqrt(prompt.squares));
}

ExpectedSeconds ExpectSeconds(const ModelShape& shape, const Hotness& hotness,
                              std::span<const std::uint8_t> owners, const CostModel& costs) {
  ES_CHECK(owners.size() == shape.num_units());
  ExpectedSeconds sum;
  std::vector<OwnerLoad> loads(costs.speeds.size());
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    std::ranges::fill(loads, OwnerLoad());
    for (std::size_t e = 0; e < shape.num_experts; ++e) {
      OwnerLoad& load = loads[owners[l * shape.num_experts + e]];
      load.share += hotness.share(LayerId(l), ExpertId(e));
      ++load.units;
    }
    const ExpectedSeconds seconds = LayerCost(shape, LayerId(l), costs).Seconds(loads);
    sum.decode += seconds.decode;
    sum.prompt += seconds.prompt;
  }
  return sum;
}

TargetId FastestTarget(const CostModel& costs) {
  const auto fastest =
      std::ranges::max_element(costs.speeds, {}, &TargetSpeed::decode_bytes_per_second);
  return TargetId(static_cast<std::size_t>(fastest - costs.speeds.begin()));
}

}  // namespace moe
