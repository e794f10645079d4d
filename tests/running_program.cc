#include "running_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

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

}  // namespace

StreamFile::StreamFile() : path_(::testing::TempDir() + "expert_split_stream.XXXXXX") {
  ::close(::mkstemp(path_.data()));
}

StreamFile::~StreamFile() { ::unlink(path_.c_str()); }

std::string StreamFile::Content() const {
  auto content = base::ReadFile(path_, base::Bytes::MiB(64));
  EXPECT_TRUE(content) << content.error().message;
  return content ? *content : std::string();
}

RunningProgram::RunningProgram(const std::string& path, const std::vector<std::string>& arguments,
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

RunningProgram::~RunningProgram() {
  if (!running_) return;
  Signal(SIGKILL);
  Ended(/*wait=*/true);
}

void RunningProgram::Signal(int signal) const {
  if (running_) ::kill(child_, signal);
}

bool RunningProgram::Ended(bool wait) {
  if (!running_) return true;
  const pid_t ended = ::waitpid(child_, &status_, wait ? 0 : WNOHANG);
  EXPECT_GE(ended, 0) << std::strerror(errno);
  if (ended != 0) running_ = false;
  return !running_;
}

int ServedPort(RunningProgram& program) {
  constexpr std::string_view kAddress = " on http://127.0.0.1:";
  while (!program.Ended(/*wait=*/false)) {
    const std::string log = program.Written(Stream::kErr);
    const std::size_t at = log.find(kAddress);
    if (at != std::string::npos && log.find('\n', at) != std::string::npos) {
      return std::stoi(log.substr(at + kAddress.size()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

ProgramResult RunningProgram::Result() const {
  return {.status = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
          .out = out_.Content(),
          .err = err_.Content()};
}

}  // namespace test
