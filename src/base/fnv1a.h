// FNV-1a, 64 bit: the hash behind plan fingerprints and model identities. Numbers enter as eight
// little-endian bytes and strings with their length in front, so the value is the same in every
// process on every machine. A value; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace base {

class Fnv1a {
 public:
  constexpr void Byte(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }
  constexpr void Number(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) Byte(static_cast<std::uint8_t>(number >> shift));
  }
  constexpr void Text(std::string_view text) {
    Number(text.size());
    for (const char c : text) Byte(static_cast<std::uint8_t>(c));
  }
  constexpr void Bytes(std::span<const std::uint8_t> bytes) {
    Number(bytes.size());
    for (const std::uint8_t byte : bytes) Byte(byte);
  }
  constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace base
