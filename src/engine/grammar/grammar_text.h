// GBNF, as libllama reads it, in the making. One thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

// A literal: "…", escaped. `text` is UTF-8.
std::string Literal(std::string_view text);
// One code point as it may stand in a character class.
std::string ClassCharacter(char32_t character);

// No upper limit of a repetition.
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
// The largest bound that Repeat takes, other than kUnlimited.
inline constexpr std::size_t kMaxRepeat = 1 << 16;

class GrammarText {
 public:
  // Adds `name ::= body` and returns the name, which has a number appended when it is taken by
  // another body. Of `name` everything but letters, digits and '-' becomes '-'.
  std::string Add(std::string_view name, std::string body);
  // A name for a rule whose body follows: for what refers to itself.
  std::string Reserve(std::string_view name);
  void Define(const std::string& reserved, std::string body);

  // From `least` to `most` of `item`, which is a rule's name, a literal or a class. Unambiguous, so
  // that matching stays cheap. Precondition: least <= most, both at most kMaxRepeat or kUnlimited.
  std::string Repeat(const std::string& item, std::size_t least, std::size_t most);

  // All rules, one a line, and root.
  std::string Finish(const std::string& root_body) const;
  std::size_t size() const { return size_; }  // bytes so far

 private:
  std::map<std::string, std::string, std::less<>> rules_;  // by name
  std::vector<std::string> order_;
  std::size_t size_ = 0;
};

}  // namespace engine
