#include "cli/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>

#include "cli/exit_status.h"

namespace cli {
namespace {

// Waits without polling; the test's timeout is the deadline.
void WaitUntilRequested(std::stop_token token) {
  std::mutex mutex;
  std::condition_variable_any requested;
  std::unique_lock lock(mutex);
  requested.wait(lock, token, [] { return false; });
}

TEST(InterruptDeathTest, CtrlCEndsTheProcessWith130) {
  EXPECT_EXIT(
      {
        InstallSignalHandlers();
        ::raise(SIGINT);
      },
      ::testing::ExitedWithCode(kExitInterrupted), "");
}

TEST(InterruptDeathTest, GracefulCtrlCRequestsAStopAndTheSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        InstallSignalHandlers();
        {
          GracefulInterrupt unused;
        }
        GracefulInterrupt interrupt;
        ::raise(SIGINT);
        WaitUntilRequested(interrupt.token());
        std::fputs("stopping", stderr);
        ::raise(SIGINT);
      },
      ::testing::ExitedWithCode(kExitInterrupted), "stopping");
}

TEST(InterruptTest, NothingIsRequestedWithoutCtrlC) {
  GracefulInterrupt interrupt;
  EXPECT_FALSE(interrupt.token().stop_requested());
  EXPECT_EQ(Interrupted().kind, base::ErrorKind::kCancelled);
}

}  // namespace
}  // namespace cli
