#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/unique_fd.h"

namespace base {
namespace {

constexpr int kFirstPassed = 3;

// The thread that forks. It is never joined: the children live at most as long as it does.
class ForkingThread {
 public:
  static ForkingThread& Instance() {
    static std::mutex mutex;
    static ForkingThread* instance = nullptr;
    const std::lock_guard lock(mutex);
    // A forked copy of this process has no thread of it.
    if (instance == nullptr || instance->process_ != ::getpid()) instance = new ForkingThread;
    return *instance;
  }

  pid_t Fork(std::function<pid_t()> fork) {
    std::packaged_task<pid_t()> task(std::move(fork));
    std::future<pid_t> child = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
    return child.get();
  }

 private:
  ForkingThread() {
    std::thread([this] { Run(); }).detach();
  }

  void Run() {
    for (;;) {
      std::packaged_task<pid_t()> task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<pid_t()>> tasks_;
};

// Everything that the child needs between fork and exec, where it may not allocate.
struct Prepared {
  const char* program = nullptr;
  std::vector<char*> argv;
  std::vector<int> descriptors;  // out of the way of where they are to go
  int null = -1;
  int report = -1;  // takes errno when exec fails; closed by exec
  pid_t parent = -1;
};

[[noreturn]] void Report(int report) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void RunProgram(const Prepared& prepared) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before that.
  if (::getppid() != prepared.parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (::dup2(prepared.null, STDIN_FILENO) < 0 || ::dup2(prepared.null, STDOUT_FILENO) < 0) {
    Report(prepared.report);
  }
  int next = kFirstPassed;
  for (const int fd : prepared.descriptors) {
    if (::dup2(fd, next++) < 0) Report(prepared.report);
  }
  // What libraries opened without close-on-exec is not for the child. The report is; it closes
  // itself.
  if (next < prepared.report) {
    ::syscall(SYS_close_range, next, prepared.report - 1, 0);
  }
  ::syscall(SYS_close_range, prepared.report + 1, UINT_MAX, 0);
  ::execv(prepared.program, prepared.argv.data());
  Report(prepared.report);
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const ChildProcessOptions& options) {
  const auto fail = [&](int error) {
    return Fail(ErrorKind::kIo, "cannot start '{}': {}", options.program, std::strerror(error));
  };
  const int count = static_cast<int>(options.descriptors.size());
  const int clear = kFirstPassed + count;
  std::vector<UniqueFd> owned;
  Prepared prepared{.program = options.program.c_str(), .parent = ::getpid()};
  for (const int fd : options.descriptors) {
    owned.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, clear));
    if (!owned.back().valid()) return fail(errno);
    prepared.descriptors.push_back(owned.back().get());
  }
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2] = {};
  if (!null.valid() || ::pipe2(ends, O_CLOEXEC) != 0) return fail(errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  UniqueFd report(::fcntl(write_end.get(), F_DUPFD_CLOEXEC, clear));
  if (!report.valid()) return fail(errno);
  write_end = UniqueFd();
  prepared.null = null.get();
  prepared.report = report.get();
  std::vector<std::string> arguments = options.arguments;
  for (std::string& argument : arguments) prepared.argv.push_back(argument.data());
  prepared.argv.push_back(nullptr);

  int fork_error = 0;
  const pid_t pid = ForkingThread::Instance().Fork([&] {
    const pid_t child = ::fork();
    if (child == 0) RunProgram(prepared);
    fork_error = errno;
    return child;
  });
  if (pid < 0) return fail(fork_error);
  report = UniqueFd();
  ChildProcess child(pid);
  int error = 0;
  ssize_t got = 0;
  do got = ::read(read_end.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  if (got != 0) {
    child.WaitForEnd(Deadline::Never());
    return fail(got == sizeof error ? error : EIO);
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), end_(std::move(other.end_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(end_, other.end_);
  return *this;
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  WaitForEnd(Deadline::Never());
}

bool ChildProcess::WaitForEnd(Deadline deadline) {
  if (pid_ < 0) return true;
  if (!deadline.never()) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    pollfd wait = {.fd = process.get(), .events = POLLIN, .revents = 0};
    int ready = 0;
    do ready = ::poll(&wait, 1, deadline.poll_timeout());
    while (ready < 0 && errno == EINTR);
    if (ready == 0) return false;
  }
  int status = 0;
  pid_t reaped = 0;
  do reaped = ::waitpid(pid_, &status, 0);
  while (reaped < 0 && errno == EINTR);
  Reaped(reaped == pid_ ? status : 0);
  return true;
}

void ChildProcess::Reaped(int status) {
  pid_ = -1;
  end_ = WIFSIGNALED(status) ? std::format("was killed by signal {}", WTERMSIG(status))
                             : std::format("exited with status {}", WEXITSTATUS(status));
}

Result<std::string> OwnExecutable() {
  std::string path(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) {
    return Fail(ErrorKind::kIo, "cannot find this program's own file: {}", std::strerror(errno));
  }
  path.resize(static_cast<std::size_t>(length));
  return path;
}

}  // namespace base
