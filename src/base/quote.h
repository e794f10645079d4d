// Foreign text inside a one-line message. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace base {

// `text` in double quotes, safe to print whatever it holds: quotes and backslashes are escaped,
// every byte outside printable ASCII becomes \xNN, and of a text longer than 80 bytes the start is
// shown with its length: "abc..." (4096 bytes).
std::string Quote(std::string_view text);

}  // namespace base
