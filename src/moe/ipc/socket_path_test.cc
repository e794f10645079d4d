#include "moe/ipc/socket_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace moe::ipc {
namespace {

using base::Deadline;
using base::ErrorKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class SocketPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "socket_path_test.XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/w.sock";
  }
  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a file was left behind";
    std::filesystem::remove_all(folder_);
  }
  mode_t Mode() const {
    struct stat status = {};
    EXPECT_EQ(::stat(path_.c_str(), &status), 0);
    return status.st_mode & 0777;
  }
  std::string OpenError(const std::string& path, ErrorKind kind, const std::string& group = "") {
    auto listener = Listener::Open(path, group);
    EXPECT_FALSE(listener);
    if (listener) return {};
    EXPECT_EQ(listener.error().kind, kind) << listener.error().message;
    return listener.error().message;
  }
  std::string ConnectError() {
    auto channel = ConnectTo(path_, Deadline::After(milliseconds(20)));
    EXPECT_FALSE(channel);
    if (channel) return {};
    EXPECT_EQ(channel.error().kind, ErrorKind::kWorkerLost);
    return channel.error().message;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(SocketPathTest, TheSocketIsForItsUserOrForOneGroup) {
  {
    auto listener = Listener::Open(path_, "");
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_EQ(Mode(), 0600U);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  auto listener = Listener::Open(path_, std::to_string(::getegid()));
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_EQ(Mode(), 0660U);
}

TEST_F(SocketPathTest, BothSidesGetAnEndOfTheConnection) {
  auto listener = Listener::Open(path_, "");
  ASSERT_TRUE(listener);
  auto here = ConnectTo(path_, Deadline::After(seconds(60)));
  ASSERT_TRUE(here) << here.error().message;
  auto there = listener->Accept({});
  ASSERT_TRUE(there);
  EXPECT_TRUE(there->Send(FrameType::kReady, {}, Deadline::After(seconds(60))));
  EXPECT_TRUE(here->Receive(Deadline::After(seconds(60))));
}

TEST_F(SocketPathTest, AStopEndsTheWaitForAConnection) {
  auto listener = Listener::Open(path_, "");
  ASSERT_TRUE(listener);
  std::stop_source stop;
  std::jthread waiter([&] {
    auto accepted = listener->Accept(stop.get_token());
    ASSERT_FALSE(accepted);
    EXPECT_EQ(accepted.error().kind, ErrorKind::kCancelled);
  });
  stop.request_stop();
}

TEST_F(SocketPathTest, AFolderThatOthersMayWriteToIsRefusedOnBothSides) {
  auto listener = Listener::Open(path_, "");
  ASSERT_TRUE(listener);
  std::filesystem::permissions(folder_, std::filesystem::perms(0777));
  EXPECT_THAT(OpenError(folder_ + "/other.sock", ErrorKind::kInvalidInput),
              HasSubstr("others can write to the folder"));
  EXPECT_THAT(ConnectError(), HasSubstr("others can write to the folder"));
  // As /tmp has it, others can only add files of their own.
  std::filesystem::permissions(folder_, std::filesystem::perms(01777));
  EXPECT_TRUE(ConnectTo(path_, Deadline::After(seconds(60))));
}

TEST_F(SocketPathTest, ASocketThatOthersMayWriteToIsRefused) {
  auto listener = Listener::Open(path_, "");
  ASSERT_TRUE(listener);
  std::filesystem::permissions(path_, std::filesystem::perms(0666));
  EXPECT_THAT(ConnectError(), HasSubstr("others can write to the worker's socket"));
}

TEST_F(SocketPathTest, WithoutAWorkerThePathIsNamed) {
  EXPECT_THAT(ConnectError(), HasSubstr("there is no worker at \"" + path_));
}

TEST_F(SocketPathTest, WhatAKilledWorkerLeftBehindIsReplacedAndALiveOneIsNot) {
  {
    const base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  std::filesystem::permissions(path_, std::filesystem::perms(0600));
  EXPECT_THAT(ConnectError(), HasSubstr("no worker answers at"));
  auto listener = Listener::Open(path_, "");
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_THAT(OpenError(path_, ErrorKind::kIo), HasSubstr("another worker listens"));
  EXPECT_TRUE(ConnectTo(path_, Deadline::After(seconds(60)))) << "the live one still is there";
}

TEST_F(SocketPathTest, FaultsOfThePathAreNamed) {
  EXPECT_THAT(OpenError("relative.sock", ErrorKind::kInvalidInput), HasSubstr("absolute path"));
  EXPECT_THAT(OpenError(folder_ + "/" + std::string(120, 'a'), ErrorKind::kInvalidInput),
              HasSubstr("at most 107 bytes"));
  EXPECT_THAT(OpenError("/no/such/folder/w.sock", ErrorKind::kInvalidInput),
              HasSubstr("No such file"));
  EXPECT_THAT(OpenError(path_, ErrorKind::kInvalidInput, "no-such-group"),
              HasSubstr("there is no group \"no-such-group\""));
  std::ofstream(path_) << "file";
  EXPECT_THAT(OpenError(path_, ErrorKind::kInvalidInput), HasSubstr("is no socket"));
  std::filesystem::remove(path_);
}

}  // namespace
}  // namespace moe::ipc
