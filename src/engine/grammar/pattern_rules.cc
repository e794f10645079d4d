#include "engine/grammar/pattern_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <optional>
#include <utility>
#include <vector>

namespace engine {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Result;

constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr int kMaxDepth = 50;
// Any character but a line break.
constexpr std::string_view kDot =
    "([^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bft] | \"u\" [0-9a-fA-F]{4}))";
constexpr std::string_view kAny =
    "([^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))*";

// What JSON writes with a backslash, and the letter behind it.
constexpr std::array<std::pair<char32_t, char>, 7> kEscapes = {
    {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}};

struct Range {
  char32_t first = 0;
  char32_t last = 0;
};
using Set = std::vector<Range>;

Set Complement(Set set) {
  std::ranges::sort(set, {}, &Range::first);
  Set rest;
  char32_t next = 0;
  for (const Range& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = std::max(next, static_cast<char32_t>(range.last + 1));
  }
  if (next <= kLastCharacter) rest.push_back({next, kLastCharacter});
  return rest;
}

bool Contains(const Set& set, char32_t c) {
  return std::ranges::any_of(set, [&](const Range& r) { return r.first <= c && c <= r.last; });
}

// The class \d, \w or \s and the like; none for another letter.
std::optional<Set> NamedSet(char32_t letter) {
  const Set digits = {{'0', '9'}};
  const Set words = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  const Set spaces = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x2028, 0x2029}, {0xFEFF, 0xFEFF}};
  switch (letter) {
    case 'd':
      return digits;
    case 'D':
      return Complement(digits);
    case 'w':
      return words;
    case 'W':
      return Complement(words);
    case 's':
      return spaces;
    case 'S':
      return Complement(spaces);
    default:
      return std::nullopt;
  }
}

// One character of the set, as it stands in a JSON string.
std::string SetBody(const Set& set) {
  Set outside = Complement(set);
  outside.insert(outside.end(), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}});
  std::vector<std::string> alternatives;
  std::string plain;
  for (const Range& range : Complement(outside)) {
    plain += ClassCharacter(range.first);
    if (range.last != range.first) plain += "-" + ClassCharacter(range.last);
  }
  if (!plain.empty()) alternatives.push_back("[" + plain + "]");
  for (const auto& [character, letter] : kEscapes) {
    if (Contains(set, character)) alternatives.push_back(Literal(std::string("\\") + letter));
  }
  if (alternatives.size() == 1) return alternatives.front();
  std::string body;
  for (const std::string& one : alternatives) body += (body.empty() ? "" : " | ") + one;
  return body.empty() ? body : "(" + body + ")";
}

// UTF-8 to code points; bytes that are none stand for themselves.
std::u32string Decode(std::string_view text) {
  std::u32string decoded;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (length == 1 || i + length > text.size()) {
      decoded += lead;
      ++i;
      continue;
    }
    char32_t code = lead & (0xFFU >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      code = (code << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3FU);
    }
    decoded += code;
    i += length;
  }
  return decoded;
}

class PatternParser {
 public:
  PatternParser(std::string_view pattern, GrammarText& text)
      : shown_(pattern), pattern_(Decode(pattern)), text_(text) {}

  Result<std::string> Parse() {
    std::string body;
    do {
      auto one = OutermostAlternative();
      if (!one) return one;
      body += (body.empty() ? "" : " | ") + *one;
    } while (Eat('|'));
    if (!AtEnd()) return Broken("an unmatched ')'");
    return body;
  }

