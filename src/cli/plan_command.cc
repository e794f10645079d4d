// expert-split plan: which target would own which expert. Loads nothing.
#include <format>
#include <vector>

#include "base/file.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/placement.h"
#include "cli/plan_svg.h"
#include "moe/plan/comparison.h"
#include "moe/plan/plan_file.h"

namespace cli {
namespace {

struct PlanOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::string out;
  std::string svg;
  bool compare = false;
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

using Outcomes = std::vector<moe::PolicyOutcome>;

base::Result<Outcomes> Compare(const ModelPlacement& placed, const PlanOptions& options) {
  const auto targets = placed.plan.targets();
  return moe::ComparePolicies({.shape = &placed.description.shape,
                               .hotness = &placed.hotness,
                               .targets = {targets.begin(), targets.end()},
                               .layer_floor = options.placement.layer_floor,
                               .costs = &*placed.costs});
}

Json ComparisonJson(const ModelPlacement& placed, const Outcomes& outcomes) {
  const moe::TargetId fastest = moe::FastestTarget(*placed.costs);
  Json policies = Json::array();
  for (const moe::PolicyOutcome& outcome : outcomes) {
    Json policy = {{"policy", moe::PlanPolicyName(outcome.policy)},
                   {"fits", outcome.plan.has_value()}};
    if (outcome.plan) {
      policy["decode_ms"] = 1e3 * outcome.seconds.decode;
      policy["prompt_ms"] = 1e3 * outcome.seconds.prompt;
      policy["fastest_share"] = outcome.plan->expected_share(fastest);
      policy["summary"] = outcome.plan->Summary();
    }
    policies.push_back(std::move(policy));
  }
  Json speeds = Json::array();
  for (std::size_t t = 0; t < placed.costs->speeds.size(); ++t) {
    const moe::TargetSpeed& speed = placed.costs->speeds[t];
    speeds.push_back({{"name", placed.plan.targets()[t].name},
                      {"decode_bytes_per_second", speed.decode_bytes_per_second},
                      {"prompt_bytes_per_second", speed.prompt_bytes_per_second},
                      {"layer_us", 1e6 * speed.layer_seconds}});
  }
  return {{"fastest", placed.plan.targets()[fastest.index()].name},
          {"speeds", std::move(speeds)},
          {"policies", std::move(policies)}};
}

std::string ComparisonTable(const ModelPlacement& placed, const Outcomes& outcomes) {
  const moe::TargetId fastest = moe::FastestTarget(*placed.costs);
  std::vector<std::vector<std::string>> rows = {
      {"POLICY", "TOKEN", "PROMPT TOKEN",
       std::format("SHARE ON {}", placed.plan.targets()[fastest.index()].name), "UNITS"}};
  for (const moe::PolicyOutcome& outcome : outcomes) {
    std::string name(moe::PlanPolicyName(outcome.policy));
    if (!outcome.plan) {
      rows.push_back({std::move(name), "-", "-", "-", "whole layers fit in no order"});
      continue;
    }
    rows.push_back({std::move(name), std::format("{:.3f} ms", 1e3 * outcome.seconds.decode),
                    std::format("{:.4f} ms", 1e3 * outcome.seconds.prompt),
                    std::format("{:.1f} %", 100 * outcome.plan->expected_share(fastest)),
                    outcome.plan->Summary()});
  }
  return FormatTable(rows, {1, 2, 3}) +
         "TOKEN: expected time of the routed experts for one generated token.\n";
}

base::Result<void> WriteFiles(const Session& session, const PlanOptions& options,
                              const ModelPlacement& placed) {
  if (!options.out.empty()) {
    if (auto written = moe::WritePlanFile(placed.plan, options.out); !written) return written;
    session.log.Info("wrote {}", options.out);
  }
  if (!options.svg.empty()) {
    auto written = base::WriteFileAtomically(options.svg, PlanSvg(placed.plan, placed.hotness));
    if (!written) return written;
    session.log.Info("wrote {}", options.svg);
  }
  return {};
}

base::Result<void> RunPlan(const Session& session, const PlanOptions& options) {
  for (const std::string& path : {options.out, options.svg}) {
    if (path.empty()) continue;
    if (auto writable = base::CheckWritable(path); !writable) return writable;
  }
  PlacementOptions placement = options.placement;
  placement.costs = options.compare;
  const auto placed = PlaceModel(session, options.model, placement);
  if (!placed) return std::unexpected(placed.error());
  Outcomes outcomes;
  if (options.compare) {
    auto compared = Compare(*placed, options);
    if (!compared) return base::Forward(compared);
    outcomes = *std::move(compared);
  }
  if (auto written = WriteFiles(session, options, *placed); !written) return written;
  if (options.json) {
    Json document = PlanJson(placed->plan, placed->path);
    if (options.compare) document["compare"] = ComparisonJson(*placed, outcomes);
    return PrintJson(document);
  }
  std::string text =
      moe::PlacementLine(placed->plan, placed->path) + "\n" + PlanTable(placed->plan);
  if (options.compare) text += "\n" + ComparisonTable(*placed, outcomes);
  return PrintText(text);
}

}  // namespace

Command AddPlanCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("plan", "Show where a model's experts would go");
  auto options = std::make_shared<PlanOptions>();
  AddModelOptions(*app, options->model);
  AddPlacementOptions(*app, options->placement);
  app->add_option("--out", options->out, "write the plan to this file, for run and serve")
      ->type_name("FILE");
  app->add_option(
         "--svg", options->svg,
         "draw the plan to this file: layers by experts, coloured by owner, the fuller the "
         "more traffic")
      ->type_name("FILE");
  app->add_flag("--compare", options->compare,
                "show what each policy would make of the same capacities, and how fast it is "
                "expected to be");
  app->add_option("--assume", options->placement.assume,
                  "targets that this machine lacks, with the bandwidth and the size of their "
                  "memory: cuda:0=900GB/s@24GiB,cpu=60GB/s")
      ->type_name("LIST");
  AddJsonOption(*app, options->json);
  app->footer(
      "Nothing is loaded. Targets that this machine lacks can be planned for when each has a\n"
      "size or is assumed. --policy balanced and --compare measure the speed of targets that are\n"
      "not assumed, once a device and quantisation.\n\n"
      "Examples:\n"
      "  expert-split plan --model M.gguf\n"
      "  expert-split plan --model M.gguf --targets cuda:0=20GiB,cuda:1=12GiB,cpu\n"
      "  expert-split plan --model M.gguf --targets vulkan:0,cpu --ctx 32768 --parallel 4\n"
      "  expert-split plan --model M.gguf --targets cuda:0=50%,cpu --profile P.json --out "
      "plan.json\n"
      "  expert-split plan --model M.gguf --targets cuda:0,cpu --profile P.json --compare \\\n"
      "    --assume cuda:0=900GB/s@24GiB,cpu=60GB/s");
  return {app, [options](const Session& session) { return RunPlan(session, *options); }};
}

}  // namespace cli
