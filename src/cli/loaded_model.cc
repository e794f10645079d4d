#include "cli/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <format>
#include <thread>
#include <utility>

#include "base/child_process.h"
#include "cli/device_targets.h"
#include "cli/progress.h"
#include "gg/device_check.h"
#include "model/registry.h"
#include "moe/compute/expert_loader.h"

namespace cli {
namespace {

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Each device that runs the dense part or owns a unit, checked once.
base::Result<void> CheckDevicesInUse(const ModelPlacement& placement,
                                     const std::vector<const gg::Device*>& devices) {
  std::vector<const gg::Device*> checked;
  for (std::size_t t = 0; t < devices.size(); ++t) {
    const moe::TargetId target(t);
    const bool used = placement.plan.units(target) > 0 || target == placement.config.primary();
    if (!used || devices[t] == nullptr || devices[t]->is_cpu() ||
        std::ranges::contains(checked, devices[t])) {
      continue;
    }
    if (auto right = gg::CheckDevice(*devices[t]); !right) return right;
    checked.push_back(devices[t]);
  }
  return {};
}

// Bytes of the units that CPU owners use.
base::Bytes UnitsOnCpu(const ModelPlacement& placement,
                       const std::vector<const gg::Device*>& devices) {
  base::Bytes bytes;
  for (std::size_t t = 0; t < devices.size(); ++t) {
    if (devices[t] != nullptr && devices[t]->is_cpu())
      bytes += placement.plan.bytes(moe::TargetId(t));
  }
  return bytes;
}

}  // namespace

void AddRunOptions(CLI::App& app, std::uint32_t& threads, PlacementOptions& placement) {
  const auto set_threads = [&](std::uint32_t count) { threads = placement.threads = count; };
  app.add_option_function<std::uint32_t>("--threads", set_threads,
                                         "CPU threads (default: one a core)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--batch", placement.batch_rows, "prompt tokens computed in one step")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--repack", placement.repack,
                 "layout of the weights that the CPU computes with. auto: at load, what fits in "
                 "free memory is copied into a layout that computes faster; the file's pages are "
                 "given back. off: weights are used where the file is mapped, read when they are "
                 "needed, as suits a model larger than memory. The numbers are the same")
      ->type_name("auto|off")
      ->check(CLI::IsMember({"auto", "off"}).description(""))
      ->capture_default_str();
  app.add_option(
         "--on-worker-loss", placement.on_worker_loss,
         "when a worker ends, hangs or answers nonsense. move: its experts move to the next "
         "targets that have room, in the end to cpu, and the work goes on; fail: the "
         "request ends with an error")
      ->type_name("move|fail")
      ->check(CLI::IsMember({"move", "fail"}).description(""))
      ->capture_default_str();
  app.add_option("--worker-timeout", placement.worker_timeout_s,
                 "seconds after which a worker that has not computed its part of a step is lost")
      ->type_name("S")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  AddRpcCacheOption(app, placement.rpc_cache);
  app.add_option("--plan", placement.plan,
                 "take this plan instead of making one; its targets are the default --targets")
      ->type_name("FILE");
}

base::Result<std::unique_ptr<LoadedModel>> LoadedModel::Load(
    const Session& session, ModelPlacement placement, const ModelOptions& model,
    const PlacementOptions& options, std::uint32_t threads, std::stop_token stop) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(placement)));
  auto vocabulary = model::Vocabulary::Load(model.model);
  if (!vocabulary) return base::Forward(vocabulary);
  loaded->vocabulary_ = std::make_unique<model::Vocabulary>(std::move(*vocabulary));
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  auto done = loaded->LoadBackend(session, options, threads, std::move(stop));
  if (!done) return base::Forward(done);
  loaded->load_ms_ = MillisecondsSince(start);
  std::fprintf(stderr, "%s\n", moe::PlacementLine(*loaded->plan(), loaded->path()).c_str());
  return loaded;
}

