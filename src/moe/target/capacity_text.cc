#include "moe/target/capacity_text.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <optional>
#include <utility>

#include "base/quote.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

// Of two equally short texts the printer takes the first, and plain bytes only when they are
// shorter than all.
constexpr std::array<Unit, 9> kUnits = {{
    {"B", 1},
    {"TiB", std::uint64_t{1} << 40},
    {"GiB", std::uint64_t{1} << 30},
    {"MiB", std::uint64_t{1} << 20},
    {"KiB", std::uint64_t{1} << 10},
    {"TB", 1'000'000'000'000},
    {"GB", 1'000'000'000},
    {"MB", 1'000'000},
    {"KB", 1'000},
}};

constexpr std::string_view kSizeForms =
    "a size is a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, or plain bytes";
constexpr std::uint64_t kPercentScale = 1'000'000;
constexpr std::uint64_t kMaxPercent = 100;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (Lower(a[i]) != Lower(b[i])) return false;
  }
  return true;
}

// DIGITS ["." DIGITS] at the start of a text.
struct Decimal {
  std::string_view whole;
  std::string_view fraction;  // without its trailing zeros
  bool has_point = false;
  std::string_view rest;

  std::string_view number(std::string_view text) const {
    return text.substr(0, text.size() - rest.size());
  }
};

std::string_view TakeDigits(std::string_view& text) {
  std::size_t n = 0;
  while (n < text.size() && IsDigit(text[n])) ++n;
  const std::string_view digits = text.substr(0, n);
  text.remove_prefix(n);
  return digits;
}

std::optional<Decimal> ReadDecimal(std::string_view text) {
  Decimal decimal;
  decimal.whole = TakeDigits(text);
  if (decimal.whole.empty()) return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    decimal.has_point = true;
    decimal.fraction = TakeDigits(text);
    if (decimal.fraction.empty()) return std::nullopt;
    while (decimal.fraction.ends_with('0')) decimal.fraction.remove_suffix(1);
  }
  decimal.rest = text;
  return decimal;
}

// floor(decimal * scale), or nullopt when it does not fit.
std::optional<std::uint64_t> Scaled(const Decimal& decimal, std::uint64_t scale) {
  std::uint64_t whole = 0;
  for (const char c : decimal.whole) {
    if (__builtin_mul_overflow(whole, std::uint64_t{10}, &whole) ||
        __builtin_add_overflow(whole, static_cast<std::uint64_t>(c - '0'), &whole)) {
      return std::nullopt;
    }
  }
  // Exact for any number of digits: floor((floor(x) + n) / 10) is floor((x + n) / 10).
  std::uint64_t part = 0;
  for (std::size_t i = decimal.fraction.size(); i-- > 0;) {
    part = (part + static_cast<std::uint64_t>(decimal.fraction[i] - '0') * scale) / 10;
  }
  if (__builtin_mul_overflow(whole, scale, &whole) || __builtin_add_overflow(whole, part, &whole)) {
    return std::nullopt;
  }
  return whole;
}

// "20G" and "20Gi" are said by some to mean 1024^3 and by others 1000^3.
bool IsHalfUnit(std::string_view unit) {
  const bool one = unit.size() == 1;
  const bool two = unit.size() == 2 && Lower(unit[1]) == 'i';
  return (one || two) && std::string_view("kmgt").contains(Lower(unit[0]));
}

base::Result<TargetCapacity> ParsePercent(std::string_view text) {
  const std::optional<Decimal> decimal = ReadDecimal(text.substr(0, text.size() - 1));
  if (!decimal || !decimal->rest.empty()) {
    return Fail(ErrorKind::kInvalidInput, "bad percentage {}; accepted is 0% to 100%, as in 12.5%",
                base::Quote(text));
  }
  const std::optional<std::uint64_t> scaled = Scaled(*decimal, kPercentScale);
  const std::uint64_t most = kMaxPercent * kPercentScale;
  if (!scaled || *scaled > most || (*scaled == most && !decimal->fraction.empty())) {
    return Fail(ErrorKind::kInvalidInput,
                "bad percentage {}: more than 100%; accepted is 0% to 100%", base::Quote(text));
  }
  return TargetCapacity{.policy = CapacityPolicy::kPercent, .bytes = {}, .percent_e6 = *scaled};
}

}  // namespace

