// Channel: one end of a connection to or from a worker, a Unix stream socket that carries frames.
//
// Every wait has a deadline. What the other side sends is checked by FrameParser; after any error
// the channel is of no more use. Move-only; one thread at a time, but Shutdown from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "moe/ipc/frame.h"

namespace moe::ipc {

class Channel {
 public:
  // Over a connected stream socket.
  explicit Channel(base::UniqueFd socket) : socket_(std::move(socket)) {}
  // Two connected ends. Errors: kIo.
  static base::Result<std::pair<Channel, Channel>> Pair();

  // Sends one frame; a valid `descriptor` goes with it and stays the caller's. Errors: kWorkerLost
  // when the other side is gone; kTimeout when it does not read.
  base::Result<void> Send(FrameType type, std::span<const std::byte> payload,
                          base::Deadline deadline, int descriptor = -1);

  // The next frame. The first `polling` of the wait keeps the core busy, which saves the time that
  // waking up takes. Errors: kWorkerLost when the other side is gone ("closed the connection",
  // also inside a frame) or the frame is malformed; kTimeout.
  base::Result<Frame> Receive(base::Deadline deadline, std::chrono::microseconds polling = {});

  // The oldest descriptor that arrived and was not taken; invalid when there is none.
  base::UniqueFd TakeDescriptor();

  // Ends both directions: a Receive in progress, here or there, sees the end of the connection.
  void Shutdown() const;
  // Whether a Receive found that the other side closed the connection between two frames, as it
  // should.
  bool closed_in_order() const { return closed_in_order_; }
  // Whether a small frame can be sent without waiting for the other side to read.
  bool HasRoom() const;
  // Whether the other side is gone and nothing of it is left to read. Does not wait.
  bool PeerIsGone() const;
  int descriptor() const { return socket_.get(); }

 private:
  // Whether something was read; without it nothing is there yet.
  base::Result<bool> Read();
  base::Result<void> WaitFor(short events, base::Deadline deadline) const;

  base::UniqueFd socket_;
  FrameParser parser_;
  std::uint32_t next_number_ = 0;  // of frames sent
  std::deque<base::UniqueFd> descriptors_;
  bool closed_in_order_ = false;
};

// As long as it lives, a requested stop ends both directions of a channel, wherever the channel
// itself has been moved to and whether or not it is still there.
class ShutdownOnStop {
 public:
  ShutdownOnStop(int descriptor, const std::stop_token& stop);
  ShutdownOnStop(const ShutdownOnStop&) = delete;
  ShutdownOnStop& operator=(const ShutdownOnStop&) = delete;

 private:
  struct Shutdown {
    int descriptor;
    void operator()() const;
  };

  base::UniqueFd socket_;  // of our own
  std::stop_callback<Shutdown> on_stop_;
};

}  // namespace moe::ipc
