// From a placement to a model that computes: devices checked, dense part and experts loaded. One
// thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/placement.h"
#include "model/placed_backend.h"
#include "model/text/vocabulary.h"
#include "moe/compute/failover_compute.h"
#include "moe/compute/placement_mover.h"
#include "moe/compute/state_components.h"

namespace cli {

// --threads (0: one a core), --batch, --repack and --plan.
void AddRunOptions(CLI::App& app, std::uint32_t& threads, PlacementOptions& placement);

// What one target has done since the model was loaded.
struct TargetUse {
  std::string name;
  std::size_t units = 0;
  base::Bytes bytes;       // of its units
  std::uint64_t rows = 0;  // (row, slot) pairs computed
  double share = 0;        // of all rows, 0 to 1
  double busy_ms = 0;      // moe::ExpertTimes; 0 for layers in the primary's own graph
  double wait_ms = 0;
};

class LoadedModel {
 public:
  // Checks every device in use, loads and reports progress on stderr. `placement.plan` is what is
  // wanted; plan() is what is in force. Errors: kUnsupported and kInvalidInput for targets that
  // cannot run here; kDeviceFailure for a device that computes wrong numbers; kCapacity;
  // kCorruptModel; kCancelled.
  static base::Result<std::unique_ptr<LoadedModel>> Load(
      const Session& session, ModelPlacement placement, const ModelOptions& model,
      const PlacementOptions& options, std::uint32_t threads, std::stop_token stop);

  model::ModelBackend& backend() { return *backend_; }
  const model::Vocabulary& vocabulary() const { return *vocabulary_; }
  // The placement in force, which changes when a worker is lost or experts move; what was got stays
  // readable. Any thread.
  std::shared_ptr<const moe::ExpertSplitStateComponents> components() const;
  std::shared_ptr<const moe::ExpertSplitPlan> plan() const;
  moe::PlacementPath path() const { return components()->compute().path(); }
  // The object that drives the layers' experts; nullptr when the primary's graph computes all.
  moe::MoeExpertCompute* routed() const { return components()->compute().routed(); }
  std::uint32_t experts_per_token() const { return placement_.description.shape.experts_per_token; }
  const gg::GgufFile& file() const { return placement_.file; }
  double load_ms() const { return load_ms_; }
  const moe::ModelIdentity& identity() const { return shape().identity; }
  const moe::ModelShape& shape() const { return placement_.description.shape; }
  // As ModelPlacement::costs.
  const std::optional<moe::CostModel>& costs() const { return placement_.costs; }
  // Any thread, while the backend computes too; units and bytes are those of `components`.
  std::vector<TargetUse> Use(const moe::ExpertSplitStateComponents& components) const;
  std::vector<TargetUse> Use() const { return Use(*this->components()); }
  // With PlacementOptions::movable, unless the primary's graph computes everything.
  moe::PlacementMover* mover() const { return mover_.get(); }
  // As model::PlacedBackend::RecordRouting.
  void RecordRouting(moe::RoutingRecorder* recorder) { backend_->RecordRouting(recorder); }
  // Names of the workers that were lost, in that order, also of those that came back.
  std::vector<std::string> Lost() const;
  // The same with the reasons. Any thread.
  std::vector<moe::LostWorker> AllLost() const;
  // Workers that are lost now. Any thread.
  std::vector<moe::LostWorker> Missing() const;
  // Takes workers back that were lost and notices losses. Between steps, by the thread that
  // computes.
  void Settle(const Session& session);

 private:
  explicit LoadedModel(ModelPlacement placement) : placement_(std::move(placement)) {}
  base::Result<void> LoadBackend(const Session& session, const PlacementOptions& options,
                                 std::uint32_t threads, std::stop_token stop);

  // Destroyed in reverse: the mapped file outlives everybody who reads it.
  ModelPlacement placement_;
  std::unique_ptr<model::Vocabulary> vocabulary_;
  std::shared_ptr<const moe::ExpertSplitStateComponents> components_;  // as it was loaded
  std::shared_ptr<moe::FailoverCompute> failover_;  // nullptr when nothing can change
  std::shared_ptr<moe::PlacementMover> mover_;
  std::unique_ptr<model::PlacedBackend> backend_;
  double load_ms_ = 0;
};

// The per-target part of run's and bench's JSON.
Json UseJson(const std::vector<TargetUse>& use);
// The same for people: a table.
std::string UseTable(const std::vector<TargetUse>& use);

}  // namespace cli
