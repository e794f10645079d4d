#include "moe/target/assumed_target.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/quote.h"
#include "moe/target/item_parser.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr std::string_view kAccepted =
    "accepted is TARGET=SPEED/s or TARGET=SPEED/s@SIZE, as in cuda:0=900GB/s@24GiB";
constexpr std::string_view kPerSecond = "/s";

// A size above 0.
base::Result<base::Bytes> Positive(std::string_view what, std::string_view text) {
  auto bytes = ParseSize(text);
  if (!bytes)
    return Fail(ErrorKind::kInvalidInput, "{}: {}; {}", what, bytes.error().message, kAccepted);
  if (*bytes == base::Bytes()) {
    return Fail(ErrorKind::kInvalidInput, "{} {} is 0; {}", what, base::Quote(text), kAccepted);
  }
  return bytes;
}

base::Result<AssumedTarget> ParseAssumed(std::string_view item) {
  const std::size_t equals = item.rfind('=');
  if (item.empty() || equals == std::string_view::npos) {
    return Fail(ErrorKind::kInvalidInput, "no speed; {}", kAccepted);
  }
  auto target = ParseItem(item.substr(0, equals));
  if (!target) return base::Forward(target);
  std::string_view speed = item.substr(equals + 1);
  AssumedTarget assumed{.name = target->name, .is_cpu = target->place == TargetPlace::kCpu};
  if (const std::size_t at = speed.find('@'); at != std::string_view::npos) {
    auto memory = Positive("memory", speed.substr(at + 1));
    if (!memory) return base::Forward(memory);
    assumed.memory = *memory;
    speed = speed.substr(0, at);
  }
  if (!speed.ends_with(kPerSecond)) {
    return Fail(ErrorKind::kInvalidInput, "speed {} does not end in /s; {}", base::Quote(speed),
                kAccepted);
  }
  auto bytes = Positive("speed", speed.substr(0, speed.size() - kPerSecond.size()));
  if (!bytes) return base::Forward(bytes);
  assumed.bytes_per_second = *bytes;
  return assumed;
}

}  // namespace

base::Result<std::vector<AssumedTarget>> ParseAssumedTargets(std::string_view list) {
  std::vector<AssumedTarget> assumed;
  if (list.empty()) return assumed;
  const std::vector<std::string_view> items = SplitItems(list);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto fail = [&](std::string_view why) {
      return Fail(ErrorKind::kInvalidInput, "--assume item {} {}: {}", i + 1, base::Quote(items[i]),
                  why);
    };
    auto one = ParseAssumed(items[i]);
    if (!one) return fail(one.error().message);
    if (FindAssumed(assumed, one->name) != nullptr) {
      return fail(std::format("{} is assumed twice; each target is accepted once", one->name));
    }
    assumed.push_back(*std::move(one));
  }
  return assumed;
}

const AssumedTarget* FindAssumed(const std::vector<AssumedTarget>& assumed, std::string_view name) {
  const auto found = std::ranges::find(assumed, name, &AssumedTarget::name);
  return found == assumed.end() ? nullptr : &*found;
}

std::optional<TargetMemory> AssumedMemoryProbe::Target(const ExpertSplitTarget& target) {
  const AssumedTarget* found = FindAssumed(assumed_, target.name);
  if (found == nullptr || !found->memory) return machine_.Target(target);
  return TargetMemory{.free = *found->memory, .total = *found->memory, .device_id = target.name};
}

HostMemory AssumedMemoryProbe::Host() {
  const auto cpu = std::ranges::find_if(
      assumed_, [](const AssumedTarget& target) { return target.is_cpu && target.memory; });
  if (cpu == assumed_.end()) return machine_.Host();
  return {.available = *cpu->memory, .total = *cpu->memory};
}

std::vector<std::string> AssumedMemoryProbe::PresentTargets() { return machine_.PresentTargets(); }

}  // namespace moe
