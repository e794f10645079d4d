#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

#include "base/file.h"

namespace test {
namespace {

// This process's environment with `changes` applied, as "NAME=value" strings.
std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    variables[std::string(text.substr(0, text.find('=')))] = text;
  }
  for (const std::string& change : changes) {
    const std::size_t equals = change.find('=');
    if (equals == std::string::npos) {
      variables.erase(change);
    } else {
      variables[change.substr(0, equals)] = change;
    }
  }
  std::vector<std::string> entries;
  for (auto& [name, entry] : variables) entries.push_back(entry);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A file of a temporary folder that takes one stream; files cannot fill up as pipes do.
class StreamFile {
 public:
  StreamFile() { ::close(::mkstemp(path_.data())); }
  ~StreamFile() { ::unlink(path_.c_str()); }
  const char* path() const { return path_.c_str(); }
  std::string Content() const {
    auto content = base::ReadFile(path_, base::Bytes::MiB(64));
    EXPECT_TRUE(content) << content.error().message;
    return content ? *content : std::string();
  }

 private:
  std::string path_ = ::testing::TempDir() + "expert_split_stream.XXXXXX";
};

// A program that was started, its streams in files.
class RunningProgram {
 public:
  // Fails the test when it cannot be started; then running() is false.
  RunningProgram(const std::string& path, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment) {
    std::vector<std::string> words = {path};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> variables = Environment(environment);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_.path(), O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_.path(), O_WRONLY, 0);
    const int error = ::posix_spawn(&child_, words[0].c_str(), &actions, nullptr,
                                    Pointers(words).data(), Pointers(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    running_ = error == 0;
    if (!running_) ADD_FAILURE() << "cannot start " << words[0] << ": " << std::strerror(error);
  }

  bool running() const { return running_; }
  std::string Written(Stream stream) const {
    return stream == Stream::kOut ? out_.Content() : err_.Content();
  }
  void Interrupt() const { ::kill(child_, SIGINT); }

  // Whether it has ended; waits for that when asked to.
  bool Ended(bool wait) {
    if (!running_) return true;
    const pid_t ended = ::waitpid(child_, &status_, wait ? 0 : WNOHANG);
    EXPECT_GE(ended, 0) << std::strerror(errno);
    if (ended != 0) running_ = false;
    return !running_;
  }

  // Precondition: it has ended.
  ProgramResult Result() const {
    return {.status = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
            .out = out_.Content(),
            .err = err_.Content()};
  }

 private:
  StreamFile out_;
  StreamFile err_;
  pid_t child_ = -1;
  bool running_ = false;
  int status_ = 0xff << 8;  // the exit status of what was never started
};

}  // namespace

ProgramResult RunProgram(const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  RunningProgram program(path, arguments, environment);
  program.Ended(/*wait=*/true);
  return program.Result();
}

ProgramResult RunExpertSplit(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment) {
  return RunProgram(EXPERT_SPLIT_BINARY, arguments, environment);
}

ProgramResult InterruptExpertSplit(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& environment, Stream stream,
                                   std::string_view text) {
  RunningProgram program(EXPERT_SPLIT_BINARY, arguments, environment);
  while (!program.Ended(/*wait=*/false)) {
    const std::string written = program.Written(stream);
    if (written.empty() || !written.contains(text)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    program.Interrupt();
    program.Ended(/*wait=*/true);
    return program.Result();
  }
  ADD_FAILURE() << "ended before it could be interrupted: " << program.Written(Stream::kErr);
  return program.Result();
}

void ExpectOneErrorLine(const ProgramResult& result, int status, std::string_view part) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("expert-split: error: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with('\n')) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

}  // namespace test
