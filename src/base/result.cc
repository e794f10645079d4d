#include "base/result.h"

namespace base {

std::string_view ErrorKindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidInput:
      return "invalid_input";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kCapacity:
      return "capacity";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kCorruptModel:
      return "corrupt_model";
    case ErrorKind::kWorkerLost:
      return "worker_lost";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kCancelled:
      return "cancelled";
    case ErrorKind::kDeviceFailure:
      return "device_failure";
    case ErrorKind::kBusy:
      return "busy";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "internal";
}

}  // namespace base
