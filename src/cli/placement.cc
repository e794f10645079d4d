#include "cli/placement.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/child_process.h"
#include "cli/device_targets.h"
#include "cli/profile_report.h"
#include "cli/target_costs.h"
#include "model/registry.h"
#include "moe/plan/plan_file.h"
#include "moe/profile/profile.h"
#include "moe/target/assumed_target.h"
#include "moe/target/capacity.h"

namespace cli {
namespace {

base::Result<moe::Hotness> ReadHotness(const Session& session, const std::string& path,
                                       const moe::ModelShape& shape) {
  if (path.empty()) return moe::Hotness::Uniform(shape);
  auto profile = ReadProfile(session, path, shape.identity);
  if (!profile) return Forward(profile);
  LogGain(session, *profile);
  return moe::HotnessOf(*profile, shape);
}

// What an owner beside the primary computes in: a step's rows, and the inner and outer vector of
// each of their experts.
base::Bytes OwnerBuffers(const model::ModelDescription& model, std::uint32_t batch_rows) {
  std::uint64_t widest = 0;
  for (const moe::LayerStacks& layer : model.stacks) {
    widest = std::max(widest, 2 * layer.down.row_width + layer.down.num_rows);
  }
  const std::uint64_t pairs = std::uint64_t{batch_rows} * model.shape.experts_per_token;
  return base::Bytes(sizeof(float)) * widest * pairs +
         base::Bytes(sizeof(float)) * model.dense.n_embd * batch_rows;
}

base::Result<std::vector<std::optional<base::Bytes>>> Capacities(
    const model::ModelDescription& model, moe::RemoteServers& remotes,
    const moe::ExpertSplitTargetConfig& config, const std::vector<gg::Device>& devices,
    const std::vector<moe::AssumedTarget>& assumed, const PlacementOptions& options) {
  const model::DenseNeeds needs =
      model::NeedsOf(model.dense, {.context = options.context,
                                   .num_sequences = options.parallel,
                                   .batch_rows = options.batch_rows,
                                   .on_cpu = config[config.primary()].in_process_cpu()});
  DeviceMemoryProbe machine(devices, &remotes);
  moe::AssumedMemoryProbe probe(machine, assumed);
  return moe::ResolveCapacities({.config = &config,
                                 .unit_bytes = model.shape.total_bytes(),
                                 .dense = {.weights = needs.weights,
                                           .kv_cache = needs.kv_cache,
                                           .recurrent_state = needs.state,
                                           .compute_buffers = needs.compute},
                                 .owner_buffers = OwnerBuffers(model, options.batch_rows)},
                                probe);
}

std::vector<moe::PlanTarget> PlanTargets(
    const moe::ExpertSplitTargetConfig& config,
    const std::vector<std::optional<base::Bytes>>& capacities) {
  std::vector<moe::PlanTarget> targets;
  for (std::size_t i = 0; i < config.size(); ++i) {
    targets.push_back({config.targets()[i].name, capacities[i]});
  }
  return targets;
}

// Nothing when no file is named.
base::Result<std::optional<moe::ExpertSplitPlan>> ReadPlan(const std::string& path,
                                                           const moe::ModelShape& shape,
                                                           const moe::Hotness& hotness) {
  if (path.empty()) return std::nullopt;
  auto plan = moe::ReadPlanFile(path, shape, hotness);
  if (!plan) return Forward(plan);
  return *std::move(plan);
}

// The target list of a plan's own targets.
std::string JoinedNames(const moe::ExpertSplitPlan& plan) {
  std::string names;
  for (const moe::PlanTarget& target : plan.targets()) {
    names += (names.empty() ? "" : ",") + target.name;
  }
  return names;
}

base::Result<void> CheckPlanTargets(const moe::ExpertSplitPlan& plan,
                                    const moe::ExpertSplitTargetConfig& config,
                                    const std::string& path) {
  const bool same = std::ranges::equal(plan.targets(), config.targets(), {}, &moe::PlanTarget::name,
                                       &moe::ExpertSplitTarget::name);
  if (same) return {};
  return base::Fail(base::ErrorKind::kCorruptModel,
                    "'{}' is a plan for the targets {}, not for {}; give --targets those, or make "
                    "the plan again",
                    path, JoinedNames(plan), config.Print());
}

}  // namespace

moe::Repack RepackOf(const PlacementOptions& options) {
  return options.repack == "off" ? moe::Repack::kOff : moe::Repack::kAuto;
}

moe::ipc::WorkerTimeouts WorkerTimeoutsOf(const PlacementOptions& options) {
  moe::ipc::WorkerTimeouts timeouts;
  timeouts.batch = std::chrono::seconds(options.worker_timeout_s);
  return timeouts;
}

void AddRpcCacheOption(CLI::App& app, bool& rpc_cache) {
  app.add_flag("--rpc-cache", rpc_cache,
               "send experts to rpc: targets in pieces of up to 64 MiB, with a hash first, so that "
               "a server with a cache (ggml-rpc-server --cache) takes those that it has from its "
               "disk");
}

void AddPlacementOptions(CLI::App& app, PlacementOptions& options) {
  app.add_option("--policy", options.policy,
                 "ordered: fill targets in list order, hottest experts first; balanced: what is "
                 "expected to be fastest, by the targets' measured speeds; layers: whole layers in "
                 "list order")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--profile", options.profile,
                 "routing profile that says which experts are hot (default: all equally)")
      ->type_name("FILE");
  app.add_option("--layer-floor", options.layer_floor,
                 "with --profile and policy ordered: the first target owns at least the hottest "
                 "experts of every layer, as many as a token uses, as far as its capacity goes")
      ->type_name("on|off")
      ->check(CLI::IsMember({"on", "off"}).description(""))
      ->default_str("on");
  app.add_option("--ctx", options.context, "tokens that one sequence can hold")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--parallel", options.parallel, "sequences at the same time")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

base::Result<ModelPlacement> PlaceModel(const Session& session, const ModelOptions& model,
                                        const PlacementOptions& options) {
  // What the command line alone can tell comes before any work.
  const auto policy = moe::ParsePlanPolicy(options.policy);
  if (!policy) return std::unexpected(policy.error());
  const auto assumed = moe::ParseAssumedTargets(options.assume);
  if (!assumed) return std::unexpected(assumed.error());
  if (!model.targets.empty()) {
    if (auto config = moe::ExpertSplitTargetConfig::Parse(model.targets); !config) {
      return Forward(config);
    }
  }
  auto file = gg::GgufFile::Open(model.model);
  if (!file) return Forward(file);
  auto description = model::DescribeModel(*file);
  if (!description) return Forward(description);
  auto hotness = ReadHotness(session, options.profile, description->shape);
  if (!hotness) return Forward(hotness);
  auto devices = gg::DiscoverDevices({.log = session.log});
  if (!devices) return Forward(devices);
  auto made = ReadPlan(options.plan, description->shape, *hotness);
  if (!made) return Forward(made);
  auto config = TargetsOrDefault(
      model.targets.empty() && *made ? JoinedNames(**made) : model.targets, *devices);
  if (!config) return Forward(config);
  if (*made) {
    if (auto same = CheckPlanTargets(**made, *config, options.plan); !same) return Forward(same);
  }
  auto program = base::OwnExecutable();
  if (!program) return Forward(program);
  auto remotes = std::make_shared<moe::RemoteServers>(
      *config, moe::RemoteServersOptions{.program = *program,
                                         .model = file->shards().front().path(),
                                         .timeouts = WorkerTimeoutsOf(options),
                                         .use_cache = options.rpc_cache});
  const auto capacities = Capacities(*description, *remotes, *config, *devices, *assumed, options);
  if (!capacities) return std::unexpected(capacities.error());
  std::optional<moe::CostModel> costs;
  if (options.costs || (!*made && *policy == moe::PlanPolicy::kBalanced)) {
    auto found = TargetCosts(session, {.file = &*file,
                                       .model = &*description,
                                       .config = &*config,
                                       .devices = *devices,
                                       .capacities = *capacities,
                                       .assumed = &*assumed,
                                       .threads = options.threads,
                                       .prompt_rows = options.batch_rows,
                                       .repack = RepackOf(options)});
    if (!found) return Forward(found);
    costs = *std::move(found);
  }
  if (!*made) {
    auto plan = moe::ExpertSplitPlan::Make({.shape = &description->shape,
                                            .hotness = &*hotness,
                                            .targets = PlanTargets(*config, *capacities),
                                            .policy = *policy,
                                            .layer_floor = options.layer_floor,
                                            .costs = costs ? &*costs : nullptr});
    if (!plan) return Forward(plan);
    *made = *std::move(plan);
  }
  const moe::PlacementPath path = moe::PathOf(**made, *config);
  return ModelPlacement{.file = *std::move(file),
                        .description = *std::move(description),
                        .devices = *std::move(devices),
                        .config = *std::move(config),
                        .hotness = *std::move(hotness),
                        .plan = **std::move(made),
                        .path = path,
                        .costs = std::move(costs),
                        .remotes = std::move(remotes)};
}

}  // namespace cli
