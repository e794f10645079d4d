#include "model/text/grammar_syntax.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <map>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/utf8.h"

namespace model {
namespace {

using base::ErrorKind;
using base::Fail;

// libllama's: repetitions, also inside one another, beyond this many are refused.
constexpr std::uint64_t kMaxRepetitions = 2000;
// Elements that repetitions copy.
constexpr std::uint64_t kMaxElements = 1 << 20;
constexpr std::size_t kMaxDigits = 9;
// Of how often something may be repeated.
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '-';
}

class GrammarReader {
 public:
  explicit GrammarReader(std::string_view text) : text_(text) {}

  // False when error() is set.
  bool Read();
  const base::Error& error() const { return *error_; }
  std::vector<std::string> TakeTokenNames() { return std::move(token_names_); }

 private:
  // What stands before a repetition.
  struct Item {
    std::uint64_t elements = 0;  // 0: there is nothing to repeat
    std::uint64_t rules = 1;
  };
  struct Name {
    std::size_t first_use = 0;
    bool defined = false;
  };

  char Peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool AtEnd() const { return at_ >= text_.size(); }
  std::size_t num_symbols() const { return names_.size() + num_made_; }

  template <class... Args>
  bool FailAt(std::size_t at, std::format_string<Args...> format, Args&&... args);
  bool Expected(std::string_view what);

  void SkipSpace(bool newlines);
  bool ReadRule();
  bool ReadAlternates(std::size_t depth);
  bool ReadSequence(std::size_t depth);
  // What may stand between repetitions: a literal, class, group, name, token or dot. Unset
  // `is_item` when there is none.
  bool ReadItem(std::size_t depth, Item& item, bool& is_item);
  bool ReadLiteral(Item& item);
  bool ReadClass(Item& item);
  bool ReadGroup(std::size_t depth, Item& item);
  bool ReadToken(Item& item);
  bool ReadCharacter();
  std::string_view ReadName();
  bool ReadNumber(std::uint64_t& number);
  bool ReadRepetition(Item& item, bool nested);
  bool ReadBraces(std::uint64_t& least, std::uint64_t& most, bool nested);
  bool Repeat(std::uint64_t least, std::uint64_t most, std::size_t begin, Item& item);
  bool CheckRules();
  bool CheckNames();

