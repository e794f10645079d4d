#include "cli/placement_report.h"

#include <utility>

namespace cli {

server::PlacementReport ReportOf(const LoadedModel& model, const moe::RoutingRecorder& recorder) {
  const moe::ExpertSplitPlan& plan = model.plan();
  server::PlacementReport report{.path = std::string(moe::PlacementPathName(model.path())),
                                 .fingerprint = plan.FingerprintText(),
                                 .summary = plan.Summary(),
                                 .units = plan.num_units(),
                                 .num_layers = plan.num_layers(),
                                 .num_experts = plan.num_experts(),
                                 .owners = {plan.owners().begin(), plan.owners().end()}};
  const std::vector<TargetUse> use = model.Use();
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
