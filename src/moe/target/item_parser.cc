#include "moe/target/item_parser.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <format>
#include <limits>
#include <optional>
#include <system_error>

#include "base/quote.h"
#include "moe/target/capacity_text.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Quote;

constexpr std::string_view kWorkerOpen = "worker(";
constexpr std::string_view kRpcPrefix = "rpc:";
constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::size_t kMaxHostBytes = 253;
// What sockaddr_un holds on Linux, without its terminating zero.
constexpr std::size_t kMaxSocketPathBytes = 107;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsBlank(char c) { return c == ' ' || c == '\t'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), Lower);
  return lower;
}

std::string KnownKinds() {
  std::string names;
  for (const BackendKind kind : AllBackendKinds()) {
    names += BackendKindName(kind);
    names += kind == BackendKind::kHip ? " (or rocm), " : ", ";
  }
  names.resize(names.size() - 2);
  return names;
}

// What stands where a target is expected.
std::string AcceptedTargets() {
  return std::format(
      "known kinds are {}, each with :INDEX; also cpu, cpu:NODE, worker(TARGET), "
      "rpc:HOST:PORT[/INDEX] and unix:PATH",
      KnownKinds());
}

// Decimal digits only; `what` is "device index" or the like.
base::Result<std::uint32_t> ParseNumber(std::string_view what, std::string_view digits,
                                        std::uint32_t most) {
  if (digits.empty() || !std::ranges::all_of(digits, IsDigit)) {
    return Fail(ErrorKind::kInvalidInput, "bad {} {}; accepted are digits, as in 0", what,
                Quote(digits));
  }
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || value > most) {
    return Fail(ErrorKind::kInvalidInput, "bad {} {}: too large; the largest is {}", what,
                Quote(digits), most);
  }
  return value;
}

base::Result<std::uint32_t> ParseIndex(std::string_view what, std::string_view digits) {
  return ParseNumber(what, digits, std::numeric_limits<std::uint32_t>::max());
}

bool LooksLikeIpv6(std::string_view host) {
  const auto is_part = [](char c) {
    return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'f') || c == ':' || c == '.';
  };
  return host.starts_with('[') || (host.contains(':') && std::ranges::all_of(host, is_part));
}

base::Result<void> CheckHost(std::string_view host) {
  if (LooksLikeIpv6(host)) {
    return Fail(ErrorKind::kInvalidInput,
                "bad host {}: IPv6 is not possible because ggml's RPC connects over IPv4 only; "
                "accepted is an IPv4 address or a host name",
                Quote(host));
  }
  const auto is_part = [](char c) {
    return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'z') || c == '-' || c == '.' || c == '_';
  };
  if (host.empty() || host.size() > kMaxHostBytes || !std::ranges::all_of(host, is_part)) {
    return Fail(ErrorKind::kInvalidInput,
                "bad host {}; accepted is an IPv4 address or a host name, as in "
                "rpc:10.0.0.7:50052/0",
                Quote(host));
  }
  return {};
}

base::Result<ExpertSplitTarget> ParseRpc(std::string_view text) {
  std::string_view address = text.substr(kRpcPrefix.size());
  ExpertSplitTarget target;
  target.place = target.inner_place = TargetPlace::kRpc;
  if (const std::size_t slash = address.find('/'); slash != std::string_view::npos) {
    base::Result<std::uint32_t> index = ParseIndex("device index", address.substr(slash + 1));
    if (!index) return Forward(index);
    target.index = *index;
    address = address.substr(0, slash);
  }
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || address.ends_with(']')) {
    if (base::Result<void> host = CheckHost(address); !host) return Forward(host);
    return Fail(ErrorKind::kInvalidInput, "no port in {}; accepted is rpc:HOST:PORT[/INDEX]",
                Quote(text));
  }
  if (base::Result<void> host = CheckHost(address.substr(0, colon)); !host) return Forward(host);
  base::Result<std::uint32_t> port =
      ParseNumber("port", address.substr(colon + 1), std::numeric_limits<std::uint16_t>::max());
  if (!port) return Forward(port);
  if (*port == 0) {
    return Fail(ErrorKind::kInvalidInput, "bad port \"0\"; accepted is 1 to 65535");
  }
  // Host names do not tell cases apart, so one spelling keeps duplicates visible.
  target.host = LowerCase(address.substr(0, colon));
  target.port = static_cast<std::uint16_t>(*port);
  return target;
}

