// For whole-program tests of experts in other processes: runs whose stderr can be read while they
// go on, and their worker processes. Every test ends by looking for what was left behind.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/file.h"
#include "eventually.h"
#include "program.h"
#include "support/test_models.h"

namespace test {

using Json = nlohmann::json;
using base::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr std::string_view kPlacementLine = "[expert-split] plan";

// The words of a process's command line; empty when it is gone.
inline std::vector<std::string> CommandLine(pid_t pid) {
  std::vector<std::string> words;
  const int fd =
      ::open(("/proc/" + std::to_string(pid) + "/cmdline").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return words;
  std::string text(1 << 16, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  ::close(fd);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "worker_test.XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    UseModel("tiny-f32");
  }
  void TearDown() override {
    EXPECT_TRUE(Eventually([this] { return Workers().empty(); })) << "a worker was left behind";
    EXPECT_FALSE(std::filesystem::exists(socket())) << "a socket was left behind";
    std::filesystem::remove_all(folder_);
  }

  // A name of the model's that no other test uses, by which its processes are found.
  void UseModel(const std::string& name) {
    model_ = folder_ + "/" + name + ".gguf";
    std::filesystem::create_symlink(ModelPath(name), model_);
  }
  std::string socket() const { return folder_ + "/w.sock"; }

  // The worker processes that have this test's model, oldest first.
  std::vector<pid_t> Workers() const {
    std::vector<pid_t> pids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::vector<std::string> words = CommandLine(std::stoi(name));
      if (words.size() > 2 && words[1] == "worker" && std::ranges::contains(words, model_)) {
        pids.push_back(std::stoi(name));
      }
    }
    std::ranges::sort(pids);
    return pids;
  }

  std::vector<std::string> Words(std::vector<std::string> more) const {
    std::vector<std::string> words = {"run",      "--model", model_,   "--threads", "1",
                                      "--prompt", prompt_,   "--temp", "0",         "--ignore-eos"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Json Run(std::vector<std::string> more, const std::string& vulkan = kNoVulkan) const {
    more.emplace_back("--json");
    const ProgramResult result = RunExpertSplit(Words(std::move(more)), {vulkan});
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }

  // A run whose stderr can be read while it goes on.
  base::ChildProcess StartRun(std::vector<std::string> more,
                              const std::string& vulkan = kNoVulkan) const {
    std::string script = "exec ";
    std::vector<std::string> words = Words(std::move(more));
    words.insert(words.begin(), {"env", vulkan, EXPERT_SPLIT_BINARY});
    for (const std::string& word : words) script += "'" + word + "' ";
    script += ">'" + folder_ + "/out' 2>'" + folder_ + "/err'";
    auto child =
        base::ChildProcess::Start({.program = "/bin/sh", .arguments = {"sh", "-c", script}});
    EXPECT_TRUE(child) << child.error().message;
    return std::move(*child);
  }
  std::string Written(const std::string& name) const {
    auto text = base::ReadFile(folder_ + "/" + name, base::Bytes::MiB(64));
    return text ? *text : std::string();
  }
  bool HasLoaded() const {
    return Eventually([this] { return Written("err").contains(kPlacementLine); });
  }

  base::ChildProcess StartWorker(const std::string& target, std::string model = {}) const {
    if (model.empty()) model = model_;
    auto worker =
        base::ChildProcess::Start({.program = EXPERT_SPLIT_BINARY,
                                   .arguments = {EXPERT_SPLIT_BINARY, "worker", "--model", model,
                                                 "--target", target, "--listen", socket()}});
    EXPECT_TRUE(worker) << worker.error().message;
    EXPECT_TRUE(Eventually([this] { return std::filesystem::exists(socket()); }));
    return std::move(*worker);
  }
  static void Stop(base::ChildProcess& worker) {
    ::kill(worker.pid(), SIGINT);
    EXPECT_TRUE(worker.WaitForEnd(Deadline::After(seconds(60))));
    EXPECT_EQ(worker.end(), "exited with status 130");
  }

  std::string folder_;
  std::string model_;
  std::string prompt_ = "Hello there";
};

}  // namespace test
