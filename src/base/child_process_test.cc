#include "base/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/unique_fd.h"

namespace base {
namespace {

using std::chrono::seconds;

struct Pipe {
  Pipe() {
    int ends[2] = {};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  // Everything until all writers are gone.
  std::string ReadAll() {
    write = UniqueFd();
    std::string text;
    char part[256];
    for (ssize_t got = 0; (got = ::read(read.get(), part, sizeof part)) > 0;) {
      text.append(part, static_cast<std::size_t>(got));
    }
    return text;
  }
  UniqueFd read;
  UniqueFd write;
};

ChildProcessOptions Shell(const std::string& script, std::vector<int> descriptors = {}) {
  return {.program = "/bin/sh",
          .arguments = {"sh", "-c", script},
          .descriptors = std::move(descriptors)};
}

TEST(ChildProcessTest, GetsItsDescriptorsInOrderAndNoOthers) {
  Pipe first, second, unrelated;
  const UniqueFd leaked(::dup(unrelated.write.get()));  // not close-on-exec
  auto child = ChildProcess::Start(
      Shell("echo one >&3; echo two >&4; ls /proc/self/fd | wc -l >&4",  // ls's own makes one more
            {first.write.get(), second.write.get()}));
  ASSERT_TRUE(child) << child.error().message;
  EXPECT_EQ(first.ReadAll(), "one\n");
  EXPECT_EQ(second.ReadAll(), "two\n6\n");
  EXPECT_TRUE(child->WaitForEnd(Deadline::After(seconds(60))));
  EXPECT_EQ(child->end(), "exited with status 0");
  EXPECT_EQ(child->pid(), -1);
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsAnError) {
  auto child = ChildProcess::Start({.program = "/no/such/program", .arguments = {"x"}});
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().kind, ErrorKind::kIo);
  EXPECT_EQ(child.error().message, "cannot start '/no/such/program': No such file or directory");
}

TEST(ChildProcessTest, SaysHowItEnded) {
  auto failed = ChildProcess::Start(Shell("exit 3"));
  ASSERT_TRUE(failed);
  EXPECT_TRUE(failed->WaitForEnd(Deadline::Never()));
  EXPECT_EQ(failed->end(), "exited with status 3");
  auto killed = ChildProcess::Start(Shell("kill -9 $$"));
  ASSERT_TRUE(killed);
  EXPECT_TRUE(killed->WaitForEnd(Deadline::After(seconds(60))));
  EXPECT_EQ(killed->end(), "was killed by signal 9");
}

TEST(ChildProcessTest, ADeadlineEndsTheWaitAndTheOwnerEndsEvenAStoppedChild) {
  pid_t pid = -1;
  {
    auto child = ChildProcess::Start(Shell("kill -STOP $$"));
    ASSERT_TRUE(child);
    pid = child->pid();
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
    ASSERT_TRUE(WIFSTOPPED(status));
    EXPECT_FALSE(child->WaitForEnd(Deadline::After(std::chrono::milliseconds(1))));
  }
  EXPECT_EQ(::kill(pid, 0), -1) << "reaped";
}

TEST(ChildProcessTest, OutlivesTheThreadThatStartedIt) {
  Pipe out;
  Result<ChildProcess> child = ChildProcess();
  std::thread([&] {
    child = ChildProcess::Start(
        Shell("read line <&3; echo alive >&4", {out.read.get(), out.write.get()}));
  }).join();
  ASSERT_TRUE(child);
  EXPECT_EQ(::kill(child->pid(), 0), 0);
  child->Kill();
  EXPECT_EQ(child->end(), "was killed by signal 9");
}

// The process in the middle is killed and cannot clean up.
TEST(ChildProcessTest, EndsWhenItsParentIsKilled) {
  Pipe out;
  const pid_t middle = ::fork();
  ASSERT_GE(middle, 0);
  if (middle == 0) {
    auto child =
        ChildProcess::Start(Shell("echo up >&3; exec sleep 1000 >/dev/null", {out.write.get()}));
    ::kill(::getpid(), child ? SIGKILL : SIGTERM);
    ::pause();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(middle, &status, 0), middle);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  // Ends only when the grandchild's copy of the pipe is gone too.
  EXPECT_THAT(out.ReadAll(), ::testing::AnyOf("up\n", ""));
}

TEST(ChildProcessTest, OwnExecutableIsThisTest) {
  auto path = OwnExecutable();
  ASSERT_TRUE(path);
  EXPECT_TRUE(path->ends_with("base_test")) << *path;
}

}  // namespace
}  // namespace base