// Well-formed UTF-8 without control characters: names travel through JSON and one-line messages.
bool IsPrintableUtf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x20 || lead == 0x7f) return false;
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || i + length > text.size()) return false;
    std::uint32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3fu);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    const bool line_break = code == 0x2028 || code == 0x2029 || (code >= 0x80 && code < 0xa0);
    if (overlong || surrogate || line_break || code > 0x10ffff) return false;
    i += length;
  }
  return true;
}

base::Result<ExpertSplitTarget> ParseUnix(std::string_view text) {
  const std::string_view path = text.substr(kUnixPrefix.size());
  std::string_view fault;
  if (path.empty()) {
    fault = "it is empty";
  } else if (!path.starts_with('/')) {
    fault = "it is not absolute";
  } else if (path.find_first_of(",=)") != std::string_view::npos) {
    fault = "it holds one of , = )";
  } else if (path.size() > kMaxSocketPathBytes) {
    fault = "it is longer than the 107 bytes of a socket's address";
  } else if (IsBlank(path.back())) {
    fault = "it ends in a blank";
  } else if (!IsPrintableUtf8(path)) {
    fault = "it holds control characters or is not UTF-8";
  }
  if (!fault.empty()) {
    return Fail(ErrorKind::kInvalidInput,
                "bad path {}: {}; accepted is an absolute path without , = ) as in "
                "unix:/run/worker.sock",
                Quote(path), fault);
  }
  ExpertSplitTarget target;
  target.place = target.inner_place = TargetPlace::kUnix;
  target.path = path;
  return target;
}

base::Error UnknownKind(std::string_view text, std::string_view word) {
  const std::string lower = LowerCase(word);
  if (lower != word && (ParseBackendKind(lower) || lower == "cpu" || lower == "rpc" ||
                        lower == "unix" || lower.starts_with("worker"))) {
    return {ErrorKind::kInvalidInput, std::format("unknown kind {}: write it in lower case; {}",
                                                  Quote(word), AcceptedTargets())};
  }
  if (std::ranges::any_of(text, IsBlank)) {
    return {ErrorKind::kInvalidInput,
            std::format("unknown kind {}: blanks are accepted around an item only; {}", Quote(word),
                        AcceptedTargets())};
  }
  return {ErrorKind::kInvalidInput,
          std::format("unknown kind {}; {}", Quote(word), AcceptedTargets())};
}

// Everything but worker(...).
base::Result<ExpertSplitTarget> ParsePlain(std::string_view text) {
  ExpertSplitTarget target;
  if (text == "cpu") return target;
  if (text.starts_with(kRpcPrefix)) return ParseRpc(text);
  if (text.starts_with(kUnixPrefix)) return ParseUnix(text);

  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  if (word == "rpc" || word == "unix") {
    return Fail(ErrorKind::kInvalidInput, "{} needs an address; accepted is {}", word,
                word == "rpc" ? "rpc:HOST:PORT[/INDEX]" : "unix:PATH");
  }
  const std::optional<BackendKind> kind = ParseBackendKind(word);
  if (!kind && word != "cpu") return std::unexpected(UnknownKind(text, word));
  if (colon == std::string_view::npos) {
    return Fail(ErrorKind::kInvalidInput,
                "no device index after {}; accepted is {}:INDEX, as in {}:0", word, word, word);
  }
  base::Result<std::uint32_t> index =
      ParseIndex(kind ? "device index" : "NUMA node", text.substr(colon + 1));
  if (!index) return Forward(index);
  target.place = target.inner_place = kind ? TargetPlace::kDevice : TargetPlace::kNuma;
  target.kind = kind.value_or(BackendKind::kCuda);
  target.index = *index;
  return target;
}

