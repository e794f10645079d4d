// The one table from kinds of error to exit statuses. Pure; any thread.
#pragma once

#include "base/result.h"

namespace cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCommandLine = 2;  // anything wrong in the command line
inline constexpr int kExitModel = 3;        // a model, plan or profile that cannot be used
inline constexpr int kExitCapacity = 4;     // not enough memory on the targets
inline constexpr int kExitRunTime = 5;      // everything that fails while running
inline constexpr int kExitInterrupted = 130;

constexpr int ExitStatus(base::ErrorKind kind) {
  switch (kind) {
    case base::ErrorKind::kInvalidInput:
    case base::ErrorKind::kUnsupported:
      return kExitCommandLine;
    case base::ErrorKind::kCorruptModel:
      return kExitModel;
    case base::ErrorKind::kCapacity:
      return kExitCapacity;
    case base::ErrorKind::kIo:
    case base::ErrorKind::kWorkerLost:
    case base::ErrorKind::kTimeout:
    case base::ErrorKind::kDeviceFailure:
    case base::ErrorKind::kInternal:
      return kExitRunTime;
    case base::ErrorKind::kCancelled:
      return kExitInterrupted;
  }
  return kExitRunTime;
}

}  // namespace cli
