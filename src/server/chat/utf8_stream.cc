#include "server/chat/utf8_stream.h"

#include <cstddef>

namespace server {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What the bytes at the front are.
struct Front {
  enum class Kind { kCharacter, kInvalid, kIncomplete } kind;
  std::size_t size;  // bytes it takes
};

struct ByteRange {
  unsigned char least = 0x80;
  unsigned char greatest = 0xBF;
};

// Bytes of the character that `lead` begins, 0 for one that begins none; and what its second byte
// may be.
std::size_t LengthOf(unsigned char lead, ByteRange& second) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return 2;
  if (lead == 0xE0) second.least = 0xA0;
  if (lead == 0xED) second.greatest = 0x9F;
  if (lead == 0xF0) second.least = 0x90;
  if (lead == 0xF4) second.greatest = 0x8F;
  return lead < 0xF0 ? 3 : 4;
}

Front FrontOf(std::string_view text) {
  ByteRange range;
  const std::size_t length = LengthOf(static_cast<unsigned char>(text[0]), range);
  if (length == 0) return {Front::Kind::kInvalid, 1};
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Front::Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < range.least || byte > range.greatest) return {Front::Kind::kInvalid, i};
    range = {};
  }
  return {Front::Kind::kCharacter, length};
}

}  // namespace

std::string Utf8Stream::Feed(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Front front = FrontOf(rest);
    if (front.kind == Front::Kind::kIncomplete) break;
    text += front.kind == Front::Kind::kCharacter ? rest.substr(0, front.size) : kReplacement;
    rest.remove_prefix(front.size);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::Finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacement);
}

}  // namespace server
