// Whether bytes are text. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace base {

// Offset of the first byte of `text` that begins no well-formed UTF-8 sequence (as RFC 3629 has it:
// no overlong form, no surrogate, nothing above U+10FFFF); absent when all is UTF-8.
std::optional<std::size_t> FindNonUtf8(std::string_view text);

}  // namespace base
