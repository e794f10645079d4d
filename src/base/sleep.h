// Waiting that a request to stop cuts short.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace base {

// Sleeps for `span`, or until `stop` is requested: then, or when it was before, false. Any thread.
inline bool SleepUnlessStopped(std::chrono::milliseconds span, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, span, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace base
