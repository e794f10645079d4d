#include "engine/grammar/number_rules.h"

#include <algorithm>
#include <format>
#include <string_view>
#include <vector>

namespace engine {
namespace {

constexpr std::size_t kMaxDigits = 18;
constexpr std::string_view kFraction = "(\".\" [0-9]{1,16})?";

std::string Join(const std::vector<std::string>& alternatives) {
  std::string body;
  for (const std::string& one : alternatives) {
    if (one.empty()) continue;
    body += (body.empty() ? "" : " | ") + one;
  }
  return body;
}

std::string Group(const std::string& body) { return body.empty() ? body : "(" + body + ")"; }

std::string Digits(std::size_t count) {
  return count == 0 ? std::string() : std::format(" [0-9]{{{}}}", count);
}

std::string Digit(char from, char to) {
  return from == to ? std::format("[{}]", from) : std::format("[{}-{}]", from, to);
}

// Numbers of as many digits as both bounds have, between them.
std::string SameLength(std::string_view low, std::string_view high) {
  if (low.empty()) return {};
  if (low.find_first_not_of('0') == std::string_view::npos &&
      high.find_first_not_of('9') == std::string_view::npos) {
    return std::format("[0-9]{{{}}}", low.size());
  }
  const std::string_view low_rest = low.substr(1);
  const std::string_view high_rest = high.substr(1);
  const auto tail = [](const std::string& rest) { return rest.empty() ? rest : " " + Group(rest); };
  if (low.front() == high.front()) {
    return Digit(low.front(), low.front()) + tail(SameLength(low_rest, high_rest));
  }
  const std::string nines(low_rest.size(), '9');
  const std::string zeros(low_rest.size(), '0');
  char first = low.front();
  char last = high.front();
  std::vector<std::string> alternatives;
  if (low_rest != zeros) {
    alternatives.push_back(Digit(first, first) + tail(SameLength(low_rest, nines)));
    ++first;
  }
  std::string upper;
  if (high_rest != nines) {
    upper = Digit(last, last) + tail(SameLength(zeros, high_rest));
    --last;
  }
  if (first <= last) alternatives.push_back(Digit(first, last) + Digits(low_rest.size()));
  alternatives.push_back(upper);
  return Join(alternatives);
}

// Numbers from `low` to `high`, both at least 0; without `high`: all from `low` on.
std::string Magnitude(std::int64_t low, std::optional<std::int64_t> high) {
  if (high && *high < low) return {};
  std::vector<std::string> alternatives;
  std::string from = std::to_string(low);
  const std::size_t most = high ? std::to_string(*high).size() : from.size();
  for (std::size_t length = from.size(); length <= most; ++length) {
    const std::string nines(length, '9');
    const std::string to = high && length == most ? std::to_string(*high) : nines;
    if (length > from.size()) from = "1" + std::string(length - 1, '0');
    // Zero is the one number that begins with a zero.
    if (from == "0") {
      alternatives.emplace_back("\"0\"");
      if (to != "0") alternatives.push_back(SameLength("1", to));
    } else {
      alternatives.push_back(SameLength(from, to));
    }
  }
  if (!high) alternatives.push_back(std::format("[1-9] [0-9]{{{},{}}}", most, kMaxDigits - 1));
  return Join(alternatives);
}

// Decimal numbers between two magnitudes.
std::string DecimalMagnitude(std::int64_t low, bool low_is_exclusive,
                             std::optional<std::int64_t> high, bool high_is_exclusive) {
  if (high && (*high < low || (*high == low && (low_is_exclusive || high_is_exclusive)))) return {};
  std::vector<std::string> alternatives;
  const auto with_fraction = [](const std::string& whole) {
    return whole.empty() ? whole : std::format("{} {}", Group(whole), kFraction);
  };
  std::int64_t first = low;
  if (low_is_exclusive) {
    alternatives.push_back(std::format("\"{}.\" [0-9]{{0,15}} [1-9] [0-9]{{0,15}}", low));
    ++first;
  }
  if (!high) {
    alternatives.push_back(with_fraction(Magnitude(first, std::nullopt)));
    return Join(alternatives);
  }
  alternatives.push_back(with_fraction(Magnitude(first, *high - 1)));
  if (!high_is_exclusive) {
    alternatives.push_back(std::format("\"{}\" (\".\" [0]{{1,16}})?", *high));
  }
  return Join(alternatives);
}

// What `magnitude` makes of the part of the range below zero, as positive numbers, and of the rest.
template <class MagnitudeBody>
std::string BothSigns(const NumberBounds& b, const MagnitudeBody& magnitude) {
  std::vector<std::string> alternatives;
  if (!b.most || *b.most >= 0) {
    const bool cut = b.least && *b.least >= 0;
    alternatives.push_back(
        magnitude(cut ? *b.least : 0, cut && b.least_is_exclusive, b.most, b.most_is_exclusive));
  }
  if (!b.least || *b.least < 0) {
    const bool cut = b.most && *b.most < 0;
    const std::optional<std::int64_t> largest = b.least ? std::optional(-*b.least) : std::nullopt;
    // Minus zero is left out.
    const std::string body = magnitude(cut ? -*b.most : 0, cut ? b.most_is_exclusive : true,
                                       largest, b.least_is_exclusive);
    if (!body.empty()) alternatives.push_back("\"-\" " + Group(body));
  }
  return Join(alternatives);
}

}  // namespace

std::string IntegerBody(const NumberBounds& bounds) {
  if (!bounds.any()) return "\"-\"? (\"0\" | [1-9] [0-9]{0,17})";
  return BothSigns(bounds, [](std::int64_t low, bool low_is_exclusive,
                              std::optional<std::int64_t> high, bool high_is_exclusive) {
    if (high && high_is_exclusive) --*high;
    return Magnitude(low + (low_is_exclusive ? 1 : 0), high);
  });
}

std::string NumberBody(const NumberBounds& bounds) {
  if (!bounds.any()) {
    return std::format("\"-\"? (\"0\" | [1-9] [0-9]{{0,17}}) {} ([eE] [-+]? [0-9]{{1,3}})?",
                       kFraction);
  }
  return BothSigns(bounds, DecimalMagnitude);
}

}  // namespace engine
