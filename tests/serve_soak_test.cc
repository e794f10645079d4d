// 32 clients that stream at the same time: no error, no leak, fair progress.
// EXPERT_SPLIT_SOAK_SECONDS says for how long (default 5).
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "running_program.h"
#include "support/test_models.h"

namespace test {
namespace {

constexpr int kClients = 32;

// Resident memory of a process in KiB.
long ResidentKiB(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  }
  return 0;
}

TEST(ServeSoakTest, ManyStreamingClients) {
  const char* wanted = std::getenv("EXPERT_SPLIT_SOAK_SECONDS");
  const std::chrono::seconds length(wanted != nullptr ? std::atoi(wanted) : 5);
  RunningProgram program(
      EXPERT_SPLIT_BINARY,
      {"serve", "--model", ModelPath("tiny-f32"), "--targets", "cpu", "--port", "0", "--ctx", "256",
       "--parallel", "8", "--queue", "64", "--checkpoints", "8"},
      {kNoVulkan});
  const int port = ServedPort(program);
  ASSERT_NE(port, 0) << program.Written(Stream::kErr);

  std::atomic<int> failures = 0;
  std::vector<int> answered(kClients, 0);
  std::atomic<bool> stop = false;
  std::vector<std::jthread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      httplib::Client client("127.0.0.1", port);
      client.set_keep_alive(true);
      client.set_read_timeout(120);
      for (int turn = 0; !stop; ++turn) {
        const nlohmann::json body = {
            {"messages",
             {{{"role", "user"},
               {"content", "client " + std::to_string(c) + " turn " + std::to_string(turn)}}}},
            {"max_tokens", 16},
            {"ignore_eos", true},
            {"stream", true}};
        const auto result = client.Post("/v1/chat/completions", body.dump(), "application/json");
        if (!result || result->status != 200 || !result->body.ends_with("data: [DONE]\n\n")) {
          ++failures;
        } else {
          ++answered[static_cast<std::size_t>(c)];
        }
      }
    });
  }
  std::this_thread::sleep_for(length / 2);
  const long middle = ResidentKiB(program.pid());
  std::this_thread::sleep_for(length / 2);
  stop = true;
  clients.clear();
  const long end = ResidentKiB(program.pid());
  program.Signal(SIGTERM);
  program.Ended(/*wait=*/true);

  EXPECT_EQ(failures, 0);
  EXPECT_EQ(program.Result().status, 0) << program.Result().err;
  const auto [least, most] = std::ranges::minmax(answered);
  EXPECT_GT(least, 0);
  EXPECT_LE(most - least, 2 + most / 2) << "from " << least << " to " << most << " answers";
  RecordProperty("answers", std::accumulate(answered.begin(), answered.end(), 0));
  RecordProperty("resident_kib", std::to_string(middle) + " " + std::to_string(end));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(end, middle + middle / 10 + 8 * 1024) << "resident KiB in the middle: " << middle;
#endif
}

}  // namespace
}  // namespace test
