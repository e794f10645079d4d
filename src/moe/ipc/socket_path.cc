#include "moe/ipc/socket_path.h"

#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/quote.h"

namespace moe::ipc {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Quote;

constexpr mode_t kOwnerOnly = 0600;
constexpr mode_t kOwnerAndGroup = 0660;

std::optional<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (!path.starts_with('/') || path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::string Folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Whether anybody may put another file where `path` is. In a sticky folder only a file's owner may.
base::Result<void> CheckFolder(const std::string& path, ErrorKind kind) {
  const std::string folder = Folder(path);
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) {
    return Fail(kind, "the folder {} of the worker's socket: {}", Quote(folder),
                std::strerror(errno));
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    return Fail(kind,
                "others can write to the folder {} of the worker's socket; choose another one, or "
                "take that right away",
                Quote(folder));
  }
  return {};
}

base::Result<gid_t> GroupNumber(const std::string& group) {
  gid_t number = 0;
  const auto [end, error] = std::from_chars(group.data(), group.data() + group.size(), number);
  if (error == std::errc() && end == group.data() + group.size()) return number;
  if (const ::group* found = ::getgrnam(group.c_str())) return found->gr_gid;
  return Fail(ErrorKind::kInvalidInput, "there is no group {}", Quote(group));
}

bool SomebodyListens(const sockaddr_un& address) {
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int connected =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return connected == 0 || errno == EAGAIN;
}

// Takes away what an earlier worker that was killed left behind.
base::Result<void> RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode) || status.st_uid != ::geteuid()) {
    return Fail(ErrorKind::kInvalidInput,
                "{} exists and is no socket of this user; choose another path", Quote(path));
  }
  if (SomebodyListens(address)) {
    return Fail(ErrorKind::kIo, "another worker listens on {}; choose another path", Quote(path));
  }
  ::unlink(path.c_str());
  return {};
}

}  // namespace

base::Result<Listener> Listener::Open(const std::string& path, const std::string& group) {
  const std::optional<sockaddr_un> address = Address(path);
  if (!address) {
    return Fail(ErrorKind::kInvalidInput,
                "a socket cannot be at {}; give an absolute path of at most {} bytes", Quote(path),
                sizeof(sockaddr_un::sun_path) - 1);
  }
  if (auto safe = CheckFolder(path, ErrorKind::kInvalidInput); !safe) return base::Forward(safe);
  std::optional<gid_t> group_number;
  if (!group.empty()) {
    auto number = GroupNumber(group);
    if (!number) return base::Forward(number);
    group_number = *number;
  }
  if (auto removed = RemoveStale(path, *address); !removed) return base::Forward(removed);

  const auto refused = [&] {
    return Fail(ErrorKind::kIo, "cannot listen on {}: {}", Quote(path), std::strerror(errno));
  };
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return refused();
  const mode_t mask = ::umask(0777 & ~kOwnerOnly);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  const int bind_error = errno;
  ::umask(mask);
  if (bound != 0) {
    errno = bind_error;
    return refused();
  }
  Listener listener(std::move(socket), path);
  if (group_number && (::chown(path.c_str(), static_cast<uid_t>(-1), *group_number) != 0 ||
                       ::chmod(path.c_str(), kOwnerAndGroup) != 0)) {
    return Fail(ErrorKind::kInvalidInput, "cannot give {} to the group {}: {}", Quote(path),
                Quote(group), std::strerror(errno));
  }
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return refused();
  return listener;
}

Listener::Listener(Listener&& other) noexcept
    : socket_(std::move(other.socket_)), path_(std::exchange(other.path_, {})) {}

Listener::~Listener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

base::Result<Channel> Listener::Accept(std::stop_token stop) const {
  // Wakes accept.
  const std::stop_callback on_stop(stop, [this] { ::shutdown(socket_.get(), SHUT_RDWR); });
  for (;;) {
    base::UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "stopped");
    if (connection.valid()) return Channel(std::move(connection));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return Fail(ErrorKind::kIo, "cannot accept a connection on {}: {}", Quote(path_),
                std::strerror(errno));
  }
}

base::Result<Channel> ConnectTo(const std::string& path, base::Deadline deadline) {
  const std::optional<sockaddr_un> address = Address(path);
  struct stat status = {};
  if (!address || ::lstat(path.c_str(), &status) != 0) {
    return Fail(ErrorKind::kWorkerLost,
                "there is no worker at {}; start one there with expert-split worker --listen",
                Quote(path));
  }
  if (auto safe = CheckFolder(path, ErrorKind::kWorkerLost); !safe) return base::Forward(safe);
  if ((status.st_mode & S_IWOTH) != 0) {
    return Fail(ErrorKind::kWorkerLost,
                "others can write to the worker's socket {}; use its group instead (worker "
                "--group)",
                Quote(path));
  }
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) !=
         0) {
    // The queue of connections is full: the worker is busy or stopped.
    if (errno == EAGAIN && !deadline.passed()) {
      ::poll(nullptr, 0, 10);
      continue;
    }
    return Fail(ErrorKind::kWorkerLost, "no worker answers at {}: {}", Quote(path),
                std::strerror(errno));
  }
  return Channel(std::move(socket));
}

}  // namespace moe::ipc
