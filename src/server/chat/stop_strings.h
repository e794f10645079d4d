// Ends a text at the first stop string, wherever tokens cut it, and never shows a part of one.
//
// Pure value; one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace server {

class StopStrings {
 public:
  // Empty strings are passed over.
  explicit StopStrings(std::vector<std::string> stops);

  // What can be shown by now: everything in front of a stop string, and of what may become one.
  // After a stop string nothing.
  std::string Feed(std::string_view text);
  // What was kept because it might have become a stop string, when no more text comes.
  std::string Finish();

  bool stopped() const { return !matched_.empty(); }
  // The stop string that ended the text; empty before.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
};

// Bytes at the end of `text` that are the beginning of `word`, but not all of it.
std::size_t PartialSuffix(std::string_view text, std::string_view word);

}  // namespace server
