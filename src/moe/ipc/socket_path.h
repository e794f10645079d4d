// Where a worker that somebody else started is found: a socket in the file system.
//
// The socket decides who may use the worker, so both sides look at its permissions: a worker makes
// it for its own user, or for one group; a socket or folder in which anybody else could put another
// one is refused. One thread at a time.
#pragma once

#include <stop_token>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "moe/ipc/channel.h"

namespace moe::ipc {

// A socket that waits for connections. The file goes with it.
class Listener {
 public:
  // Makes `path` with mode 0600, or, with a `group` (name or number), 0660 and that group. A socket
  // of this user that nobody listens on any more is replaced. Errors: kInvalidInput naming path and
  // remedy for a path that is too long, relative, taken by a file, in a folder that others may
  // write to, or in none; for an unknown group; kIo when somebody listens there or the system
  // refuses.
  static base::Result<Listener> Open(const std::string& path, const std::string& group);

  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  // Waits for the next connection. Errors: kCancelled once `stop` is requested; kIo.
  base::Result<Channel> Accept(std::stop_token stop) const;

 private:
  Listener(base::UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  base::UniqueFd socket_;
  std::string path_;
};

// Errors: kWorkerLost naming the path when nobody listens there, and when the socket or its folder
// can be written by others; kTimeout.
base::Result<Channel> ConnectTo(const std::string& path, base::Deadline deadline);

}  // namespace moe::ipc
