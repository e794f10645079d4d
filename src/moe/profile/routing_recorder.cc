#include "moe/profile/routing_recorder.h"

#include <utility>

namespace moe {

RoutingRecorder::RoutingRecorder(ModelIdentity model, std::string text)
    : profile_(std::move(model), std::move(text)) {}

base::Result<void> RoutingRecorder::CountStep(std::span<const std::int32_t> ids,
                                              std::size_t num_tokens, std::size_t num_used) {
  const std::lock_guard lock(mutex_);
  return profile_.CountStep(ids, num_tokens, num_used);
}

RoutingProfile RoutingRecorder::Snapshot() const {
  const std::lock_guard lock(mutex_);
  return profile_;
}

}  // namespace moe
