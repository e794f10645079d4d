// Bytes that arrive cut anywhere become text that is valid UTF-8 at every moment.
//
// A token's bytes may end inside a character; the rest comes with the next token. Pure value; one
// thread.
#pragma once

#include <string>
#include <string_view>

namespace server {

class Utf8Stream {
 public:
  // What can be shown by now: whole characters. A character that is not complete is kept for the
  // next call. Each byte that can belong to no character becomes U+FFFD.
  std::string Feed(std::string_view bytes);
  // What is left when no more bytes come: U+FFFD for a character that was never completed.
  std::string Finish();

 private:
  std::string pending_;  // the beginning of one character, at most 3 bytes
};

}  // namespace server