base::Result<base::Bytes> ParseSize(std::string_view text) {
  const std::optional<Decimal> decimal = ReadDecimal(text);
  if (!decimal) {
    return Fail(ErrorKind::kInvalidInput, "bad size {}; {}", base::Quote(text), kSizeForms);
  }
  const std::string_view unit = decimal->rest;
  std::uint64_t scale = 0;
  if (unit.empty()) {
    if (decimal->has_point) {
      return Fail(ErrorKind::kInvalidInput,
                  "bad size {}: plain bytes are a whole number; did you mean {}GiB?",
                  base::Quote(text), text.substr(0, 24));
    }
    scale = 1;
  }
  for (const Unit& known : kUnits) {
    if (EqualIgnoringCase(unit, known.name)) scale = known.bytes;
  }
  if (scale == 0 && IsHalfUnit(unit)) {
    const std::string_view number = decimal->number(text);
    const char letter = static_cast<char>(Lower(unit[0]) - 'a' + 'A');
    if (number.size() <= 24) {
      return Fail(ErrorKind::kInvalidInput,
                  "bad size {}: write {}{}iB (powers of 1024) or {}{}B "
                  "(powers of 1000)",
                  base::Quote(text), number, letter, number, letter);
    }
  }
  if (scale == 0) {
    return Fail(ErrorKind::kInvalidInput, "bad size {}: unknown unit {}; {}", base::Quote(text),
                base::Quote(unit), kSizeForms);
  }
  const std::optional<std::uint64_t> bytes = Scaled(*decimal, scale);
  if (!bytes) {
    return Fail(ErrorKind::kInvalidInput, "bad size {}: too large; the largest is {} bytes",
                base::Quote(text), base::Bytes::Max().count());
  }
  return base::Bytes(*bytes);
}

base::Result<TargetCapacity> ParseCapacity(std::string_view text) {
  if (text == "auto") return TargetCapacity{};
  if (text.empty()) {
    return Fail(
        ErrorKind::kInvalidInput,
        "nothing after \"=\"; accepted are auto, a size as in 20GiB, a percentage as in 25%");
  }
  if (text.ends_with('%')) return ParsePercent(text);
  base::Result<base::Bytes> bytes = ParseSize(text);
  if (!bytes) {
    return Fail(ErrorKind::kInvalidInput, "{}; auto and a percentage as in 25% are accepted too",
                bytes.error().message);
  }
  return TargetCapacity{.policy = CapacityPolicy::kBytes, .bytes = *bytes, .percent_e6 = 0};
}

std::string SizeText(base::Bytes bytes) {
  const std::uint64_t count = bytes.count();
  std::string shortest = std::format("{}", count);
  bool plain = true;
  for (const Unit& unit : kUnits) {
    if (count == 0 || unit.bytes == 1 || count % unit.bytes != 0) continue;
    std::string text = std::format("{}{}", count / unit.bytes, unit.name);
    if (text.size() < shortest.size() || (plain && text.size() == shortest.size())) {
      shortest = std::move(text);
      plain = false;
    }
  }
  return shortest;
}

std::string CapacityText(const TargetCapacity& capacity) {
  switch (capacity.policy) {
    case CapacityPolicy::kAuto:
      return "auto";
    case CapacityPolicy::kBytes:
      return SizeText(capacity.bytes);
    case CapacityPolicy::kPercent:
      break;
  }
  const std::uint64_t millionths = capacity.percent_e6 % kPercentScale;
  std::string text = std::format("{}", capacity.percent_e6 / kPercentScale);
  if (millionths != 0) {
    text += std::format(".{:06}", millionths);
    while (text.ends_with('0')) text.pop_back();
  }
  return text + "%";
}

}  // namespace moe
