// The program's exit statuses. Pure; any thread.
#pragma once

#include "base/error_status.h"

namespace cli {

using base::kExitCapacity;
using base::kExitCommandLine;
using base::kExitInterrupted;
using base::kExitModel;
using base::kExitOk;
using base::kExitRunTime;

constexpr int ExitStatus(base::ErrorKind kind) { return base::StatusOf(kind).exit; }

}  // namespace cli
