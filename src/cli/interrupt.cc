#include "cli/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "cli/exit_status.h"

namespace cli {
namespace {

constexpr int kNobody = -1;

// Where the handler reports Ctrl-C; kNobody outside a GracefulInterrupt and after the first one.
std::atomic<int> wake_fd = kNobody;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

constexpr int kExitTerminated = 128 + SIGTERM;

void OnSignal(int signal) {
  const int saved_errno = errno;
  const int fd = wake_fd.exchange(kNobody);
  const char which = signal == SIGTERM ? 't' : 'c';
  if (fd == kNobody || ::write(fd, &which, 1) != 1) {
    ::_exit(signal == SIGTERM ? kExitTerminated : kExitInterrupted);
  }
  errno = saved_errno;
}

void Handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallSignalHandlers() {
  Handle(SIGINT);
  ::signal(SIGPIPE, SIG_IGN);
}

GracefulInterrupt::GracefulInterrupt(Signals signals)
    : takes_terminate_(signals == Signals::kInterruptAndTerminate) {
  int ends[2] = {};
  // Without a pipe Ctrl-C ends the process at once, which is what it does elsewhere.
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  wake_ = base::UniqueFd(ends[1]);
  watcher_ = std::jthread(
      [stop = stop_, terminated = terminated_, end = base::UniqueFd(ends[0])]() mutable {
        char pressed = 0;
        ssize_t got = 0;
        do got = ::read(end.get(), &pressed, 1);
        while (got < 0 && errno == EINTR);
        *terminated = got == 1 && pressed == 't';
        if (got == 1) stop.request_stop();
      });
  ES_CHECK(wake_fd.exchange(wake_.get()) == kNobody);
  if (takes_terminate_) Handle(SIGTERM);
}

GracefulInterrupt::~GracefulInterrupt() {
  if (takes_terminate_) ::signal(SIGTERM, SIG_DFL);
  wake_fd.store(kNobody);
  // The watcher sees the end of the pipe.
  wake_ = base::UniqueFd();
}

base::Error Interrupted() { return {base::ErrorKind::kCancelled, "interrupted"}; }

}  // namespace cli
