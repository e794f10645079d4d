#include "moe/plan/placement_path.h"

#include <format>

namespace moe {

std::string_view PlacementPathName(PlacementPath path) {
  switch (path) {
    case PlacementPath::kSingle:
      return "single";
    case PlacementPath::kHotCold:
      return "hot-cold";
    case PlacementPath::kMulti:
      return "multi";
  }
  return "multi";
}

PlacementPath PathOf(const ExpertSplitPlan& plan, const ExpertSplitTargetConfig& config) {
  std::size_t non_cpu = 0;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const TargetId target(i);
    const bool counts = plan.units(target) > 0 || target == config.primary();
    if (counts && !config[target].in_process_cpu()) ++non_cpu;
  }
  if (non_cpu >= 2) return PlacementPath::kMulti;
  return plan.units(config.primary()) == plan.num_units() ? PlacementPath::kSingle
                                                          : PlacementPath::kHotCold;
}

std::string PlacementLine(const ExpertSplitPlan& plan, PlacementPath path) {
  return std::format("[expert-split] plan {} units={} path={} fingerprint={}", plan.Summary(),
                     plan.num_units(), PlacementPathName(path), plan.FingerprintText());
}

}  // namespace moe
