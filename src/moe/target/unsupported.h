// Targets that parse and plan but cannot run yet. Pure; any thread.
#pragma once

#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

// For the commands that compute; planning needs no running target and does not ask. Errors:
// kUnsupported for the first worker(...), rpc: or unix: of the list, by name and
// position.
base::Result<void> RefuseUnsupported(const ExpertSplitTargetConfig& config);

}  // namespace moe
