// ExpertSplitPlan: which target owns each unit. The decision only; nothing is loaded here.
//
// A plan is an immutable value and a pure function of its request: the same request gives the same
// owners, bytes and fingerprint in every process. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/target/ids.h"

namespace moe {

struct CostModel;

enum class PlanPolicy {
  kOrdered,   // list order, hottest units first
  kBalanced,  // the owners that are expected to compute fastest, whatever the order
  kLayers,    // whole layers, contiguous spans, in list order
};
// Every policy, in the order in which messages list them.
inline constexpr PlanPolicy kPlanPolicies[] = {PlanPolicy::kOrdered, PlanPolicy::kBalanced,
                                               PlanPolicy::kLayers};

// "ordered", "balanced" or "layers". Parsing errors: kInvalidInput, listing the policies.
std::string_view PlanPolicyName(PlanPolicy policy);
base::Result<PlanPolicy> ParsePlanPolicy(std::string_view text);

struct PlanTarget {
  std::string name;                     // as ExpertSplitTargetConfig prints it
  std::optional<base::Bytes> capacity;  // bytes of units it may own; nullopt is unbounded

  friend bool operator==(const PlanTarget&, const PlanTarget&) = default;
};

struct PlanRequest {
  const ModelShape* shape = nullptr;
  const Hotness* hotness = nullptr;
  std::vector<PlanTarget> targets;  // in list order, 1 to 255
  PlanPolicy policy = PlanPolicy::kOrdered;
  // With a profile: the first target owns at least the top-k hottest units of every layer where its
  // capacity allows, because global hottest-first otherwise gives a few layers everything.
  bool layer_floor = true;
  // How fast the targets are (plan/cost_model.h); kBalanced needs it, the others ignore it.
  const CostModel* costs = nullptr;
};

class ExpertSplitPlan {
 public:
  // Decides. Errors: kCapacity when all targets together cannot hold the model; the message says
  // per target how many bytes it would take, and how many are missing.
  static base::Result<ExpertSplitPlan> Make(const PlanRequest& request);

  // A plan from known owners, for example of a file. `owners` is [num_layers * num_experts], layer
  // major. Errors: kCorruptModel when the verifier (plan/verifier.h) refuses it.
  static base::Result<ExpertSplitPlan> FromOwners(const ModelShape& shape, const Hotness& hotness,
                                                  std::vector<PlanTarget> targets,
                                                  std::vector<std::uint8_t> owners);

  TargetId owner(LayerId layer, ExpertId expert) const {
    return TargetId(owners_[layer.index() * num_experts_ + expert.index()]);
  }
  // [num_layers * num_experts], layer major: index into targets().
  std::span<const std::uint8_t> owners() const { return owners_; }
  std::span<const PlanTarget> targets() const { return targets_; }
  const ModelIdentity& model() const { return model_; }
  std::size_t num_layers() const { return model_.num_layers; }
  std::size_t num_experts() const { return num_experts_; }
  std::size_t num_units() const { return owners_.size(); }

  std::size_t units(TargetId target) const { return totals_[target.index()].units; }
  base::Bytes bytes(TargetId target) const { return totals_[target.index()].bytes; }
  // Expected fraction of routed traffic, 0 to 1; sums to 1 over the targets.
  double expected_share(TargetId target) const { return totals_[target.index()].share; }

  // Over model identity, target names and owners; prints as 16 hex digits.
  std::uint64_t fingerprint() const { return fingerprint_; }
  std::string FingerprintText() const;
  // "cuda:0=5861|cpu=24818": units per target in list order.
  std::string Summary() const;

 private:
  struct Totals {
    std::size_t units = 0;
    base::Bytes bytes;
    double share = 0;
  };

  ExpertSplitPlan() = default;

  ModelIdentity model_;
  std::size_t num_experts_ = 0;
  std::vector<PlanTarget> targets_;
  std::vector<std::uint8_t> owners_;
  std::vector<Totals> totals_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace moe
