// Frames: how messages between this program and a worker lie on a socket (docs/wire_protocol.md).
//
// A frame is a header of 16 bytes and a payload of a stated length. Every number is little-endian.
// Frames of each direction are numbered from 0, so that a lost, repeated or reordered one is
// noticed. Reading never trusts: a wrong magic, version, type, number or length is an error that
// says which, and whoever gets one closes the connection. Values; FrameParser: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace moe::ipc {

inline constexpr std::uint32_t kFrameMagic = 0x57505345;  // the bytes "ESPW"
inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kMaxPayloadBytes = 1 << 20;

enum class FrameType : std::uint16_t {
  kWelcome = 1,   // worker: what it has and hosts
  kLoad = 2,      // owner of the worker: the units to load; a descriptor of shared memory with it
  kProgress = 3,  // worker: bytes loaded
  kReady = 4,     // worker: everything of kLoad is loaded
  kBatch = 5,     // owner: a batch lies in the shared memory
  kDone = 6,      // worker: its results lie there
  kFailure = 7,   // worker: why there will be no answer
};

// "welcome", "load", ...; "unknown" for a number that is no type.
std::string_view FrameTypeName(FrameType type);

struct Frame {
  FrameType type = FrameType::kWelcome;
  std::vector<std::byte> payload;
};

// Header and payload. Precondition: the payload is at most kMaxPayloadBytes.
std::vector<std::byte> EncodeFrame(FrameType type, std::uint32_t number,
                                   std::span<const std::byte> payload);

// Cuts a stream of bytes into frames.
class FrameParser {
 public:
  // Appends what arrived.
  void Feed(std::span<const std::byte> bytes);
  // The next whole frame, or nothing while it is not all there. Errors: kWorkerLost, naming what is
  // wrong with the header; every later call gives the same error.
  base::Result<std::optional<Frame>> Next();
  // Bytes that arrived of a frame that is not all there.
  std::size_t num_pending() const { return buffer_.size() - begin_; }

 private:
  base::Result<std::optional<Frame>> Parse();

  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::uint32_t number_ = 0;  // of the next frame
  std::optional<base::Error> failed_;
};

}  // namespace moe::ipc
