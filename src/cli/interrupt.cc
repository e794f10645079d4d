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

void OnInterrupt(int) {
  const int saved_errno = errno;
  const int fd = wake_fd.exchange(kNobody);
  constexpr char kPressed = 'c';
  if (fd == kNobody || ::write(fd, &kPressed, 1) != 1) ::_exit(kExitInterrupted);
  errno = saved_errno;
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

GracefulInterrupt::GracefulInterrupt() {
  int ends[2] = {};
  // Without a pipe Ctrl-C ends the process at once, which is what it does elsewhere.
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  wake_ = base::UniqueFd(ends[1]);
  watcher_ = std::jthread([stop = stop_, end = base::UniqueFd(ends[0])]() mutable {
    char pressed = 0;
    ssize_t got = 0;
    do got = ::read(end.get(), &pressed, 1);
    while (got < 0 && errno == EINTR);
    if (got == 1) stop.request_stop();
  });
  ES_CHECK(wake_fd.exchange(wake_.get()) == kNobody);
}

GracefulInterrupt::~GracefulInterrupt() {
  wake_fd.store(kNobody);
  // The watcher sees the end of the pipe.
  wake_ = base::UniqueFd();
}

base::Error Interrupted() { return {base::ErrorKind::kCancelled, "interrupted"}; }

}  // namespace cli
