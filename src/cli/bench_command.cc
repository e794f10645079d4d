// expert-split bench: prompt and generation speed.
#include <algorithm>
#include <format>
#include <thread>

#include "cli/bench_lanes.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/probe.h"
#include "engine/speed.h"

namespace cli {
namespace {

struct BenchOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::uint32_t threads = 0;
  engine::SpeedRequest speed;
  bool by_node = false;
  bool context_given = false;
  bool lanes = false;
  bool json = false;
};

Json SamplesJson(const std::vector<double>& samples) {
  const engine::SampleSummary summary = engine::Summarize(samples);
  return {
      {"median", summary.median}, {"min", summary.min}, {"max", summary.max}, {"samples", samples}};
}

Json BenchJson(const LoadedModel& model, const BenchOptions& options, const engine::Speed& speed) {
  return {{"prompt_tok_s", SamplesJson(speed.prompt)},
          {"decode_tok_s", SamplesJson(speed.decode)},
          {"prompt_tokens", options.speed.prompt_tokens},
          {"decode_tokens", options.speed.decode_tokens},
          {"depth", options.speed.depth},
          {"sequences", options.speed.sequences},
          {"repeats", options.speed.repeats},
          {"threads", options.threads},
          {"load_ms", model.load_ms()},
          {"path", moe::PlacementPathName(model.path())},
          {"fingerprint", model.plan()->FingerprintText()},
          {"summary", model.plan()->Summary()},
          {"targets", UseJson(model.Use())}};
}

Json NodesJson(const std::vector<model::NodeTime>& times) {
  Json nodes = Json::array();
  for (const model::NodeTime& time : times) {
    nodes.push_back({{"what", time.what}, {"nodes", time.num_nodes}, {"ms", time.ms}});
  }
  return nodes;
}

std::string NodesTable(std::string_view title, const std::vector<model::NodeTime>& times) {
  if (times.empty()) return "";
  double total = 0;
  for (const model::NodeTime& time : times) total += time.ms;
  std::vector<std::vector<std::string>> rows = {{std::string(title), "NODES", "MS", "SHARE"}};
  for (const model::NodeTime& time : times) {
    rows.push_back({time.what, std::format("{}", time.num_nodes), std::format("{:.3f}", time.ms),
                    std::format("{:.1f} %", 100 * time.ms / total)});
  }
  return FormatTable(rows, {1, 2, 3}) + "\n";
}

std::string BenchTable(const BenchOptions& options, const engine::Speed& speed) {
  std::vector<std::vector<std::string>> rows = {{"TOKENS", "MEDIAN", "MIN", "MAX"}};
  const auto add = [&](std::string_view kind, std::size_t num_tokens,
                       const std::vector<double>& samples) {
    if (samples.empty()) return;
    const engine::SampleSummary summary = engine::Summarize(samples);
    rows.push_back({std::format("{} {}", kind, num_tokens),
                    std::format("{:.2f} tokens/s", summary.median),
                    std::format("{:.2f}", summary.min), std::format("{:.2f}", summary.max)});
  };
  add("prompt", options.speed.prompt_tokens, speed.prompt);
  add("generate", options.speed.decode_tokens, speed.decode);
  return FormatTable(rows, {1, 2, 3});
}

base::Result<void> RunBench(const Session& session, BenchOptions options) {
  // What the command line alone can tell comes before any work.
  if (options.speed.prompt_tokens == 0 && options.speed.decode_tokens == 0) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "-p 0 and -n 0: nothing to measure; give one of them at least 1");
  }
  if (options.threads == 0) options.threads = std::max(1U, std::thread::hardware_concurrency());
  options.speed.batch_rows = options.placement.batch_rows;
  options.speed.sequences = options.placement.parallel;
  if (!options.context_given) {
    const engine::ProbeRequest probe;
    options.placement.context = static_cast<std::uint32_t>(std::max(
        options.speed.depth +
            std::max({options.speed.prompt_tokens, options.speed.decode_tokens, std::size_t{1}}),
        options.lanes ? probe.prompt_tokens + probe.single_tokens : std::size_t{0}));
  }
  GracefulInterrupt interrupt;
  if (options.lanes) {
    return BenchLanes(session,
                      {.model = options.model,
                       .placement = options.placement,
                       .threads = options.threads,
                       .speed = options.speed,
                       .json = options.json},
                      interrupt.token());
  }
  auto placement = PlaceModel(session, options.model, options.placement);
  if (!placement) return base::Forward(placement);
  auto model = LoadedModel::Load(session, std::move(*placement), options.model, options.placement,
                                 options.threads, interrupt.token());
  if (!model) return base::Forward(model);

  ProgressLine progress;
  auto speed = engine::MeasureSpeed((*model)->backend(), options.speed,
                                    [&](std::size_t done, std::size_t total) {
                                      progress.Show(std::format("run {} of {}", done, total));
                                    },
                                    interrupt.token());
  progress.Clear();
  if (!speed) return base::Forward(speed);
  engine::StepProfile profile;
  if (options.by_node) {
    auto profiled = engine::ProfileNodes((*model)->backend(), options.speed, interrupt.token());
    if (!profiled) return base::Forward(profiled);
    profile = *std::move(profiled);
  }
  if (options.json) {
    Json json = BenchJson(**model, options, *speed);
    if (options.by_node) {
      json["prompt_nodes"] = NodesJson(profile.prompt);
      json["decode_nodes"] = NodesJson(profile.decode);
    }
    return PrintJson(json);
  }
  return PrintText(NodesTable("PROMPT", profile.prompt) + NodesTable("STEP", profile.decode) +
                   BenchTable(options, *speed) + UseTable((*model)->Use()));
}

}  // namespace

