// `bench --lanes`: the ways to place one model on one set of targets and capacities, each really
// run. One thread.
#pragma once

#include <cstdint>
#include <stop_token>

#include "base/result.h"
#include "cli/command.h"
#include "cli/placement.h"
#include "engine/speed.h"

namespace cli {

struct LanesRequest {
  ModelOptions model;
  PlacementOptions placement;
  std::uint32_t threads = 0;
  engine::SpeedRequest speed;
  bool json = false;
};

// Loads and measures the lanes one after another:
//   single    everything on the first target that can hold it, else on cpu
//   layers    whole layers over the list
//   hot-cold  the first device, then cpu
//   remote    the first device, then the CPU in a worker process
//   split     the experts over the list, by the policy that was asked for
// and prints, for each, its speed, the rows that each owner computed and the normalised error of
// its logits against `single`; for one that is not possible here, why. Errors: those of placing,
// loading and measuring a lane that is possible; kCancelled.
base::Result<void> BenchLanes(const Session& session, const LanesRequest& request,
                              std::stop_token stop);

}  // namespace cli
