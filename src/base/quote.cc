#include "base/quote.h"

#include <cstddef>
#include <format>

namespace base {
namespace {

constexpr std::size_t kMaxShown = 80;

}  // namespace

std::string Quote(std::string_view text) {
  const bool cut = text.size() > kMaxShown;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShown)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += std::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  out += cut ? std::format("...\" ({} bytes)", text.size()) : "\"";
  return out;
}

}  // namespace base
