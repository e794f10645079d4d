// expert-split plan: which target would own which expert. Loads nothing.
#include <format>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/placement.h"
#include "moe/plan/plan_file.h"

namespace cli {
namespace {

struct PlanOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::string out;
  bool json = false;
};

Json TargetsJson(const moe::ExpertSplitPlan& plan) {
  Json targets = Json::array();
  for (std::size_t i = 0; i < plan.targets().size(); ++i) {
    const moe::PlanTarget& target = plan.targets()[i];
    const moe::TargetId id(i);
    targets.push_back({{"name", target.name},
                       {"units", plan.units(id)},
                       {"bytes", plan.bytes(id).count()},
                       {"capacity", target.capacity ? Json(target.capacity->count()) : Json()},
                       {"expected_share", plan.expected_share(id)}});
  }
  return targets;
}

Json PlanJson(const moe::ExpertSplitPlan& plan, moe::PlacementPath path) {
  Json layers = Json::array();
  for (std::size_t layer = 0; layer < plan.num_layers(); ++layer) {
    layers.push_back(plan.owners().subspan(layer * plan.num_experts(), plan.num_experts()));
  }
  return {{"path", moe::PlacementPathName(path)},
          {"fingerprint", plan.FingerprintText()},
          {"summary", plan.Summary()},
          {"units", plan.num_units()},
          {"targets", TargetsJson(plan)},
          {"layers", std::move(layers)}};
}

std::string PlanTable(const moe::ExpertSplitPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"TARGET", "UNITS", "BYTES", "CAPACITY", "SHARE"}};
  for (std::size_t i = 0; i < plan.targets().size(); ++i) {
    const moe::PlanTarget& target = plan.targets()[i];
    const moe::TargetId id(i);
    rows.push_back({target.name, std::format("{}", plan.units(id)),
                    base::FormatBytes(plan.bytes(id)),
                    target.capacity ? base::FormatBytes(*target.capacity) : "unbounded",
                    std::format("{:.1f} %", 100 * plan.expected_share(id))});
  }
  return FormatTable(rows, {1, 2, 3, 4});
}

base::Result<void> RunPlan(const Session& session, const PlanOptions& options) {
  const auto placed = PlaceModel(session, options.model, options.placement);
  if (!placed) return std::unexpected(placed.error());
  if (!options.out.empty()) {
    if (auto written = moe::WritePlanFile(placed->plan, options.out); !written) return written;
    session.log.Info("wrote {}", options.out);
  }
  if (options.json) return PrintJson(PlanJson(placed->plan, placed->path));
  return PrintText(moe::PlacementLine(placed->plan, placed->path) + "\n" + PlanTable(placed->plan));
}

}  // namespace

Command AddPlanCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("plan", "Show where a model's experts would go");
  auto options = std::make_shared<PlanOptions>();
  AddModelOptions(*app, options->model);
  AddPlacementOptions(*app, options->placement);
  app->add_option("--out", options->out, "write the plan to this file, for run and serve")
      ->type_name("FILE");
  AddJsonOption(*app, options->json);
  app->footer(
      "Nothing is loaded. Targets that this machine lacks can be planned for when each has a\n"
      "size.\n\n"
      "Examples:\n"
      "  expert-split plan --model M.gguf\n"
      "  expert-split plan --model M.gguf --targets cuda:0=20GiB,cuda:1=12GiB,cpu\n"
      "  expert-split plan --model M.gguf --targets vulkan:0,cpu --ctx 32768 --parallel 4\n"
      "  expert-split plan --model M.gguf --targets cuda:0=50%,cpu --profile P.json --out "
      "plan.json");
  return {app, [options](const Session& session) { return RunPlan(session, *options); }};
}

}  // namespace cli
