// Experts on devices behind ggml's own RPC server, and what becomes of a run when that server ends,
// hangs or is none.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <format>
#include <fstream>
#include <sstream>

#include "base/unique_fd.h"
#include "worker_fixture.h"

namespace test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A listening socket on a port of the loopback that was free.
struct Listening {
  Listening() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket.get(), generic, size), 0);
    EXPECT_EQ(::listen(socket.get(), 8), 0);
    EXPECT_EQ(::getsockname(socket.get(), generic, &size), 0);
    port = ::ntohs(address.sin_port);
  }

  base::UniqueFd socket;
  int port = 0;
};

// Whether somebody listens on the port. To connect would be to use the server.
bool Listens(int port) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state;
    fields >> number >> local >> remote >> state;
    if (state == "0A" && local.ends_with(std::format(":{:04X}", port))) return true;
  }
  return false;
}

class RpcTest : public WorkerTest {
 protected:
  base::ChildProcess StartServer() {
    if (port_ == 0) port_ = Listening().port;
    auto server =
        base::ChildProcess::Start({.program = GGML_RPC_SERVER,
                                   .arguments = {"ggml-rpc-server", "--host", "127.0.0.1", "--port",
                                                 std::to_string(port_), "--threads", "1"}});
    EXPECT_TRUE(server) << server.error().message;
    EXPECT_TRUE(Eventually([this] { return Listens(port_); }));
    return std::move(*server);
  }
  std::string target() const { return std::format("rpc:127.0.0.1:{}", port_); }

  double Perplexity(const std::string& targets) const {
    const std::string text = folder_ + "/text";
    EXPECT_TRUE(base::WriteFileAtomically(text, std::string(300, 'a')));
    const ProgramResult result =
        RunExpertSplit({"perplexity", "--model", model_, "--threads", "1", "--targets", targets,
                        "--text", text, "--ctx", "128", "--json"},
                       {kNoVulkan});
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, false)["nll"].get<double>();
  }
  // A run that has loaded its experts, for something to happen to the server.
  base::ChildProcess StartSplitRun() {
    base::ChildProcess run = StartRun({"--targets", target() + "=50%,cpu", "-n", "400", "--ctx",
                                       "512", "--worker-timeout", "2", "--json"});
    EXPECT_TRUE(HasLoaded()) << Written("err");
    return run;
  }
  // Every token was generated, and the server is named as lost.
  void ExpectLost(base::ChildProcess& run) {
    ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
    EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
    const Json lost = Json::parse(Written("out"), nullptr, false);
    EXPECT_THAT(lost["lost"], ElementsAre(target()));
    EXPECT_EQ(lost["tokens"].size(), 400U);
    EXPECT_EQ(lost["targets"][0]["units"], 0);
  }

  int port_ = 0;
};

TEST_F(RpcTest, AgreesWithTheCpuForOneRunAfterAnother) {
  const double cpu = Perplexity("cpu");
  const base::ChildProcess server = StartServer();
  for (const char* const capacity : {"=50%", "=1MiB", ""}) {
    EXPECT_NEAR(Perplexity(target() + capacity + ",cpu"), cpu, 1e-3) << capacity;
  }
  EXPECT_NEAR(Perplexity("worker(" + target() + ")=50%,cpu"), cpu, 1e-3);
}

TEST_F(RpcTest, AServerThatIsKilledIsLost) {
  base::ChildProcess server = StartServer();
  base::ChildProcess run = StartSplitRun();
  server.Kill();
  ExpectLost(run);
}

TEST_F(RpcTest, AServerThatStopsIsLostAtTheDeadline) {
  base::ChildProcess server = StartServer();
  base::ChildProcess run = StartSplitRun();
  ::kill(server.pid(), SIGSTOP);
  ExpectLost(run);
}

TEST_F(RpcTest, NobodyThereIsAnError) {
  port_ = Listening().port;
  const auto run = [&](const std::string& capacity) {
    return RunExpertSplit(Words({"--targets", target() + capacity + ",cpu"}), {kNoVulkan});
  };
  ExpectOneErrorLine(run("=1MiB"), 5, "no ggml RPC server answers at 127.0.0.1:");
  ExpectOneErrorLine(run(""), 2, "missing device");
}

TEST_F(RpcTest, SomebodyElseThereIsAnError) {
  const Listening other;
  port_ = other.port;
  const std::jthread answers([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd wait = {.fd = other.socket.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 10) <= 0) continue;
      const base::UniqueFd client(::accept4(other.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\n\r\n";
      ::send(client.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
    }
  });
  const ProgramResult result =
      RunExpertSplit(Words({"--targets", target() + "=1MiB,cpu"}), {kNoVulkan});
  ExpectOneErrorLine(result, 5, target());
}

TEST_F(RpcTest, ADeviceThatTheServerLacksIsAnError) {
  const base::ChildProcess server = StartServer();
  ExpectOneErrorLine(RunExpertSplit(Words({"--targets", target() + "/3=1MiB,cpu"}), {kNoVulkan}), 5,
                     "has 1 devices, none with 3");
}

}  // namespace
}  // namespace test
