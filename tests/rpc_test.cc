// Experts on devices behind ggml's own RPC server, and what becomes of a run when that server ends,
// hangs or is none.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <format>
#include <fstream>
#include <sstream>

#include "base/unique_fd.h"
#include "relay.h"
#include "served.h"
#include "worker_fixture.h"

namespace test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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

// Answers as a web server does, whatever it is asked.
class WebServer {
 public:
  explicit WebServer(int port = 0)
      : listening_(port), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

  int port() const { return listening_.port; }

 private:
  void Run(const std::stop_token& stop) const {
    while (!stop.stop_requested()) {
      pollfd wait = {.fd = listening_.socket.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 10) <= 0) continue;
      const base::UniqueFd client(
          ::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\n\r\n";
      ::send(client.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
    }
  }

  Listening listening_;
  std::jthread thread_;  // last: it uses the socket
};

class RpcTest : public WorkerTest {
 protected:
  // On port_, a free one the first time.
  base::ChildProcess StartServer(std::vector<std::string> more = {},
                                 std::vector<std::string> environment = {}) {
    if (port_ == 0) port_ = Listening().port;
    std::vector<std::string> words = {"env", "-u", "GGML_VK_VISIBLE_DEVICES"};
    words.insert(words.end(), environment.begin(), environment.end());
    words.insert(words.end(), {GGML_RPC_SERVER, "--host", "127.0.0.1", "--port",
                               std::to_string(port_), "--threads", "1"});
    words.insert(words.end(), more.begin(), more.end());
    auto server = base::ChildProcess::Start({.program = "/usr/bin/env", .arguments = words});
    EXPECT_TRUE(server) << server.error().message;
    EXPECT_TRUE(Eventually([this] { return Listens(port_); }));
    return std::move(*server);
  }
  // One with two devices.
  base::ChildProcess StartTwoDevices() {
    return StartServer({"--device", "Vulkan0,Vulkan1"},
                       {kTwoVulkan, "GGML_VK_DISABLE_COOPMAT=1", "GGML_VK_DISABLE_F16=1"});
  }
  std::string target() const { return TargetAt(port_); }
  static std::string TargetAt(int port) { return std::format("rpc:127.0.0.1:{}", port); }

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
  const WebServer other;
  port_ = other.port();
  const ProgramResult result =
      RunExpertSplit(Words({"--targets", target() + "=1MiB,cpu"}), {kNoVulkan});
  ExpectOneErrorLine(result, 5, target());
}

TEST_F(RpcTest, ADeviceThatTheServerLacksIsAnError) {
  const base::ChildProcess server = StartServer();
  ExpectOneErrorLine(RunExpertSplit(Words({"--targets", target() + "/3=1MiB,cpu"}), {kNoVulkan}), 5,
                     "has 1 devices, none with 3");
}

TEST_F(RpcTest, ALayerCostsOneRoundTripOnOneConnectionThatIsKept) {
  const base::ChildProcess server = StartServer();
  std::size_t round_trips[2];
  std::size_t num_layers = 0;
  for (const int i : {0, 1}) {
    const Relay relay(port_);
    // Without a size: the server is asked for its free memory first.
    const Json run = Run({"--targets", TargetAt(relay.port()) + ",cpu", "-n", i == 0 ? "8" : "24"});
    EXPECT_THAT(run["lost"], IsEmpty());
    EXPECT_EQ(run["targets"][1]["units"], 0) << "all of it fits there";
    EXPECT_EQ(relay.connections(), 1U);
    round_trips[i] = relay.round_trips();
    const Json plan = Json::parse(
        RunExpertSplit({"plan", "--model", model_, "--targets", "cpu", "--json"}, {kNoVulkan}).out,
        nullptr, false);
    num_layers = plan["layers"].size();
  }
  EXPECT_EQ(round_trips[1] - round_trips[0], 16 * num_layers);
}

TEST_F(RpcTest, DevicesOfOneServerShareItsConnection) {
  const double cpu = Perplexity("cpu");
  const base::ChildProcess server = StartTwoDevices();
  const Relay relay(port_);
  const std::string at = TargetAt(relay.port());
  EXPECT_NEAR(Perplexity(at + "=30%," + at + "/1=30%,cpu"), cpu, 1e-3);
  EXPECT_EQ(relay.connections(), 1U);
  EXPECT_NEAR(Perplexity(at + "/1=50%,worker(" + at + ")=20%,cpu"), cpu, 1e-3);
  EXPECT_EQ(relay.connections(), 2U);
}

TEST_F(RpcTest, DevicesOfAServerThatIsKilledAreLostTogether) {
  base::ChildProcess server = StartTwoDevices();
  base::ChildProcess run = StartRun({"--targets", target() + "=30%," + target() + "/1=30%,cpu",
                                     "-n", "400", "--ctx", "512", "--json"});
  ASSERT_TRUE(HasLoaded()) << Written("err");
  EXPECT_EQ(Workers().size(), 1U);
  server.Kill();
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
  const Json lost = Json::parse(Written("out"), nullptr, false);
  EXPECT_THAT(lost["lost"], UnorderedElementsAre(target(), target() + "/1"));
  EXPECT_EQ(lost["tokens"].size(), 400U);
}

TEST_F(RpcTest, TheServersCacheSavesTheWay) {
  UseModel("rpc-cache");
  const std::string cache = "XDG_CACHE_HOME=" + folder_ + "/cache";
  const base::ChildProcess server = StartServer({"--cache"}, {cache});
  const auto sent = [&](std::vector<std::string> more) {
    const Relay relay(port_);
    more.insert(more.end(), {"--targets", TargetAt(relay.port()) + "=100%,cpu", "-n", "1"});
    Run(std::move(more));
    return relay.bytes_to_server();
  };
  const std::uint64_t all = sent({});
  EXPECT_GT(all, std::uint64_t{60} << 20);
  EXPECT_EQ(sent({}) >> 20, all >> 20) << "nothing was kept";
  // The model's weights are all alike, so the first stack is the only one that must travel.
  EXPECT_LT(sent({"--rpc-cache"}), all / 3);
  EXPECT_LT(sent({"--rpc-cache"}), all / 30);
}

TEST_F(RpcTest, AServerIsFreeAgainWhenItsUserIsKilled) {
  const base::ChildProcess server = StartServer();
  base::ChildProcess run = StartSplitRun();
  run.Kill();
  EXPECT_TRUE(Eventually([this] { return Workers().empty(); }));
  EXPECT_THAT(Run({"--targets", target() + "=50%,cpu", "-n", "4"})["lost"], IsEmpty());
}

TEST_F(RpcTest, AServerInWhosePlaceIsSomethingElseIsMissedUntilItIsBack) {
  base::ChildProcess server = StartServer();
  Served served({"--targets", target() + "=50%,cpu"});
  const auto status = [&] { return served.Get("/health")["status"]; };
  const auto answers = [&] {
    return served.Post("/v1/chat/completions", Chat("Hello"))["usage"]["completion_tokens"] == 8;
  };
  EXPECT_TRUE(answers());
  EXPECT_EQ(status(), "ok");
  server.Kill();
  {
    const WebServer other(port_);
    EXPECT_TRUE(answers());
    EXPECT_TRUE(Eventually([&] { return status() == "degraded"; }));
    EXPECT_TRUE(answers());
  }
  server = StartServer();
  EXPECT_TRUE(Eventually([&] { return status() == "ok"; }));
  EXPECT_TRUE(answers());
}

}  // namespace
}  // namespace test
