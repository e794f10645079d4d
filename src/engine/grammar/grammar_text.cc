#include "engine/grammar/grammar_text.h"

#include <format>

#include "base/check.h"

namespace engine {
namespace {

// libllama refuses larger numbers in {m,n}; longer runs are made of blocks.
constexpr std::size_t kBlock = 64;

bool IsRuleCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

std::string Times(const std::string& item, std::size_t least, std::size_t most) {
  if (most == kUnlimited) {
    if (least == 0) return item + "*";
    if (least == 1) return item + "+";
    return std::format("{}{{{},}}", item, least);
  }
  if (least == most) return least == 1 ? item : std::format("{}{{{}}}", item, least);
  if (least == 0 && most == 1) return item + "?";
  return std::format("{}{{{},{}}}", item, least, most);
}

}  // namespace

std::string Literal(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += std::format("\\x{:02X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string ClassCharacter(char32_t character) {
  const auto code = static_cast<std::uint32_t>(character);
  if (code < 0x80 && IsRuleCharacter(static_cast<char>(code)) && code != '-') {
    return std::string(1, static_cast<char>(code));
  }
  if (code <= 0xFF) return std::format("\\x{:02X}", code);
  if (code <= 0xFFFF) return std::format("\\u{:04X}", code);
  return std::format("\\U{:08X}", code);
}

std::string GrammarText::Reserve(std::string_view name) {
  std::string clean;
  for (const char c : name) clean += IsRuleCharacter(c) ? c : '-';
  if (clean.empty() || clean == "root") clean += "-rule";
  std::string unique = clean;
  for (int i = 2; rules_.contains(unique); ++i) unique = std::format("{}-{}", clean, i);
  rules_.emplace(unique, std::string());
  order_.push_back(unique);
  size_ += unique.size() + 6;
  return unique;
}

void GrammarText::Define(const std::string& reserved, std::string body) {
  ES_CHECK(rules_.contains(reserved));
  size_ += body.size();
  rules_[reserved] = std::move(body);
}

std::string GrammarText::Add(std::string_view name, std::string body) {
  const auto found = rules_.find(name);
  if (found != rules_.end() && found->second == body) return found->first;
  std::string unique = Reserve(name);
  Define(unique, std::move(body));
  return unique;
}

std::string GrammarText::Repeat(const std::string& item, std::size_t least, std::size_t most) {
  ES_CHECK(least <= most && least <= kMaxRepeat && (most == kUnlimited || most <= kMaxRepeat));
  if (most == 0) return "\"\"";
  const bool small = least <= kBlock && (most == kUnlimited || most <= kBlock);
  if (small) return Times(item, least, most);
  const std::string block = Add("block", Times(item, kBlock, kBlock));
  std::string body;
  const auto append = [&](const std::string& part) { body += (body.empty() ? "" : " ") + part; };
  if (least / kBlock > 0) append(Times(block, least / kBlock, least / kBlock));
  if (least % kBlock > 0) append(Times(item, least % kBlock, least % kBlock));
  if (most == kUnlimited) {
    append(Times(item, 0, kUnlimited));
  } else if (const std::size_t rest = most - least; rest > 0 && rest < kBlock) {
    append(Times(item, 0, rest));
  } else if (rest > 0) {
    // Full blocks and less than one more, or all blocks and the remainder.
    const std::string partial = Times(item, 0, kBlock - 1);
    const std::string full = Times(block, rest / kBlock, rest / kBlock);
    const std::string remainder =
        rest % kBlock > 0 ? " " + Times(item, 0, rest % kBlock) : std::string();
    const std::string fewer =
        rest / kBlock > 1 ? Times(block, 0, rest / kBlock - 1) + " " : std::string();
    append(std::format("({}{} | {}{})", fewer, partial, full, remainder));
  }
  return Add("repeat", body);
}

std::string GrammarText::Finish(const std::string& root_body) const {
  std::string text = "root ::= " + root_body + "\n";
  for (const std::string& name : order_) {
    text += name + " ::= " + rules_.find(name)->second + "\n";
  }
  return text;
}

}  // namespace engine
