// What arrives on a worker's connection, on either side: a stream cut into frames, each payload
// read as the message of its type. What reads writes the same bytes; what does not has a message of
// one printable line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "moe/ipc/frame.h"
#include "moe/ipc/messages.h"

namespace {

using namespace moe::ipc;

void CheckError(const base::Error& error) {
  ES_CHECK(error.kind == base::ErrorKind::kWorkerLost);
  ES_CHECK(!error.message.empty());
  for (const char c : error.message) ES_CHECK(c >= 0x20 && c < 0x7f);
}

template <class T>
void CheckMessage(const base::Result<T>& message, std::span<const std::byte> payload) {
  if (!message) return CheckError(message.error());
  ES_CHECK(std::ranges::equal(Encode(*message), payload));
}

void CheckFrame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kWelcome:
      return CheckMessage(DecodeWelcome(frame.payload), frame.payload);
    case FrameType::kLoad:
      return CheckMessage(DecodeLoadOrder(frame.payload), frame.payload);
    case FrameType::kProgress:
      return CheckMessage(DecodeLoadProgress(frame.payload), frame.payload);
    case FrameType::kReady:
      return CheckMessage(DecodeReady(frame.payload), frame.payload);
    case FrameType::kBatch:
      return CheckMessage(DecodeBatchOrder(frame.payload), frame.payload);
    case FrameType::kDone:
      return CheckMessage(DecodeBatchDone(frame.payload), frame.payload);
    case FrameType::kFailure:
      // Not the same bytes: what is not printable is escaped.
      if (auto failure = DecodeFailure(frame.payload); !failure) CheckError(failure.error());
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  FrameParser parser;
  // In pieces of changing size, as a socket gives them.
  std::size_t at = 0;
  for (std::size_t step = 1; at < bytes.size(); step = step * 2 + 1) {
    const std::size_t count = std::min(step, bytes.size() - at);
    parser.Feed(bytes.subspan(at, count));
    at += count;
    for (;;) {
      auto frame = parser.Next();
      if (!frame) {
        CheckError(frame.error());
        return 0;
      }
      if (!*frame) break;
      CheckFrame(**frame);
    }
  }
  return 0;
}
