#include "moe/ipc/frame.h"

#include <algorithm>

#include "base/check.h"

namespace moe::ipc {
namespace {

using base::ErrorKind;
using base::Fail;

void Put(std::byte* at, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <class T>
T Get(const std::byte* at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  }
  return static_cast<T>(value);
}

constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTypeAt = 6;
constexpr std::size_t kNumberAt = 8;
constexpr std::size_t kLengthAt = 12;

}  // namespace

std::string_view FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kWelcome:
      return "welcome";
    case FrameType::kLoad:
      return "load";
    case FrameType::kProgress:
      return "progress";
    case FrameType::kReady:
      return "ready";
    case FrameType::kBatch:
      return "batch";
    case FrameType::kDone:
      return "done";
    case FrameType::kFailure:
      return "failure";
  }
  return "unknown";
}

std::vector<std::byte> EncodeFrame(FrameType type, std::uint32_t number,
                                   std::span<const std::byte> payload) {
  ES_CHECK(payload.size() <= kMaxPayloadBytes);
  std::vector<std::byte> frame(kFrameHeaderBytes + payload.size());
  Put(frame.data(), kFrameMagic, 4);
  Put(frame.data() + kVersionAt, kProtocolVersion, 2);
  Put(frame.data() + kTypeAt, static_cast<std::uint16_t>(type), 2);
  Put(frame.data() + kNumberAt, number, 4);
  Put(frame.data() + kLengthAt, payload.size(), 4);
  std::ranges::copy(payload, frame.begin() + kFrameHeaderBytes);
  return frame;
}

void FrameParser::Feed(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

base::Result<std::optional<Frame>> FrameParser::Next() {
  if (failed_) return std::unexpected(*failed_);
  auto frame = Parse();
  if (!frame) failed_ = frame.error();
  return frame;
}

base::Result<std::optional<Frame>> FrameParser::Parse() {
  const std::span<const std::byte> rest = std::span(buffer_).subspan(begin_);
  if (rest.size() < kFrameHeaderBytes) return std::optional<Frame>();
  const auto magic = Get<std::uint32_t>(rest.data());
  const auto version = Get<std::uint16_t>(rest.data() + kVersionAt);
  const auto type = static_cast<FrameType>(Get<std::uint16_t>(rest.data() + kTypeAt));
  const auto number = Get<std::uint32_t>(rest.data() + kNumberAt);
  const std::size_t length = Get<std::uint32_t>(rest.data() + kLengthAt);
  if (magic != kFrameMagic) {
    return Fail(ErrorKind::kWorkerLost,
                "frame {} begins with {:08x}, not {:08x}: the other side does not speak this "
                "protocol",
                number_, magic, kFrameMagic);
  }
  if (version != kProtocolVersion) {
    return Fail(ErrorKind::kWorkerLost,
                "frame {} is of protocol version {}, not {}; run the same version of expert-split "
                "on both sides",
                number_, version, kProtocolVersion);
  }
  if (FrameTypeName(type) == "unknown") {
    return Fail(ErrorKind::kWorkerLost, "frame {} is of the unknown type {}", number_,
                static_cast<std::uint16_t>(type));
  }
  if (number != number_) {
    return Fail(ErrorKind::kWorkerLost, "a {} frame has number {} where {} was due",
                FrameTypeName(type), number, number_);
  }
  if (length > kMaxPayloadBytes) {
    return Fail(ErrorKind::kWorkerLost, "{} frame {} has {} bytes of payload, more than {}",
                FrameTypeName(type), number, length, kMaxPayloadBytes);
  }
  if (rest.size() < kFrameHeaderBytes + length) return std::optional<Frame>();
  const auto payload = rest.subspan(kFrameHeaderBytes, length);
  begin_ += kFrameHeaderBytes + length;
  ++number_;
  return std::optional<Frame>(Frame{type, {payload.begin(), payload.end()}});
}

}  // namespace moe::ipc
