// The one table from kinds of error to exit statuses and HTTP statuses. Pure; any thread.
#pragma once

#include "base/result.h"

namespace base {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCommandLine = 2;  // anything wrong in the command line
inline constexpr int kExitModel = 3;        // a model, plan or profile that cannot be used
inline constexpr int kExitCapacity = 4;     // not enough memory on the targets
inline constexpr int kExitRunTime = 5;      // everything that fails while running
inline constexpr int kExitInterrupted = 130;

struct ErrorStatus {
  int exit = kExitRunTime;
  int http = 500;
};

constexpr ErrorStatus StatusOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidInput:
      return {kExitCommandLine, 400};
    case ErrorKind::kUnsupported:
      return {kExitCommandLine, 400};
    case ErrorKind::kCorruptModel:
      return {kExitModel, 500};
    case ErrorKind::kCapacity:
      return {kExitCapacity, 503};
    case ErrorKind::kCancelled:
      return {kExitInterrupted, 499};
    case ErrorKind::kTimeout:
      return {kExitRunTime, 504};
    case ErrorKind::kWorkerLost:
      return {kExitRunTime, 503};
    case ErrorKind::kBusy:
      return {kExitRunTime, 429};
    case ErrorKind::kUnavailable:
      return {kExitRunTime, 503};
    case ErrorKind::kIo:
    case ErrorKind::kDeviceFailure:
    case ErrorKind::kInternal:
      return {kExitRunTime, 500};
  }
  return {};
}

}  // namespace base
