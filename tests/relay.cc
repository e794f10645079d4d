#include "relay.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <list>
#include <span>
#include <vector>

namespace test {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<std::uint16_t>(port));
  return address;
}

void SetOption(const base::UniqueFd& socket, int level, int option) {
  const int on = 1;
  EXPECT_EQ(::setsockopt(socket.get(), level, option, &on, sizeof on), 0);
}

struct Connection {
  base::UniqueFd client;
  base::UniqueFd server;
  bool asked = false;  // the client has sent something since the server last did
};

// Passes on what can be read; its bytes, 0 at the end.
std::size_t Pass(const base::UniqueFd& from, const base::UniqueFd& to,
                 std::span<std::byte> buffer) {
  const ssize_t got = ::recv(from.get(), buffer.data(), buffer.size(), 0);
  if (got <= 0) return 0;
  auto rest = buffer.first(static_cast<std::size_t>(got));
  while (!rest.empty()) {
    const ssize_t sent = ::send(to.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent <= 0) return 0;
    rest = rest.subspan(static_cast<std::size_t>(sent));
  }
  return static_cast<std::size_t>(got);
}

}  // namespace

Listening::Listening(int wanted_port) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR);
  sockaddr_in address = Loopback(wanted_port);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket.get(), generic, size), 0);
  EXPECT_EQ(::listen(socket.get(), 8), 0);
  EXPECT_EQ(::getsockname(socket.get(), generic, &size), 0);
  port = ::ntohs(address.sin_port);
}

Relay::Relay(int server_port)
    : server_port_(server_port), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void Relay::Run(const std::stop_token& stop) {
  std::list<Connection> open;
  std::vector<std::byte> buffer(1 << 20);
  while (!stop.stop_requested()) {
    std::vector<pollfd> waits = {{.fd = listening_.socket.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& one : open) {
      waits.push_back({.fd = one.client.get(), .events = POLLIN, .revents = 0});
      waits.push_back({.fd = one.server.get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(waits.data(), waits.size(), 10) <= 0) continue;
    auto wait = waits.begin() + 1;
    for (auto next = open.begin(); next != open.end();) {
      const auto one = next++;
      const bool from_client = (wait++)->revents != 0;
      const bool from_server = (wait++)->revents != 0;
      std::size_t bytes = 1;
      if (from_client) {
        bytes = Pass(one->client, one->server, buffer);
        bytes_to_server_ += bytes;
        one->asked = true;
      } else if (from_server) {
        bytes = Pass(one->server, one->client, buffer);
        if (bytes > 0 && one->asked) ++round_trips_;
        one->asked = false;
      }
      if (bytes == 0) open.erase(one);
    }
    if (waits.front().revents == 0) continue;
    ++connections_;
    Connection made{.client = base::UniqueFd(
                        ::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)),
                    .server = base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    sockaddr_in address = Loopback(server_port_);
    if (::connect(made.server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      continue;
    }
    SetOption(made.client, IPPROTO_TCP, TCP_NODELAY);
    SetOption(made.server, IPPROTO_TCP, TCP_NODELAY);
    open.push_back(std::move(made));
  }
}

}  // namespace test
