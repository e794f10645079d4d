// From the command line to a plan: the steps that every command which places a model takes. One
// thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "model/family.h"
#include "moe/compute/remote_servers.h"
#include "moe/compute/repack.h"
#include "moe/ipc/worker_session.h"
#include "moe/plan/cost_model.h"
#include "moe/plan/hotness.h"
#include "moe/plan/placement_path.h"
#include "moe/plan/plan.h"
#include "moe/target/target_config.h"

namespace cli {

struct PlacementOptions {
  std::string policy = "ordered";       // --policy
  std::string profile;                  // --profile; empty means uniform routing
  bool layer_floor = true;              // --layer-floor; only with a profile
  std::uint32_t context = 4096;         // --ctx: tokens of one sequence
  std::uint32_t parallel = 1;           // --parallel: sequences
  std::uint32_t batch_rows = 512;       // rows of one step, at most
  std::string repack = "auto";          // --repack: auto or off
  std::string on_worker_loss = "move";  // --on-worker-loss: move or fail
  std::uint32_t worker_timeout_s = 30;  // --worker-timeout: seconds
  bool rpc_cache = false;               // --rpc-cache
  std::string plan;           // --plan: a file to take instead of planning; empty: plan now
  std::string assume;         // --assume: targets that are only assumed
  std::uint32_t threads = 0;  // --threads: of the CPU, one a core when 0
  bool costs = false;         // find out how fast the targets are, whatever the policy
  bool movable = false;       // experts may change owners after they were loaded
};

moe::Repack RepackOf(const PlacementOptions& options);
moe::ipc::WorkerTimeouts WorkerTimeoutsOf(const PlacementOptions& options);

// --rpc-cache.
void AddRpcCacheOption(CLI::App& app, bool& rpc_cache);

// --policy, --profile, --layer-floor, --ctx and --parallel.
void AddPlacementOptions(CLI::App& app, PlacementOptions& options);

// A model file with a placement for it; nothing of it is loaded.
struct ModelPlacement {
  gg::GgufFile file;
  model::ModelDescription description;
  std::vector<gg::Device> devices;  // of this machine
  moe::ExpertSplitTargetConfig config;
  moe::Hotness hotness;
  moe::ExpertSplitPlan plan;
  moe::PlacementPath path = moe::PlacementPath::kSingle;
  std::optional<moe::CostModel> costs;  // for policy balanced and where options.costs asks for it
  std::shared_ptr<moe::RemoteServers> remotes;  // with the connections made so far
};

// Reads the model's directory, finds the devices, counts memory and plans, or takes the plan of
// options.plan, whose targets must be those of the list (without a list they are the list). Targets
// that this machine lacks are fine when their capacity is given or assumed; whether targets can run
// is for the caller to ask (ResolveDevices). Policy `balanced` measures how
// fast the targets are, unless that is assumed or known from an earlier run. Errors: kInvalidInput
// for the target list, the policy, the assumptions, an absent target without a size or a speed;
// kCorruptModel for the model, profile or plan file, also a plan for other targets; kCapacity;
// kDeviceFailure of a measurement.
base::Result<ModelPlacement> PlaceModel(const Session& session, const ModelOptions& model,
                                        const PlacementOptions& options);

}  // namespace cli
