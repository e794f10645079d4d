// A loaded model's placement as the server shows it.
#pragma once

#include "cli/loaded_model.h"
#include "moe/profile/routing_recorder.h"
#include "server/placement_report.h"

namespace cli {

// `recorder` has counted since the model was loaded. Any thread, while the model computes too.
server::PlacementReport ReportOf(const LoadedModel& model, const moe::RoutingRecorder& recorder);

}  // namespace cli
