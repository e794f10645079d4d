// Counts what the routers select while a model runs, for others to look at meanwhile.
//
// The thread that runs the model counts; Snapshot may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "base/result.h"
#include "moe/plan/model_shape.h"
#include "moe/profile/profile.h"

namespace moe {

class RoutingRecorder {
 public:
  // As RoutingProfile's constructor.
  RoutingRecorder(ModelIdentity model, std::string text);

  // As RoutingProfile::CountStep.
  base::Result<void> CountStep(std::span<const std::int32_t> ids, std::size_t num_tokens,
                               std::size_t num_used);

  // Everything counted so far; never a part of a step.
  RoutingProfile Snapshot() const;

 private:
  mutable std::mutex mutex_;
  RoutingProfile profile_;  // guarded by mutex_
};

}  // namespace moe
