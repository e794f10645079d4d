// The base::Log that writes to stderr: one line a message, warnings marked. Any thread.
#pragma once

#include "base/log.h"

namespace cli {

// Messages below `least` are dropped.
base::Log MakeStderrLog(base::LogLevel least);

}  // namespace cli
