// A child process that never outlives its owner.
//
// Start runs a program with nothing of this process but the descriptors it is given, stderr and the
// environment; stdin and stdout are /dev/null. The child is killed (SIGKILL) and reaped when its
// owner goes, and killed by the kernel when this process ends in any way, kill -9 included. The
// kernel ties that to the thread that forks, so all children are forked by one thread that lives as
// long as the process. Move-only; one thread at a time, any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace base {

struct ChildProcessOptions {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // argv; the first is the name it is shown by
  // Descriptors that the child gets, as 3, 4, ... in this order. They stay the caller's.
  std::vector<int> descriptors;
};

class ChildProcess {
 public:
  // Returns once the program runs. Errors: kIo naming the program and the reason when it cannot be
  // started.
  static Result<ChildProcess> Start(const ChildProcessOptions& options);

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  // Kills and reaps.
  ~ChildProcess() { Kill(); }

  // -1 when there is none, or it was reaped.
  pid_t pid() const { return pid_; }
  // Kills it, stopped or not, unless it has ended, and reaps it.
  void Kill();
  // Waits for its end and reaps it; false when the deadline passed first.
  bool WaitForEnd(Deadline deadline);
  // How it ended, for messages: "exited with status 3", "was killed by signal 9"; empty while it
  // is not known to have ended.
  const std::string& end() const { return end_; }

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void Reaped(int status);

  pid_t pid_ = -1;
  std::string end_;
};

// The path of this process's own executable. Errors: kIo.
Result<std::string> OwnExecutable();

}  // namespace base
