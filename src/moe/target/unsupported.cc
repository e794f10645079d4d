#include "moe/target/unsupported.h"

#include <cstddef>
#include <string_view>

#include "base/quote.h"

namespace moe {
namespace {

// What a place is called in the message; empty when it runs.
std::string_view MissingFeature(TargetPlace place) {
  switch (place) {
    case TargetPlace::kCpu:
    case TargetPlace::kNuma:
    case TargetPlace::kDevice:
      return {};
    case TargetPlace::kRpc:
      return "a remote ggml RPC device";
    case TargetPlace::kWorker:
    case TargetPlace::kUnix:
      return "a worker process";
  }
  return {};
}

}  // namespace

base::Result<void> RefuseUnsupported(const ExpertSplitTargetConfig& config) {
  for (std::size_t i = 0; i < config.size(); ++i) {
    const ExpertSplitTarget& target = config.targets()[i];
    const std::string_view feature = MissingFeature(target.place);
    if (feature.empty()) continue;
    return base::Fail(base::ErrorKind::kUnsupported,
                      "target list item {} {}: running {} is not supported yet; what runs is cpu "
                      "and devices of this process, as in cuda:0",
                      i + 1, base::Quote(target.name), feature);
  }
  return {};
}

}  // namespace moe
