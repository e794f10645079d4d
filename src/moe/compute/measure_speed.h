// How fast a target of this process computes experts: a short measurement for the planner.
//
// Experts of one layer are brought to the target as for running, some 128 MiB of them, and computed
// as routers would have it: one row at a time, and in a batch of a prompt. What is fixed about a
// layer and what grows with the weights is told apart by batches that select all of a token's
// experts there and only one. Takes well under a second on a device that is worth it. Call from one
// thread, and from none that computes at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "gg/devices.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/repack.h"
#include "moe/plan/cost_model.h"
#include "moe/plan/model_shape.h"

namespace moe {

struct SpeedRequest {
  const ModelShape* shape = nullptr;
  std::shared_ptr<const ExpertWeights> weights;  // mapped; of the first layer some are read
  gg::Device device;
  // Whether a CPU computes with packed weights; kAuto packs the measured ones whatever room there
  // is.
  Repack repack = Repack::kAuto;
  std::size_t num_threads = 1;      // of a CPU
  std::uint32_t prompt_rows = 512;  // rows of a prompt's batch
};

// Errors: kDeviceFailure or kCapacity naming the device; kUnsupported and kCorruptModel naming the
// tensor that it cannot compute with.
base::Result<TargetSpeed> MeasureSpeed(const SpeedRequest& request);

}  // namespace moe
