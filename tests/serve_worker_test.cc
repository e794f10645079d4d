// A server some of whose experts are elsewhere: what clients and operators see of a loss.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/child_process.h"
#include "eventually.h"
#include "served.h"

namespace test {
namespace {

using ::testing::HasSubstr;

// A process that `parent` has started; -1 without one.
pid_t ChildOf(pid_t parent) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line == "PPid:\t" + std::to_string(parent)) return std::stoi(entry.path().filename());
    }
  }
  return -1;
}

Json Text(const Served& served, int max_tokens = 8) {
  const Json answer = served.Post("/v1/chat/completions", Chat("Hello", max_tokens));
  return answer["choices"][0]["message"]["content"];
}

Json Status(const Served& served) { return served.Get("/health")["status"]; }

Json Target(const Served& served, std::size_t index) {
  return served.Get("/v1/placement")["targets"][index];
}

// A request that goes on until it is cancelled.
class EndlessRequest {
 public:
  explicit EndlessRequest(const Served& served) : thread_([this, &served] { Run(served); }) {
    EXPECT_TRUE(Eventually([this] { return received_.load(); }));
  }
  ~EndlessRequest() { cancelled_ = true; }

 private:
  void Run(const Served& served) {
    Json chat = Chat("On and on", 32000);
    chat["stream"] = true;
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/chat/completions";
    request.set_header("Content-Type", "application/json");
    request.body = chat.dump();
    request.content_receiver = [this](const char*, std::size_t, std::size_t, std::size_t) {
      received_ = true;
      return !cancelled_;
    };
    static_cast<void>(served.Client().send(request));
  }

  std::atomic<bool> received_ = false;
  std::atomic<bool> cancelled_ = false;
  std::jthread thread_;  // last: it uses the others
};

TEST(ServeWorkerTest, AWorkerThatIsKilledIsReplaced) {
  Served served({"--targets", "worker(cpu)=50%,cpu"});
  const Json before = Text(served);
  const pid_t first = ChildOf(served.program().pid());
  ASSERT_GT(first, 0);
  ::kill(first, SIGKILL);
  EXPECT_EQ(Text(served), before);
  EXPECT_THAT(served.program().Written(Stream::kErr), HasSubstr("was killed by signal 9"));
  EXPECT_TRUE(Eventually([&] { return Status(served) == "ok"; }));
  EXPECT_THAT(served.program().Written(Stream::kErr), HasSubstr("worker(cpu) is back"));
  EXPECT_NE(ChildOf(served.program().pid()), first);
  EXPECT_EQ(Text(served), before);
}

TEST(ServeWorkerTest, AWorkerIsTakenBackWhileARequestRuns) {
  Served served({"--targets", "worker(cpu)=50%,cpu"}, kNoVulkan, /*context=*/"32768");
  const Json before = Text(served);
  const EndlessRequest request(served);
  const pid_t first = ChildOf(served.program().pid());
  ASSERT_GT(first, 0);
  ::kill(first, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Target(served, 0)["failures"] == 1; }));
  EXPECT_TRUE(Eventually([&] { return Target(served, 0)["units"] > 0; }));
  EXPECT_EQ(served.Get("/v1/placement")["activity"]["running"], 1);
  EXPECT_EQ(Status(served), "ok");
  EXPECT_EQ(Text(served), before);
}

TEST(ServeWorkerTest, RequestsThatRunTogetherOutliveAWorker) {
  Served served({"--targets", "worker(cpu)=50%,cpu"});
  const Json before = Text(served, 400);
  Json texts[2];
  {
    std::jthread other([&] { texts[0] = Text(served, 400); });
    std::jthread killer([&] {
      ASSERT_TRUE(
          Eventually([&] { return served.Get("/v1/placement")["activity"]["running"] > 0; }));
      ::kill(ChildOf(served.program().pid()), SIGKILL);
    });
    texts[1] = Text(served, 400);
  }
  EXPECT_EQ(texts[0], before);
  EXPECT_EQ(texts[1], before);
  EXPECT_TRUE(Eventually([&] { return Target(served, 0)["failures"] == 1; }));
}

TEST(ServeWorkerTest, ALossCanEndTheRequestAndTheServerLives) {
  Served served({"--targets", "worker(cpu)=50%,cpu", "--on-worker-loss", "fail"});
  const Json before = Text(served);
  Json failed;
  {
    const std::jthread request(
        [&] { failed = served.Post("/v1/chat/completions", Chat("Hello", 900), 503); });
    ASSERT_TRUE(Eventually([&] { return served.Get("/v1/placement")["activity"]["running"] > 0; }));
    ::kill(ChildOf(served.program().pid()), SIGKILL);
  }
  EXPECT_THAT(failed["error"]["message"].get<std::string>(), HasSubstr("worker(cpu)"));
  EXPECT_EQ(Text(served), before);
  EXPECT_TRUE(Eventually([&] { return Target(served, 0)["units"] > 0; })) << "it is back";
}

TEST(ServeWorkerTest, AListeningWorkerIsMissedUntilItIsThereAgain) {
  std::string folder = ::testing::TempDir() + "serve_worker_test.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/w.sock";
  const auto start = [&] {
    auto worker = base::ChildProcess::Start(
        {.program = EXPERT_SPLIT_BINARY,
         .arguments = {EXPERT_SPLIT_BINARY, "worker", "--model", ModelPath("tiny-f32"), "--target",
                       "cpu", "--listen", path}});
    EXPECT_TRUE(worker) << worker.error().message;
    return std::move(*worker);
  };
  base::ChildProcess worker = start();
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path); }));
  Served served({"--targets", "unix:" + path + "=50%,cpu"});
  const Json before = Text(served);
  EXPECT_EQ(Target(served, 0)["lost"], Json());
  const Json units = Target(served, 0)["units"];
  EXPECT_GT(units, 0);

  worker.Kill();
  EXPECT_EQ(Text(served), before);
  ASSERT_TRUE(Eventually([&] { return Status(served) == "degraded"; }));
  EXPECT_THAT(served.Get("/health")["reason"].get<std::string>(), HasSubstr("unix:" + path));
  const Json lost = Target(served, 0);
  EXPECT_THAT(lost["lost"].get<std::string>(), HasSubstr("unix:" + path));
  EXPECT_EQ(lost["failures"], 1);
  EXPECT_EQ(lost["units"], 0);
  const auto metrics = served.Client().Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body,
              HasSubstr("expert_split_target_failures_total{target=\"unix:" + path + "\"} 1\n"));

  worker = start();
  EXPECT_TRUE(Eventually([&] { return Status(served) == "ok"; }));
  const Json back = Target(served, 0);
  EXPECT_EQ(back["lost"], Json());
  EXPECT_EQ(back["failures"], 1);
  EXPECT_EQ(back["units"], units);
  EXPECT_EQ(Text(served), before);
  served.program().Signal(SIGTERM);
  EXPECT_TRUE(served.program().Ended(/*wait=*/true));
  ::kill(worker.pid(), SIGTERM);
  EXPECT_TRUE(worker.WaitForEnd(base::Deadline::After(std::chrono::minutes(1))));
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace test