  std::string_view text_;
  std::size_t at_ = 0;
  std::map<std::string, Name, std::less<>> names_;
  std::size_t num_made_ = 0;  // rules without a name of their own
  std::uint64_t num_copied_ = 0;
  std::vector<std::string> token_names_;
  std::optional<base::Error> error_;
};

template <class... Args>
bool GrammarReader::FailAt(std::size_t at, std::format_string<Args...> format, Args&&... args) {
  const std::string_view before = text_.substr(0, at);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  error_ = base::Error{ErrorKind::kInvalidInput,
                       std::format("the grammar, line {}, column {}: ", line, at - start + 1) +
                           std::format(format, std::forward<Args>(args)...)};
  return false;
}

bool GrammarReader::Expected(std::string_view what) {
  constexpr std::size_t kShown = 20;
  if (AtEnd()) return FailAt(at_, "it ends where {} is expected", what);
  std::string_view found = text_.substr(at_, kShown);
  found = found.substr(0, found.find_first_of("\r\n"));
  if (const auto cut = base::FindNonUtf8(found)) found = found.substr(0, *cut);
  return FailAt(at_, "expected {}, found {}", what,
                found.empty() ? "the end of the line" : base::Quote(found));
}

void GrammarReader::SkipSpace(bool newlines) {
  while (!AtEnd()) {
    const char c = Peek();
    if (c == '#') {
      at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
    } else if (c == ' ' || c == '\t' || (newlines && (c == '\r' || c == '\n'))) {
      ++at_;
    } else {
      return;
    }
  }
}

bool GrammarReader::Read() {
  SkipSpace(true);
  while (!AtEnd()) {
    if (!ReadRule()) return false;
  }
  return CheckNames();
}

bool GrammarReader::ReadRule() {
  const std::size_t begin = at_;
  const std::string name(ReadName());
  if (name.empty()) return Expected("the name of a rule");
  names_.try_emplace(name, Name{begin}).first->second.defined = true;
  SkipSpace(false);
  if (!text_.substr(at_).starts_with("::=")) return Expected("'::='");
  at_ += 3;
  SkipSpace(true);
  if (!ReadAlternates(0)) return false;
  if (!AtEnd() && Peek() != '\r' && Peek() != '\n') return Expected("the end of the rule");
  SkipSpace(true);
  return true;
}

bool GrammarReader::ReadAlternates(std::size_t depth) {
  if (depth > kMaxGrammarDepth) {
    return FailAt(at_, "parentheses nest more than {} deep; use rules instead", kMaxGrammarDepth);
  }
  if (!ReadSequence(depth)) return false;
  while (Peek() == '|') {
    ++at_;
    SkipSpace(true);
    if (!ReadSequence(depth)) return false;
  }
  return true;
}

bool GrammarReader::ReadSequence(std::size_t depth) {
  Item item;
  while (!AtEnd()) {
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?' || c == '{') {
      if (!ReadRepetition(item, depth > 0)) return false;
      continue;
    }
    bool is_item = true;
    Item next;
    if (!ReadItem(depth, next, is_item)) return false;
    if (!is_item) return true;
    item = next;
    if (!CheckRules()) return false;
    SkipSpace(depth > 0);
  }
  return true;
}

bool GrammarReader::ReadItem(std::size_t depth, Item& item, bool& is_item) {
  const char c = Peek();
  if (c == '"') return ReadLiteral(item);
  if (c == '[') return ReadClass(item);
  if (c == '(') return ReadGroup(depth, item);
  if (c == '<' || c == '!') return ReadToken(item);
  item.elements = 1;
  if (c == '.') {
    ++at_;
  } else if (IsNameCharacter(c)) {
    const std::size_t begin = at_;
    names_.try_emplace(std::string(ReadName()), Name{begin});
  } else {
    is_item = false;
  }
  return true;
}

bool GrammarReader::ReadLiteral(Item& item) {
  const std::size_t begin = at_++;
  while (Peek() != '"') {
    if (AtEnd()) return FailAt(begin, "the literal does not end; close it with '\"'");
    if (!ReadCharacter()) return false;
    ++item.elements;
  }
  ++at_;
  return true;
}

bool GrammarReader::ReadClass(Item& item) {
  const std::size_t begin = at_++;
  if (Peek() == '^') ++at_;
  while (Peek() != ']') {
    if (AtEnd()) return FailAt(begin, "the character class does not end; close it with ']'");
    if (!ReadCharacter()) return false;
    ++item.elements;
    if (Peek() == '-' && Peek(1) != ']') {
      ++at_;
      if (AtEnd()) return FailAt(begin, "the character class does not end; close it with ']'");
      if (!ReadCharacter()) return false;
      ++item.elements;
    }
  }
  ++at_;
  return true;
}

bool GrammarReader::ReadGroup(std::size_t depth, Item& item) {
  const std::size_t begin = at_++;
  SkipSpace(true);
  const std::size_t symbols = num_symbols();
  ++num_made_;
  if (!ReadAlternates(depth + 1)) return false;
  if (AtEnd()) return FailAt(begin, "the group does not end; close it with ')'");
  if (Peek() != ')') return Expected("')'");
  ++at_;
  item = {.elements = 1, .rules = std::max<std::uint64_t>(1, num_symbols() - symbols)};
  return true;
}

// <name>, <[id]>, and either behind '!'.
bool GrammarReader::ReadToken(Item& item) {
  item.elements = 1;
  if (Peek() == '!') ++at_;
  if (Peek() != '<') return Expected("'<'");
  if (Peek(1) == '[') {
    at_ += 2;
    std::uint64_t id = 0;
    if (!ReadNumber(id)) return false;
    if (!text_.substr(at_).starts_with("]>")) return Expected("']>'");
    at_ += 2;
    return true;
  }
  const std::size_t end = text_.find('>', at_);
  if (end == std::string_view::npos) {
    return FailAt(at_, "the name of a token does not end; close it with '>'");
  }
  token_names_.emplace_back(text_.substr(at_, end + 1 - at_));
  at_ = end + 1;
  return true;
}

// One character of a literal or class, which may be escaped.
bool GrammarReader::ReadCharacter() {
  if (Peek() != '\\') {
    ++at_;
    while ((static_cast<unsigned char>(Peek()) & 0xC0U) == 0x80U) ++at_;
    return true;
  }
  const char c = Peek(1);
  const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  constexpr std::string_view kEscaped = "trn\\\"[]-";
  if (digits == 0 && (c == '\0' || !kEscaped.contains(c))) {
    return FailAt(at_,
                  "unknown escape; there are \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH "
                  "\\UHHHHHHHH");
  }
  for (std::size_t i = 0; i < digits; ++i) {
    if (!IsHexDigit(Peek(2 + i))) return FailAt(at_, "\\{} takes {} hex digits", c, digits);
  }
  at_ += 2 + digits;
  return true;
}

std::string_view GrammarReader::ReadName() {
  const std::size_t begin = at_;
  while (IsNameCharacter(Peek())) ++at_;
  return text_.substr(begin, at_ - begin);
}

bool GrammarReader::ReadNumber(std::uint64_t& number) {
  const std::size_t begin = at_;
  for (number = 0; IsDigit(Peek()); ++at_) {
    if (at_ - begin >= kMaxDigits) return FailAt(begin, "the number is too large");
    number = number * 10 + static_cast<std::uint64_t>(Peek() - '0');
  }
  return at_ > begin || Expected("a number");
}

bool GrammarReader::ReadRepetition(Item& item, bool nested) {
  const std::size_t begin = at_;
  const char c = text_[at_++];
  SkipSpace(nested);
  std::uint64_t least = c == '+' ? 1 : 0;
  std::uint64_t most = c == '?' ? 1 : kNoLimit;
  if (c == '{' && !ReadBraces(least, most, nested)) return false;
  return Repeat(least, most, begin, item);
}

// "3}", "3,}" or "3,5}".
bool GrammarReader::ReadBraces(std::uint64_t& least, std::uint64_t& most, bool nested) {
  if (!ReadNumber(least)) return false;
  SkipSpace(nested);
  if (Peek() == '}') {
    most = least;
  } else if (Peek() == ',') {
    ++at_;
    SkipSpace(nested);
    if (IsDigit(Peek())) {
      if (!ReadNumber(most)) return false;
      SkipSpace(nested);
    }
    if (Peek() != '}') return Expected("'}'");
  } else {
    return Expected("',' or '}'");
  }
  ++at_;
  SkipSpace(nested);
  return true;
}

bool GrammarReader::Repeat(std::uint64_t least, std::uint64_t most, std::size_t begin, Item& item) {
  if (item.elements == 0) return FailAt(begin, "there is nothing here to repeat");
  if (most < least) return FailAt(begin, "at least {} but at most {}", least, most);
  if (most > kMaxRepetitions) most = kNoLimit;
  const std::uint64_t total = std::max<std::uint64_t>(most == kNoLimit ? least : most, 1);
  const std::uint64_t optional = most == kNoLimit ? 1 : most - least;
  num_made_ += optional;
  num_copied_ += item.elements * (least + optional);
  if (least > kMaxRepetitions || item.rules * total >= kMaxRepetitions ||
      num_copied_ > kMaxElements) {
    return FailAt(begin, "too many repetitions; write fewer, or repeat something simpler");
  }
  item.elements = item.elements * least + (optional > 0 ? 1 : 0);
  item.rules *= total;
  return CheckRules();
}

bool GrammarReader::CheckRules() {
  return num_symbols() <= kMaxGrammarRules ||
         FailAt(at_, "more than {} rules, groups and repetitions", kMaxGrammarRules);
}

bool GrammarReader::CheckNames() {
  for (const auto& [name, use] : names_) {
    if (!use.defined) {
      return FailAt(use.first_use, "there is no rule {}", base::Quote(name));
    }
  }
  if (!names_.contains("root")) return FailAt(0, "there is no rule 'root', where a text begins");
  return true;
}

}  // namespace

base::Result<std::vector<std::string>> CheckGrammar(std::string_view grammar) {
  if (grammar.size() > kMaxGrammarBytes) {
    return Fail(ErrorKind::kInvalidInput, "a grammar of {} bytes; it may have {}", grammar.size(),
                kMaxGrammarBytes);
  }
  if (grammar.contains('\0')) {
    return Fail(ErrorKind::kInvalidInput, "the grammar holds a null character; write \\x00");
  }
  if (const auto at = base::FindNonUtf8(grammar)) {
    return Fail(ErrorKind::kInvalidInput, "the grammar is no UTF-8 at byte {}", *at);
  }
  GrammarReader reader(grammar);
  if (!reader.Read()) return std::unexpected(reader.error());
  return reader.TakeTokenNames();
}

}  // namespace model
