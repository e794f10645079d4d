// A relay between a client and a server of the loopback, which counts what passes.
//
// What is asked of it may be asked from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "base/unique_fd.h"

namespace test {

// A listening socket on a port of the loopback: a free one, or `port`, once nobody listens there.
struct Listening {
  explicit Listening(int wanted_port = 0);

  base::UniqueFd socket;
  int port = 0;
};

class Relay {
 public:
  // To 127.0.0.1:`server_port`, from a free port.
  explicit Relay(int server_port);

  int port() const { return listening_.port; }
  // Connections that clients made.
  std::size_t connections() const { return connections_; }
  // Times that the server answered after the client had sent something.
  std::size_t round_trips() const { return round_trips_; }
  std::uint64_t bytes_to_server() const { return bytes_to_server_; }

 private:
  void Run(const std::stop_token& stop);

  Listening listening_;
  int server_port_;
  std::atomic<std::size_t> connections_ = 0;
  std::atomic<std::size_t> round_trips_ = 0;
  std::atomic<std::uint64_t> bytes_to_server_ = 0;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace test
