#include "cli/placement_report.h"

#include <utility>

namespace cli {

server::PlacementReport ReportOf(const LoadedModel& model, const moe::RoutingRecorder& recorder,
                                 const moe::Rebalancer* rebalancer) {
  const auto components = model.components();
  const moe::ExpertSplitPlan& plan = components->plan();
  const moe::PlacementPath path = components->compute().path();
  server::PlacementReport report{.path = std::string(moe::PlacementPathName(path)),
                                 .fingerprint = plan.FingerprintText(),
                                 .summary = plan.Summary(),
                                 .units = plan.num_units(),
                                 .num_layers = plan.num_layers(),
                                 .num_experts = plan.num_experts(),
                                 .owners = {plan.owners().begin(), plan.owners().end()},
                                 .generation = components->runtime()->generation()};
  if (rebalancer != nullptr) {
    const moe::RebalanceCounts counts = rebalancer->counts();
    report.rebalance = {.bytes_per_second = rebalancer->bytes_per_second().count(),
                        .moved_units = counts.units,
                        .moved_bytes = counts.bytes.count(),
                        .failures = counts.failures};
  }
  const std::vector<TargetUse> use = model.Use(*components);
  for (std::size_t t = 0; t < use.size(); ++t) {
    const moe::PlanTarget& target = plan.targets()[t];
    server::TargetReport one{.name = use[t].name,
                             .units = use[t].units,
                             .bytes = use[t].bytes.count(),
                             .expected_share = plan.expected_share(moe::TargetId(t)),
                             .rows = use[t].rows,
                             .share = use[t].share,
                             .busy_seconds = use[t].busy_ms / 1e3,
                             .wait_seconds = use[t].wait_ms / 1e3};
    for (const moe::LostWorker& lost : model.AllLost()) {
      if (lost.target == moe::TargetId(t)) ++one.failures;
    }
    for (const moe::LostWorker& missing : model.Missing()) {
      if (missing.target == moe::TargetId(t)) one.lost = missing.reason;
    }
    if (target.capacity) one.capacity = target.capacity->count();
    report.targets.push_back(std::move(one));
  }
  report.unit_rows.reserve(plan.num_units());
  const moe::RoutingProfile counted = recorder.Snapshot();
  for (const std::vector<std::uint64_t>& layer : counted.counts()) {
    report.unit_rows.insert(report.unit_rows.end(), layer.begin(), layer.end());
  }
  return report;
}

}  // namespace cli
