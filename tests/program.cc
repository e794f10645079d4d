#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

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

}  // namespace

ProgramResult RunExpertSplit(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment) {
  std::vector<std::string> words = {EXPERT_SPLIT_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = Environment(environment);
  const StreamFile out;
  const StreamFile err;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.path(), O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.path(), O_WRONLY, 0);
  pid_t child = -1;
  const int error = ::posix_spawn(&child, words[0].c_str(), &actions, nullptr,
                                  Pointers(words).data(), Pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ProgramResult result;
  if (error != 0) {
    ADD_FAILURE() << "cannot start " << words[0] << ": " << std::strerror(error);
    return result;
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = out.Content();
  result.err = err.Content();
  return result;
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
