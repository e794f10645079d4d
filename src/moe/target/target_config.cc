#include "moe/target/target_config.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <format>
#include <utility>

#include "base/quote.h"
#include "moe/target/capacity_text.h"
#include "moe/target/item_parser.h"

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Quote;

constexpr std::array kKinds = {BackendKind::kCuda,  BackendKind::kHip,  BackendKind::kVulkan,
                               BackendKind::kMetal, BackendKind::kSycl, BackendKind::kCann,
                               BackendKind::kOpencl};

// Whether both are the same cpu, node, device or socket, whoever hosts it.
bool SameInside(const ExpertSplitTarget& a, const ExpertSplitTarget& b) {
  return a.inner_place == b.inner_place && a.kind == b.kind && a.index == b.index &&
         a.host == b.host && a.port == b.port && a.path == b.path;
}

bool IsDeviceInside(const ExpertSplitTarget& target) {
  return target.inner_place == TargetPlace::kDevice || target.inner_place == TargetPlace::kRpc;
}

bool IsWorker(const ExpertSplitTarget& target) { return target.place == TargetPlace::kWorker; }

bool HasSize(const ExpertSplitTarget& target) {
  return target.capacity.policy == CapacityPolicy::kBytes;
}

// Why `later` cannot stand in one list with `earlier`, the item at `position`; empty when it can.
std::string Conflict(const ExpertSplitTarget& earlier, std::size_t position,
                     const ExpertSplitTarget& later) {
  if (earlier.place != later.place && earlier.in_process_cpu() && later.in_process_cpu()) {
    return std::format(
        "cpu and cpu:NODE exclude each other, and item {} is {}; accepted is either "
        "cpu or one cpu:NODE for each node",
        position, Quote(earlier.name));
  }
  if (!SameInside(earlier, later)) return {};
  if (!IsWorker(earlier) && !IsWorker(later)) {
    return std::format("duplicate of item {}, {}; each target is accepted once", position,
                       Quote(earlier.name));
  }
  if (IsWorker(earlier) == IsWorker(later) || !IsDeviceInside(later)) return {};
  if (HasSize(earlier) && HasSize(later)) return {};
  return std::format(
      "the same device as item {}, {}; a device used directly and in a worker needs "
      "a size on both, as in {}=4GiB,{}=4GiB",
      position, Quote(earlier.name), earlier.name, later.name);
}

}  // namespace

std::span<const BackendKind> AllBackendKinds() { return kKinds; }

std::string_view BackendKindName(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCuda:
      return "cuda";
    case BackendKind::kHip:
      return "hip";
    case BackendKind::kVulkan:
      return "vulkan";
    case BackendKind::kMetal:
      return "metal";
    case BackendKind::kSycl:
      return "sycl";
    case BackendKind::kCann:
      return "cann";
    case BackendKind::kOpencl:
      return "opencl";
  }
  return "unknown";
}

std::optional<BackendKind> ParseBackendKind(std::string_view word) {
  if (word == "rocm") return BackendKind::kHip;
  for (const BackendKind kind : kKinds) {
    if (BackendKindName(kind) == word) return kind;
  }
  return std::nullopt;
}

base::Result<ExpertSplitTargetConfig> ExpertSplitTargetConfig::Parse(std::string_view list) {
  if (list.find_first_not_of(" \t") == std::string_view::npos) {
    return Fail(ErrorKind::kInvalidInput,
                "target list {} is empty; accepted is a list as in cuda:0=20GiB,cpu", Quote(list));
  }
  const std::vector<std::string_view> items = SplitItems(list);
  if (items.size() > kMaxListItems) {
    return Fail(ErrorKind::kInvalidInput,
                "target list {} has more than {} items; accepted are 1 to {}", Quote(list),
                kMaxListItems, kMaxListItems);
  }
  ExpertSplitTargetConfig config;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto fail = [&](std::string_view why) {
      return Fail(ErrorKind::kInvalidInput, "target list item {} {}: {}", i + 1, Quote(items[i]),
                  why);
    };
    if (items[i].empty()) {
      return fail("the item is empty; accepted is TARGET or TARGET=CAPACITY between two commas");
    }
    base::Result<ExpertSplitTarget> target = ParseItem(items[i]);
    if (!target) return fail(target.error().message);
    std::size_t occurrence = 1;
    for (std::size_t k = 0; k < i; ++k) {
      const ExpertSplitTarget& earlier = config.targets_[k];
      const std::string conflict = Conflict(earlier, k + 1, *target);
      if (!conflict.empty()) return fail(conflict);
      if (IsWorker(earlier) && IsWorker(*target) && SameInside(earlier, *target)) ++occurrence;
    }
    if (occurrence > 1) target->name += std::format("#{}", occurrence);
    config.targets_.push_back(std::move(*target));
  }
  const auto primary = std::ranges::find_if(config.targets_, &ExpertSplitTarget::can_be_primary);
  if (primary == config.targets_.end()) {
    return Fail(ErrorKind::kInvalidInput,
                "target list {} has no target that can run the dense part: worker, rpc and unix "
                "cannot; add cpu or a device of this process, as in cuda:0",
                Quote(list));
  }
  config.primary_ = TargetId(static_cast<std::size_t>(primary - config.targets_.begin()));
  return config;
}

std::string ExpertSplitTargetConfig::Print() const {
  std::string text;
  for (const ExpertSplitTarget& target : targets_) {
    if (!text.empty()) text += ',';
    text += TargetText(target);
    if (target.capacity.policy != CapacityPolicy::kAuto) {
      text += '=';
      text += CapacityText(target.capacity);
    }
  }
  return text;
}

}  // namespace moe