 private:
  bool AtEnd() const { return at_ >= pattern_.size(); }
  char32_t Peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : 0;
  }
  bool Eat(char32_t c) {
    if (AtEnd() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::unexpected<base::Error> Broken(std::string_view what) const {
    return Fail(ErrorKind::kInvalidInput, "pattern '{}' has {} at character {}", shown_, what,
                at_ + 1);
  }
  std::unexpected<base::Error> Unsupported(std::string_view what) const {
    return Fail(ErrorKind::kUnsupported, "pattern '{}': {} at character {} is not supported",
                shown_, what, at_ + 1);
  }

  Result<std::string> OutermostAlternative() {
    const bool from_start = Eat('^');
    auto body = Sequence(/*outermost=*/true);
    if (!body) return body;
    const bool to_end = Eat('$');
    if (!AtEnd() && Peek() != '|' && Peek() != ')') return Unsupported("an anchor in the middle");
    std::string whole = from_start ? std::string() : std::string(kAny);
    if (!body->empty()) whole += (whole.empty() ? "" : " ") + *body;
    if (!to_end) whole += (whole.empty() ? "" : " ") + std::string(kAny);
    return whole.empty() ? "\"\"" : whole;
  }

  Result<std::string> Sequence(bool outermost) {
    std::string body;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '^') return Unsupported("an anchor in the middle");
      if (Peek() == '$') {
        if (outermost) break;
        return Unsupported("an anchor in a group");
      }
      auto atom = Atom();
      if (!atom) return atom;
      auto repeated = Quantified(*std::move(atom));
      if (!repeated) return repeated;
      body += (body.empty() ? "" : " ") + *repeated;
    }
    return body;
  }

  Result<std::string> Atom() {
    const char32_t c = Peek();
    if (c == '(') return Group();
    if (c == '[') return Class();
    if (c == '*' || c == '+' || c == '?' || c == '{') return Broken("nothing to repeat");
    ++at_;
    if (c == '.') return std::string(kDot);
    if (c != '\\') return SetBody({{c, c}});
    if (const auto named = NamedSet(Peek())) {
      ++at_;
      return SetBody(*named);
    }
    if (Peek() == 'b' || Peek() == 'B') return Unsupported("a word boundary");
    if (Peek() >= '1' && Peek() <= '9') return Unsupported("a back reference");
    auto escaped = Escaped();
    if (!escaped) return base::Forward(escaped);
    std::string body = SetBody({{*escaped, *escaped}});
    if (body.empty()) return Unsupported("a control character");
    return body;
  }

  Result<std::string> Group() {
    if (++depth_ > kMaxDepth) return Unsupported("nesting this deep");
    ++at_;
    if (Eat('?')) {
      const bool named = Peek() == '<' && Peek(1) != '=' && Peek(1) != '!';
      if (named) {
        while (!AtEnd() && !Eat('>')) ++at_;
      } else if (!Eat(':')) {
        return Unsupported("lookaround or a flag");
      }
    }
    std::string body;
    do {
      auto one = Sequence(/*outermost=*/false);
      if (!one) return one;
      body += (body.empty() ? "" : " | ") + (one->empty() ? "\"\"" : *one);
    } while (Eat('|'));
    if (!Eat(')')) return Broken("an unmatched '('");
    --depth_;
    return "(" + body + ")";
  }

  Result<std::string> Class() {
    ++at_;
    const bool negated = Eat('^');
    Set set;
    while (!AtEnd() && Peek() != ']') {
      auto first = ClassAtom(set);
      if (!first) return base::Forward(first);
      if (Peek() != '-' || Peek(1) == ']' || !first->has_value()) {
        if (first->has_value()) set.push_back({**first, **first});
        continue;
      }
      ++at_;
      auto last = ClassAtom(set);
      if (!last) return base::Forward(last);
      if (!last->has_value() || **last < **first) return Broken("a range out of order");
      set.push_back({**first, **last});
    }
    if (!Eat(']')) return Broken("an unmatched '['");
    std::string body = SetBody(negated ? Complement(set) : set);
    if (body.empty()) return Unsupported("a class that no JSON string matches");
    return body;
  }

  // A character of a class; none for a named set, which is added to `set`.
  Result<std::optional<char32_t>> ClassAtom(Set& set) {
    const char32_t c = Peek();
    ++at_;
    if (c != '\\') return c;
    if (const auto named = NamedSet(Peek())) {
      set.insert(set.end(), named->begin(), named->end());
      ++at_;
      return std::nullopt;
    }
    if (Eat('b')) return U'\b';
    auto escaped = Escaped();
    if (!escaped) return base::Forward(escaped);
    return *escaped;
  }

  // What stands behind a backslash.
  Result<char32_t> Escaped() {
    if (AtEnd()) return Broken("a backslash at its end");
    const char32_t c = pattern_[at_++];
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) return Unsupported("this escape");
    return c;
  }

  Result<char32_t> Hex(std::size_t digits) {
    std::string text;
    for (std::size_t i = 0; i < digits; ++i) text += static_cast<char>(Peek(i) & 0x7F);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + digits, code, 16);
    if (error != std::errc() || end != text.data() + digits) return Broken("a bad hex escape");
    at_ += digits;
    return static_cast<char32_t>(code);
  }

  Result<std::size_t> Number() {
    std::size_t value = 0;
    if (Peek() < '0' || Peek() > '9') return Broken("a bad quantifier");
    while (Peek() >= '0' && Peek() <= '9') {
      value = value * 10 + (pattern_[at_++] - U'0');
      if (value > kMaxRepeat) return Unsupported("this many repetitions");
    }
    return value;
  }

  Result<std::string> Quantified(std::string item) {
    std::size_t least = 1;
    std::size_t most = 1;
    if (Eat('*')) {
      least = 0;
      most = kUnlimited;
    } else if (Eat('+')) {
      most = kUnlimited;
    } else if (Eat('?')) {
      least = 0;
    } else if (Eat('{')) {
      auto low = Number();
      if (!low) return base::Forward(low);
      least = most = *low;
      if (Eat(',')) {
        most = kUnlimited;
        if (Peek() != '}') {
          auto high = Number();
          if (!high) return base::Forward(high);
          most = *high;
        }
      }
      if (!Eat('}') || most < least) return Broken("a bad quantifier");
    } else {
      return item;
    }
    Eat('?');
    return text_.Repeat(item, least, most);
  }

  std::string_view shown_;
  std::u32string pattern_;
  GrammarText& text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<std::string> PatternBody(std::string_view pattern, GrammarText& text) {
  return PatternParser(pattern, text).Parse();
}

}  // namespace engine
