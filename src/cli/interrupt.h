// Ctrl-C.
//
// Outside a GracefulInterrupt the first Ctrl-C ends the process at once with status 130. Inside one
// it only requests a stop, so that the command can end between steps, print what it has and return
// Interrupted(); a second Ctrl-C ends the process. Install once, before other threads start. A
// server takes SIGTERM, which service managers send, the same way.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cli {

// Handles SIGINT as above and ignores SIGPIPE, so that a closed pipe or socket is an error value.
void InstallSignalHandlers();

class GracefulInterrupt {
 public:
  enum class Signals { kInterrupt, kInterruptAndTerminate };

  // At most one at a time.
  explicit GracefulInterrupt(Signals signals = Signals::kInterrupt);
  GracefulInterrupt(const GracefulInterrupt&) = delete;
  GracefulInterrupt& operator=(const GracefulInterrupt&) = delete;
  ~GracefulInterrupt();

  // Requested once Ctrl-C was pressed; outlives this object. Any thread.
  std::stop_token token() const { return stop_.get_token(); }
  // Whether it was SIGTERM that requested the stop.
  bool terminated() const { return *terminated_; }

 private:
  std::stop_source stop_;
  std::shared_ptr<std::atomic<bool>> terminated_ = std::make_shared<std::atomic<bool>>(false);
  bool takes_terminate_ = false;
  base::UniqueFd wake_;  // the handler writes here, because it may not request a stop itself
  std::jthread watcher_;
};

// What an interrupted command returns: kCancelled, exit status 130.
base::Error Interrupted();

}  // namespace cli
