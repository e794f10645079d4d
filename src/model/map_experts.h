// The routed experts where the model file is mapped. Any thread.
#pragma once

#include <memory>

#include "gg/gguf_file.h"
#include "model/family.h"
#include "moe/compute/expert_weights.h"

namespace model {

// With the file's scales. `file` was described as `description` and outlives what comes back.
std::shared_ptr<const moe::ExpertWeights> MapExperts(const gg::GgufFile& file,
                                                     const ModelDescription& description);

}  // namespace model
