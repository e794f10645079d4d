#include "moe/ipc/channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace moe::ipc {
namespace {

using base::Deadline;
using base::ErrorKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const Deadline kSoon = Deadline::After(seconds(60));

struct Ends {
  Ends() {
    auto pair = Channel::Pair();
    EXPECT_TRUE(pair);
    a.emplace(std::move(pair->first));
    b.emplace(std::move(pair->second));
  }
  std::optional<Channel> a;
  std::optional<Channel> b;
};

std::vector<std::byte> Bytes(std::size_t count) {
  return std::vector<std::byte>(count, std::byte{5});
}

TEST(ChannelTest, FramesArriveInOrderBothWays) {
  Ends ends;
  EXPECT_TRUE(ends.a->Send(FrameType::kLoad, Bytes(3), kSoon));
  EXPECT_TRUE(ends.a->Send(FrameType::kBatch, Bytes(0), kSoon));
  EXPECT_TRUE(ends.b->Send(FrameType::kReady, Bytes(1), kSoon));
  auto first = ends.b->Receive(kSoon);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->type, FrameType::kLoad);
  EXPECT_EQ(first->payload, Bytes(3));
  auto second = ends.b->Receive(kSoon, std::chrono::microseconds(50));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->type, FrameType::kBatch);
  auto back = ends.a->Receive(kSoon);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->type, FrameType::kReady);
}

TEST(ChannelTest, AFrameLargerThanTheSocketsBufferArrives) {
  Ends ends;
  const auto large = Bytes(kMaxPayloadBytes);
  std::jthread sender([&] { EXPECT_TRUE(ends.a->Send(FrameType::kLoad, large, kSoon)); });
  auto frame = ends.b->Receive(kSoon);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->payload, large);
}

TEST(ChannelTest, WaitingEndsAtTheDeadline) {
  Ends ends;
  auto nothing = ends.a->Receive(Deadline::After(milliseconds(1)));
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().kind, ErrorKind::kTimeout);
  // A peer that does not read.
  base::Result<void> sent;
  for (int i = 0; i < 100 && sent; ++i) {
    sent =
        ends.a->Send(FrameType::kLoad, Bytes(kMaxPayloadBytes), Deadline::After(milliseconds(1)));
  }
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kTimeout);
}

TEST(ChannelTest, AClosedConnectionIsALostWorker) {
  Ends ends;
  EXPECT_FALSE(ends.a->PeerIsGone());
  ends.b.reset();
  EXPECT_TRUE(ends.a->PeerIsGone());
  auto received = ends.a->Receive(kSoon);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().kind, ErrorKind::kWorkerLost);
  EXPECT_THAT(received.error().message, HasSubstr("closed the connection"));
  EXPECT_TRUE(ends.a->closed_in_order());
  auto sent = ends.a->Send(FrameType::kBatch, {}, kSoon);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kWorkerLost);
}

TEST(ChannelTest, AnEndInsideAFrameIsNoOrderlyEnd) {
  Ends ends;
  const auto frame = EncodeFrame(FrameType::kDone, 0, Bytes(8));
  ASSERT_EQ(::send(ends.b->descriptor(), frame.data(), 20, 0), 20);
  ends.b.reset();
  auto received = ends.a->Receive(kSoon);
  ASSERT_FALSE(received);
  EXPECT_THAT(received.error().message, HasSubstr("inside a frame"));
  EXPECT_FALSE(ends.a->closed_in_order());
}

TEST(ChannelTest, GarbageIsALostWorker) {
  Ends ends;
  const std::string text = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::send(ends.b->descriptor(), text.data(), text.size(), 0),
            static_cast<ssize_t>(text.size()));
  auto received = ends.a->Receive(kSoon);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().kind, ErrorKind::kWorkerLost);
  EXPECT_THAT(received.error().message, HasSubstr("does not speak this protocol"));
}

TEST(ChannelTest, ADescriptorIsPassedOn) {
  Ends ends;
  int pipe_ends[2] = {};
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const base::UniqueFd read_end(pipe_ends[0]);
  {
    const base::UniqueFd write_end(pipe_ends[1]);
    EXPECT_TRUE(ends.a->Send(FrameType::kLoad, Bytes(2), kSoon, write_end.get()));
  }
  ASSERT_TRUE(ends.b->Receive(kSoon));
  {
    const base::UniqueFd passed = ends.b->TakeDescriptor();
    ASSERT_TRUE(passed.valid());
    EXPECT_NE(::fcntl(passed.get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(::write(passed.get(), "x", 1), 1);
  }
  EXPECT_FALSE(ends.b->TakeDescriptor().valid());
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 1);
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "a copy of the descriptor is left";
}

TEST(ChannelTest, MoreDescriptorsThanAConnectionMayPassEndIt) {
  Ends ends;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(ends.a->Send(FrameType::kLoad, {}, kSoon, STDIN_FILENO));
  }
  base::Result<Frame> received = Frame{};
  for (int i = 0; i < 5 && received; ++i) received = ends.b->Receive(kSoon);
  ASSERT_FALSE(received);
  EXPECT_THAT(received.error().message, HasSubstr("more descriptors"));
}

TEST(ChannelTest, ShutdownEndsAWaitOfAnotherThread) {
  Ends ends;
  std::jthread waiter([&] {
    auto received = ends.a->Receive(Deadline::Never());
    EXPECT_FALSE(received);
  });
  ends.a->Shutdown();
}

}  // namespace
}  // namespace moe::ipc
