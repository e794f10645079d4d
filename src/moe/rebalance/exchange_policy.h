// Which experts should exchange their owners, by the traffic of late. Pure; any thread.
//
// Two experts of one layer exchange their owners when that serves the plan's policy:
//
// - In list order (no costs given) the hotter one belongs to the earlier target. It gains what the
//   earlier target computes more often then: uses, of the horizon's tokens.
// - With a cost model the layer's expected time falls. It gains that time in the horizon.
//
// Against noise: the counts must differ by more than chance explains and by a part of the larger
// one (hysteresis), so that what was exchanged does not come back by itself. Against moves that do
// not pay: within the horizon the gain must exceed what moving the two units costs, in uses
// (kUsesOfAMove) or in the time that the slower owner would compute as many bytes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "moe/compute/placement_mover.h"
#include "moe/plan/cost_model.h"
#include "moe/plan/model_shape.h"
#include "moe/rebalance/traffic_window.h"

namespace moe {

// What a move costs in list order: as much as the two units' weights would be read in so many uses.
inline constexpr double kUsesOfAMove = 16;

struct RebalanceRules {
  double half_life_tokens = 2048;  // of the traffic that is looked at
  double min_tokens = 128;         // of traffic before anything moves
  double horizon_tokens = 8192;    // in which a move must pay back
  double hysteresis = 0.15;        // by which part of the hotter's count the two must differ
  double deviations = 3;           // and by how many standard deviations of chance
};

struct ExchangeRequest {
  const ModelShape* shape = nullptr;
  const MovableUnits* units = nullptr;  // owners as they are
  const TrafficWindow* traffic = nullptr;
  const CostModel* costs = nullptr;  // nullptr: the list's order is the preference
  RebalanceRules rules;
  // Of units that may move, each exchange moving two; one exchange may be chosen all the same.
  base::Bytes budget;
};

// The best ones first; no expert is in two of them.
std::vector<UnitExchange> ChooseExchanges(const ExchangeRequest& request);

}  // namespace moe
