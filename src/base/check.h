// CHECK for our own invariants: prints the condition and aborts.
//
// Only for faults of our own code. A condition that argv, an HTTP request, a model, plan or profile
// file, or a worker's frame can make false is an Error (base/result.h), never a CHECK.
#pragma once

namespace base {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace base

#define ES_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::base::CheckFailed(#condition, __FILE__, __LINE__))
