#include "moe/ipc/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

namespace moe::ipc {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr std::size_t kReadBytes = 1 << 16;
// More descriptors than one a connection are nobody's right to send.
constexpr std::size_t kMaxDescriptors = 4;

std::unexpected<base::Error> Gone(std::string_view what) {
  return Fail(ErrorKind::kWorkerLost, "the other side {}", what);
}

std::unexpected<base::Error> SystemError(const char* call) {
  return Fail(ErrorKind::kWorkerLost, "{} on the connection failed: {}", call,
              std::strerror(errno));
}

union ControlBuffer {
  cmsghdr alignment;
  std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> bytes;
};

}  // namespace

base::Result<std::pair<Channel, Channel>> Channel::Pair() {
  int ends[2] = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Fail(ErrorKind::kIo, "cannot make a pair of sockets: {}", std::strerror(errno));
  }
  return std::pair(Channel(base::UniqueFd(ends[0])), Channel(base::UniqueFd(ends[1])));
}

base::Result<void> Channel::WaitFor(short events, base::Deadline deadline) const {
  pollfd wait = {.fd = socket_.get(), .events = events, .revents = 0};
  int ready = 0;
  do ready = ::poll(&wait, 1, deadline.poll_timeout());
  while (ready < 0 && errno == EINTR);
  if (ready < 0) return SystemError("poll");
  if (ready == 0) return Fail(ErrorKind::kTimeout, "no answer in time");
  return {};
}

base::Result<void> Channel::Send(FrameType type, std::span<const std::byte> payload,
                                 base::Deadline deadline, int descriptor) {
  const std::vector<std::byte> frame = EncodeFrame(type, next_number_++, payload);
  std::size_t sent = 0;
  ControlBuffer control = {};
  while (sent < frame.size()) {
    iovec part = {.iov_base = const_cast<std::byte*>(frame.data() + sent),
                  .iov_len = frame.size() - sent};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0 && sent == 0) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = CMSG_SPACE(sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    const ssize_t written = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0) {
      sent += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (auto writable = WaitFor(POLLOUT, deadline); !writable) return writable;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Gone("closed the connection");
    } else if (errno != EINTR) {
      return SystemError("sending");
    }
  }
  return {};
}

base::Result<bool> Channel::Read() {
  std::array<std::byte, kReadBytes> buffer;
  ControlBuffer control = {};
  iovec part = {.iov_base = buffer.data(), .iov_len = buffer.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    if (errno == ECONNRESET) return Gone("closed the connection");
    return SystemError("receiving");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors_.emplace_back(descriptor);
    }
  }
  if (descriptors_.size() > kMaxDescriptors) return Gone("sent more descriptors than it may");
  if (got == 0) {
    closed_in_order_ = parser_.num_pending() == 0;
    return Gone(closed_in_order_ ? "closed the connection"
                                 : "closed the connection inside a frame");
  }
  parser_.Feed(std::span(buffer).first(static_cast<std::size_t>(got)));
  return true;
}

base::Result<Frame> Channel::Receive(base::Deadline deadline, std::chrono::microseconds polling) {
  const base::Deadline poll_end = base::Deadline::After(polling);
  bool poll = polling.count() > 0;
  for (;;) {
    auto frame = parser_.Next();
    if (!frame) return base::Forward(frame);
    if (*frame) return std::move(**frame);
    auto read = Read();
    if (!read) return base::Forward(read);
    if (*read) continue;
    poll = poll && !poll_end.passed();
    if (poll) continue;
    if (auto readable = WaitFor(POLLIN, deadline); !readable) return base::Forward(readable);
  }
}

base::UniqueFd Channel::TakeDescriptor() {
  if (descriptors_.empty()) return base::UniqueFd();
  base::UniqueFd taken = std::move(descriptors_.front());
  descriptors_.pop_front();
  return taken;
}

void Channel::Shutdown() const { ::shutdown(socket_.get(), SHUT_RDWR); }

bool Channel::HasRoom() const { return WaitFor(POLLOUT, base::Deadline::After({})).has_value(); }

bool Channel::PeerIsGone() const {
  char byte = 0;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

ShutdownOnStop::ShutdownOnStop(int descriptor, const std::stop_token& stop)
    : socket_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), on_stop_(stop, Shutdown{socket_.get()}) {}

void ShutdownOnStop::Shutdown::operator()() const { ::shutdown(descriptor, SHUT_RDWR); }

}  // namespace moe::ipc
