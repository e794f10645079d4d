// Waiting for another process, in tests.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/deadline.h"

namespace test {

// Whether `condition` comes true in time.
inline bool Eventually(const std::function<bool()>& condition) {
  const base::Deadline deadline = base::Deadline::After(std::chrono::seconds(60));
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace test
