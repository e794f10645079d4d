#include "cli/bench_lanes.h"

#include <algorithm>
#include <format>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/probe.h"

namespace cli {
namespace {

struct Lane {
  std::string name;
  std::string targets;  // a target list
  std::string policy;
  std::string absent;  // why it cannot be run; empty when it can
};

struct LaneResult {
  Lane lane;
  engine::Speed speed;
  double error = 0;
  std::string path;
  std::string summary;
  std::vector<TargetUse> use;
};

std::string Item(const moe::PlanTarget& target) {
  if (!target.capacity) return target.name;
  return std::format("{}={}", target.name, target.capacity->count());
}

std::string List(std::span<const moe::PlanTarget> targets) {
  std::string list;
  for (const moe::PlanTarget& target : targets) list += (list.empty() ? "" : ",") + Item(target);
  return list;
}

Lane SingleLane(const ModelPlacement& placed) {
  const base::Bytes all = placed.description.shape.total_bytes();
  for (const moe::PlanTarget& target : placed.plan.targets()) {
    if (!target.capacity || *target.capacity >= all) {
      return {.name = "single", .targets = Item(target), .policy = "ordered", .absent = {}};
    }
  }
  return {.name = "single", .targets = "cpu", .policy = "ordered", .absent = {}};
}

// The first device of the list, then `cold`.
Lane TwoTierLane(const ModelPlacement& placed, const std::string& name, const std::string& cold) {
  Lane lane{.name = name, .targets = {}, .policy = "ordered", .absent = {}};
  const auto targets = placed.config.targets();
  const auto device =
      std::ranges::find(targets, moe::TargetPlace::kDevice, &moe::ExpertSplitTarget::place);
  if (device == targets.end()) {
    lane.absent = "--targets has no device beside the cpu";
  } else {
    const auto index = static_cast<std::size_t>(device - targets.begin());
    lane.targets = Item(placed.plan.targets()[index]) + "," + cold;
  }
  return lane;
}

// Of the list with the capacities that it was given or found.
std::vector<Lane> LanesOf(const ModelPlacement& placed, const std::string& policy) {
  const std::string list = List(placed.plan.targets());
  return {SingleLane(placed),
          {.name = "layers", .targets = list, .policy = "layers", .absent = {}},
          TwoTierLane(placed, "hot-cold", "cpu"),
          TwoTierLane(placed, "remote", "worker(cpu)"),
          {.name = "split", .targets = list, .policy = policy, .absent = {}}};
}

class LaneBench {
 public:
  LaneBench(const Session& session, const LanesRequest& request, std::stop_token stop)
      : session_(session), request_(request), stop_(std::move(stop)) {}

  base::Result<LaneResult> Run(Lane lane) {
    LaneResult result{.lane = std::move(lane)};
    if (!result.lane.absent.empty()) return result;
    const ModelOptions model{.model = request_.model.model, .targets = result.lane.targets};
    PlacementOptions placement = request_.placement;
    placement.policy = result.lane.policy;
    auto placed = PlaceModel(session_, model, placement);
    if (!placed && placed.error().kind == base::ErrorKind::kCapacity &&
        placement.policy == "layers") {
      result.lane.absent = "whole layers do not fit the capacities in list order";
      return result;
    }
    if (!placed) return base::Forward(placed);
    auto loaded =
        LoadedModel::Load(session_, std::move(*placed), model, placement, request_.threads, stop_);
    if (!loaded) return base::Forward(loaded);
    if (auto done = Measure(**loaded, result); !done) return base::Forward(done);
    return result;
  }

 private:
  base::Result<void> Measure(LoadedModel& model, LaneResult& result) {
    ProgressLine progress;
    auto speed = engine::MeasureSpeed(
        model.backend(), request_.speed,
        [&](std::size_t done, std::size_t total) {
          progress.Show(std::format("{}: run {} of {}", result.lane.name, done, total));
        },
        stop_);
    progress.Clear();
    if (!speed) return base::Forward(speed);
    result.speed = *std::move(speed);
    result.path = moe::PlacementPathName(model.path());
    result.summary = model.plan()->Summary();
    result.use = model.Use();
    auto logits =
        engine::ProbeLogits(model.backend(), {.batch_rows = request_.placement.batch_rows}, stop_);
    if (!logits) return base::Forward(logits);
    if (reference_.empty()) reference_ = *logits;
    result.error = engine::NormalisedError(*logits, reference_);
    return {};
  }

  const Session& session_;
  const LanesRequest& request_;
  std::stop_token stop_;
  std::vector<float> reference_;  // of the first lane
};

Json LaneJson(const LaneResult& result) {
  Json lane = {{"lane", result.lane.name}};
  if (!result.lane.absent.empty()) {
    lane["absent"] = result.lane.absent;
    return lane;
  }
  const auto summary = [](const std::vector<double>& samples) -> Json {
    const engine::SampleSummary of = engine::Summarize(samples);
    return {{"median", of.median}, {"min", of.min}, {"max", of.max}, {"samples", samples}};
  };
  lane["prompt_tok_s"] = summary(result.speed.prompt);
  lane["decode_tok_s"] = summary(result.speed.decode);
  lane["nmse"] = result.error;
  lane["policy"] = result.lane.policy;
  lane["path"] = result.path;
  lane["summary"] = result.summary;
  lane["targets"] = UseJson(result.use);
  return lane;
}

std::vector<std::string> LaneRow(const LaneResult& result) {
  if (!result.lane.absent.empty()) {
    return {result.lane.name, "-", "-", "-", "absent: " + result.lane.absent};
  }
  std::string rows;
  for (const TargetUse& use : result.use) {
    rows += std::format("{}{}={}", rows.empty() ? "" : "|", use.name, use.rows);
  }
  const auto median = [](const std::vector<double>& samples) {
    return samples.empty() ? "-" : std::format("{:.2f}", engine::Summarize(samples).median);
  };
  return {result.lane.name, median(result.speed.prompt), median(result.speed.decode),
          std::format("{:.1e}", result.error), std::move(rows)};
}

}  // namespace

base::Result<void> BenchLanes(const Session& session, const LanesRequest& request,
                              std::stop_token stop) {
  std::vector<Lane> lanes;
  {
    // Capacities are asked once, so that every lane has the same.
    const auto placed = PlaceModel(session, request.model, request.placement);
    if (!placed) return std::unexpected(placed.error());
    lanes = LanesOf(*placed, request.placement.policy);
  }
  LaneBench bench(session, request, std::move(stop));
  std::vector<LaneResult> results;
  for (Lane& lane : lanes) {
    auto result = bench.Run(std::move(lane));
    if (!result) return base::Forward(result);
    results.push_back(*std::move(result));
  }
  if (request.json) {
    Json documents = Json::array();
    for (const LaneResult& result : results) documents.push_back(LaneJson(result));
    return PrintJson({{"prompt_tokens", request.speed.prompt_tokens},
                      {"decode_tokens", request.speed.decode_tokens},
                      {"repeats", request.speed.repeats},
                      {"threads", request.threads},
                      {"lanes", std::move(documents)}});
  }
  std::vector<std::vector<std::string>> rows = {
      {"LANE", "PROMPT TOK/S", "DECODE TOK/S", "NMSE", "ROWS"}};
  for (const LaneResult& result : results) rows.push_back(LaneRow(result));
  return PrintText(FormatTable(rows, {1, 2, 3}) +
                   "NMSE: of the logits, against the lane single. ROWS: (token, expert) pairs that "
                   "each target computed.\n");
}

}  // namespace cli