base::Result<void> LoadedModel::LoadBackend(const Session& session, const PlacementOptions& options,
                                            std::uint32_t threads, std::stop_token stop) {
  auto devices = ResolveDevices(placement_.config, placement_.devices);
  if (!devices) return base::Forward(devices);
  if (auto right = CheckDevicesInUse(placement_, *devices); !right) return right;

  const gg::Device* cpu = gg::FindDevice(placement_.devices, "cpu");
  const gg::Device* primary = (*devices)[placement_.config.primary().index()];
  LoadProgressLine progress(placement_.config, session.progress);
  const moe::Repack repack =
      moe::RepackInMemory(RepackOf(options), UnitsOnCpu(placement_, *devices), {}, session.log);
  auto backend = model::LoadDense({.file = &placement_.file,
                                   .primary = *primary,
                                   .cpu = *cpu,
                                   .context = {.context = options.context,
                                               .num_sequences = options.parallel,
                                               .batch_rows = options.batch_rows},
                                   .num_threads = threads,
                                   .repack = repack,
                                   .log = session.log,
                                   .control = {progress.dense_callback(), stop}});
  progress.Clear();
  if (!backend) return base::Forward(backend);
  backend_ = std::move(*backend);

  std::vector<gg::Device> owners;
  for (const gg::Device* device : *devices) {
    owners.push_back(device != nullptr ? *device : gg::Device{});
  }
  auto program = base::OwnExecutable();
  if (!program) return base::Forward(program);
  moe::ExpertLoadRequest request{
      .config = &placement_.config,
      .shape = &placement_.description.shape,
      .hotness = &placement_.hotness,
      .plan = &placement_.plan,
      .stacks = &placement_.description.stacks,
      .file = &placement_.file,
      .weights = backend_->expert_weights(),
      .devices = std::move(owners),
      .max_rows = options.batch_rows,
      .repack = repack,
      .pack_threads = threads,
      .use_threads = [this](std::size_t count) { backend_->SetThreads(count); },
      .workers = {.program = *program,
                  .model = placement_.file.shards().front().path(),
                  .timeouts = WorkerTimeoutsOf(options),
                  .remotes = placement_.remotes},
      .on_worker_loss =
          options.on_worker_loss == "fail" ? moe::OnWorkerLoss::kFail : moe::OnWorkerLoss::kMove,
      .movable = options.movable,
      .untouched_bytes = backend_->untouched_host_bytes(),
      .log = session.log,
      .progress = progress.callback(),
      .stop = std::move(stop)};
  if (!primary->is_cpu()) {
    request.keep_on_primary = [this](moe::LayerId layer) { return backend_->KeepOnPrimary(layer); };
  }
  auto experts = moe::LoadExperts(std::move(request));
  progress.Clear();
  if (!experts) return base::Forward(experts);
  components_ = std::move(experts->components);
  failover_ = std::move(experts->failover);
  mover_ = std::move(experts->mover);
  // Shares the bundle, points to the object inside it.
  if (failover_ != nullptr && components_->compute().routed() != nullptr) {
    backend_->SetExperts(failover_);
  } else if (moe::MoeExpertCompute* routed = components_->compute().routed()) {
    backend_->SetExperts(std::shared_ptr<moe::MoeExpertCompute>(components_, routed));
  }
  return {};
}

std::shared_ptr<const moe::ExpertSplitStateComponents> LoadedModel::components() const {
  return failover_ != nullptr ? failover_->components() : components_;
}

std::shared_ptr<const moe::ExpertSplitPlan> LoadedModel::plan() const {
  const auto components = this->components();
  return {components, &components->plan()};
}

std::vector<std::string> LoadedModel::Lost() const {
  std::vector<std::string> names;
  if (failover_ == nullptr) return names;
  for (const moe::LostWorker& worker : failover_->lost()) {
    names.push_back(placement_.config[worker.target].name);
  }
  return names;
}

std::vector<moe::LostWorker> LoadedModel::AllLost() const {
  return failover_ != nullptr ? failover_->lost() : std::vector<moe::LostWorker>();
}

std::vector<moe::LostWorker> LoadedModel::Missing() const {
  return failover_ != nullptr ? failover_->missing() : std::vector<moe::LostWorker>();
}

void LoadedModel::Settle(const Session& session) {
  if (failover_ == nullptr) return;
  if (auto settled = failover_->Settle(); !settled) {
    session.log.Warning("{}", settled.error().message);
  }
}

std::vector<TargetUse> LoadedModel::Use(const moe::ExpertSplitStateComponents& components) const {
  const moe::ExpertSplitPlan& plan = components.plan();
  std::vector<TargetUse> use;
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < plan.targets().size(); ++t) {
    const moe::TargetId target(t);
    TargetUse one{
        .name = plan.targets()[t].name, .units = plan.units(target), .bytes = plan.bytes(target)};
    if (target == components.config().primary()) one.rows += backend_->primary_pairs();
    if (failover_ != nullptr) {
      one.rows += failover_->TargetPairs(target);
      one.busy_ms = failover_->TargetTimes(target).busy_ms;
      one.wait_ms = failover_->TargetTimes(target).wait_ms;
    } else if (const moe::MoeExpertCompute* owner = components.compute().compute(target)) {
      one.rows += owner->num_pairs(0);
      one.busy_ms = owner->times().busy_ms;
      one.wait_ms = owner->times().wait_ms;
    }
    total += one.rows;
    use.push_back(std::move(one));
  }
  for (TargetUse& one : use) {
    one.share = total > 0 ? static_cast<double>(one.rows) / static_cast<double>(total) : 0.0;
  }
  return use;
}

Json UseJson(const std::vector<TargetUse>& use) {
  Json targets = Json::array();
  for (const TargetUse& one : use) {
    targets.push_back({{"name", one.name},
                       {"units", one.units},
                       {"bytes", one.bytes.count()},
                       {"rows", one.rows},
                       {"share", one.share},
                       {"busy_ms", one.busy_ms},
                       {"wait_ms", one.wait_ms}});
  }
  return targets;
}

std::string UseTable(const std::vector<TargetUse>& use) {
  std::vector<std::vector<std::string>> rows = {
      {"TARGET", "UNITS", "BYTES", "ROWS", "SHARE", "BUSY", "WAIT"}};
  for (const TargetUse& one : use) {
    rows.push_back({one.name, std::format("{}", one.units), base::FormatBytes(one.bytes),
                    std::format("{}", one.rows), std::format("{:.1f} %", 100 * one.share),
                    std::format("{:.0f} ms", one.busy_ms), std::format("{:.0f} ms", one.wait_ms)});
  }
  return FormatTable(rows, {1, 2, 3, 4, 5, 6});
}

}  // namespace cli