Command AddBenchCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("bench", "Measure how fast a model runs");
  auto options = std::make_shared<BenchOptions>();
  AddModelOptions(*app, options->model);
  app->add_option("-p", options->speed.prompt_tokens, "tokens of a prompt; 0 measures none")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 22))
      ->capture_default_str();
  app->add_option("-n", options->speed.decode_tokens, "tokens to generate; 0 measures none")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 22))
      ->capture_default_str();
  app->add_option("-r", options->speed.repeats, "samples of each, after one run to warm up")
      ->type_name("REPEATS")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--depth", options->speed.depth,
                  "tokens that the sequence holds before each measurement")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 22))
      ->capture_default_str();
  app->add_flag("--by-node", options->by_node,
                "also say where the time of a prompt and of one generation step goes, by kind of "
                "node; each node is computed by itself for that, which takes longer");
  app->add_flag("--lanes", options->lanes,
                "measure, one after another, the ways to place the model on these targets: all on "
                "one, whole layers, one device and the cpu, and experts over the whole list");
  AddPlacementOptions(*app, options->placement);
  app->get_option("--ctx")->default_str("what is measured");
  AddRunOptions(*app, options->threads, options->placement);
  app->get_option("--lanes")
      ->excludes(app->get_option("--plan"))
      ->excludes(app->get_option("--by-node"));
  AddJsonOption(*app, options->json);
  app->footer(
      "Random tokens, no sampling. Measure on an idle machine, and compare runs made in turn.\n\n"
      "Examples:\n"
      "  expert-split bench --model M.gguf\n"
      "  expert-split bench --model M.gguf --targets cuda:0=20GiB,cpu -p 2048 -n 128 --json\n"
      "  expert-split bench --model M.gguf -p 0 -n 64 --depth 4096\n"
      "  expert-split bench --model M.gguf -p 0 -n 64 --parallel 4\n"
      "  expert-split bench --model M.gguf --targets cuda:0=8GiB,cuda:1=4GiB,cpu --lanes");
  return {app, [options, app](const Session& session) {
            options->context_given = app->count("--ctx") > 0;
            return RunBench(session, *options);
          }};
}

}  // namespace cli
