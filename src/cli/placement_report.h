// A loaded model's placement as the server shows it.
#pragma once

#include "cli/loaded_model.h"
#include "moe/profile/routing_recorder.h"
#include "moe/rebalance/rebalancer.h"
#include "server/placement_report.h"

namespace cli {

// `recorder` has counted since the model was loaded; `rebalancer` is nullptr when experts stay
// where they are. Any thread, while the model computes too.
server::PlacementReport ReportOf(const LoadedModel& model, const moe::RoutingRecorder& recorder,
                                 const moe::Rebalancer* rebalancer);

}  // namespace cli
