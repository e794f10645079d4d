// Target lists that parse and plan but cannot run. Pure; any thread.
#pragma once

#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

// For the commands that compute; planning needs no running target and does not ask. Errors:
// kUnsupported for the second target at the same RPC server, by name and position.
base::Result<void> RefuseUnsupported(const ExpertSplitTargetConfig& config);

}  // namespace moe
