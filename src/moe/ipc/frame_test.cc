#include "moe/ipc/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moe::ipc {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Payload(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::string ErrorOf(std::vector<std::byte> bytes) {
  FrameParser parser;
  parser.Feed(bytes);
  auto frame = parser.Next();
  EXPECT_FALSE(frame);
  if (frame) return {};
  EXPECT_EQ(frame.error().kind, base::ErrorKind::kWorkerLost);
  parser.Feed(EncodeFrame(FrameType::kDone, 0, {}));
  auto again = parser.Next();
  EXPECT_FALSE(again) << "goes on after an error";
  return frame.error().message;
}

TEST(FrameTest, LiesInBytesAsTheProtocolSays) {
  const std::vector<std::byte> frame = EncodeFrame(FrameType::kBatch, 7, Payload(3));
  const unsigned expected[] = {'E', 'S', 'P', 'W', 1, 0, 5, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0, 1, 2};
  ASSERT_EQ(frame.size(), std::size(expected));
  for (std::size_t i = 0; i < frame.size(); ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(frame[i]), expected[i]) << "byte " << i;
  }
}

TEST(FrameTest, AStreamIsCutIntoFramesHoweverItArrives) {
  std::vector<std::byte> stream;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto frame = EncodeFrame(FrameType::kProgress, i, Payload(i * 5));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (const std::size_t step : {1, 3, 16, 17, 1000}) {
    FrameParser parser;
    std::size_t count = 0;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      parser.Feed(std::span(stream).subspan(at, std::min(step, stream.size() - at)));
      for (;;) {
        auto frame = parser.Next();
        ASSERT_TRUE(frame) << frame.error().message;
        if (!*frame) break;
        EXPECT_EQ((*frame)->type, FrameType::kProgress);
        EXPECT_EQ((*frame)->payload, Payload(count * 5));
        ++count;
      }
    }
    EXPECT_EQ(count, 4U);
    EXPECT_EQ(parser.num_pending(), 0U);
  }
}

TEST(FrameTest, ATruncatedFrameIsPending) {
  auto frame = EncodeFrame(FrameType::kReady, 0, Payload(8));
  frame.pop_back();
  FrameParser parser;
  parser.Feed(frame);
  auto next = parser.Next();
  ASSERT_TRUE(next);
  EXPECT_FALSE(*next);
  EXPECT_EQ(parser.num_pending(), frame.size());
}

TEST(FrameTest, AFaultOfTheHeaderIsNamed) {
  const auto change = [](std::size_t at, unsigned value) {
    auto frame = EncodeFrame(FrameType::kReady, 0, Payload(8));
    frame[at] = static_cast<std::byte>(value);
    return frame;
  };
  EXPECT_THAT(ErrorOf(change(0, 'X')), HasSubstr("begins with 57505358, not 57505345"));
  EXPECT_THAT(ErrorOf(change(4, 2)), HasSubstr("protocol version 2, not 1"));
  EXPECT_THAT(ErrorOf(change(6, 99)), HasSubstr("unknown type 99"));
  EXPECT_THAT(ErrorOf(change(6, 0)), HasSubstr("unknown type 0"));
  EXPECT_THAT(ErrorOf(change(8, 3)), HasSubstr("a ready frame has number 3 where 0 was due"));
  EXPECT_THAT(ErrorOf(change(15, 1)), HasSubstr("16777224 bytes of payload, more than 1048576"));
}

TEST(FrameTest, ARepeatedFrameIsAnError) {
  FrameParser parser;
  parser.Feed(EncodeFrame(FrameType::kDone, 0, {}));
  parser.Feed(EncodeFrame(FrameType::kDone, 0, {}));
  EXPECT_TRUE(parser.Next());
  auto second = parser.Next();
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("number 0 where 1 was due"));
}

}  // namespace
}  // namespace moe::ipc