base::Result<ExpertSplitTarget> ParseWorker(std::string_view text) {
  constexpr std::string_view kHosted = "a worker hosts one device, cpu, cpu:NODE or rpc: target";
  if (const std::size_t hash = text.rfind(")#"); hash != std::string_view::npos) {
    return Fail(ErrorKind::kInvalidInput,
                "bad text {} after the worker: numbers of repeated workers come from the list's "
                "order; write {}",
                Quote(text.substr(hash + 1)), Quote(text.substr(0, hash + 1)));
  }
  if (!text.ends_with(')')) {
    return Fail(ErrorKind::kInvalidInput,
                "no \")\" at the end of {}; accepted is worker(TARGET), a capacity stands behind "
                "it, as in worker(vulkan:0)=3MiB",
                Quote(text));
  }
  const std::string_view inner =
      text.substr(kWorkerOpen.size(), text.size() - kWorkerOpen.size() - 1);
  if (inner.empty()) {
    return Fail(ErrorKind::kInvalidInput, "nothing inside worker(); {}", kHosted);
  }
  if (inner.find_first_of(",=") != std::string_view::npos && !inner.starts_with(kUnixPrefix)) {
    return Fail(ErrorKind::kInvalidInput,
                "bad text {} inside worker(); {}, and a capacity stands behind the parenthesis",
                Quote(inner), kHosted);
  }
  if (inner == "worker" || inner.starts_with(kWorkerOpen)) {
    return Fail(ErrorKind::kInvalidInput, "{} is a worker inside a worker; {}", Quote(inner),
                kHosted);
  }
  if (inner == "unix" || inner.starts_with(kUnixPrefix)) {
    return Fail(ErrorKind::kInvalidInput, "{} is a worker already and cannot be inside one; {}",
                Quote(inner), kHosted);
  }
  base::Result<ExpertSplitTarget> target = ParsePlain(inner);
  if (target) target->place = TargetPlace::kWorker;
  return target;
}

std::string PlainText(TargetPlace place, const ExpertSplitTarget& target) {
  switch (place) {
    case TargetPlace::kCpu:
      return "cpu";
    case TargetPlace::kNuma:
      return std::format("cpu:{}", target.index);
    case TargetPlace::kDevice:
      return std::format("{}:{}", BackendKindName(target.kind), target.index);
    case TargetPlace::kRpc: {
      std::string text = std::format("rpc:{}:{}", target.host, target.port);
      return target.index == 0 ? text : std::format("{}/{}", text, target.index);
    }
    case TargetPlace::kUnix:
      return std::format("unix:{}", target.path);
    case TargetPlace::kWorker:
      break;
  }
  return {};
}

std::string_view Trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::vector<std::string_view> SplitItems(std::string_view list) {
  std::vector<std::string_view> items;
  std::size_t depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      items.push_back(Trim(list.substr(begin, i - begin)));
      if (items.size() > kMaxListItems) break;
      begin = i + 1;
    } else if (list[i] == '(') {
      ++depth;
    } else if (list[i] == ')' && depth > 0) {
      --depth;
    }
  }
  return items;
}

std::string TargetText(const ExpertSplitTarget& target) {
  const std::string inner = PlainText(target.inner_place, target);
  return target.place == TargetPlace::kWorker ? std::format("worker({})", inner) : inner;
}

base::Result<ExpertSplitTarget> ParseItem(std::string_view item) {
  const std::size_t equals = item.rfind('=');
  const std::string_view text = item.substr(0, equals);
  if (text.empty()) {
    return Fail(ErrorKind::kInvalidInput, "no target before \"=\"; {}", AcceptedTargets());
  }
  if (text == "worker") {
    return Fail(ErrorKind::kInvalidInput, "no target inside worker; accepted is worker(TARGET)");
  }
  base::Result<ExpertSplitTarget> target =
      text.starts_with(kWorkerOpen) ? ParseWorker(text) : ParsePlain(text);
  if (!target) return target;
  if (equals != std::string_view::npos) {
    base::Result<TargetCapacity> capacity = ParseCapacity(item.substr(equals + 1));
    if (!capacity) return Forward(capacity);
    target->capacity = *capacity;
  }
  target->name = TargetText(*target);
  return target;
}

}  // namespace moe
