#include "moe/plan/plan.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/fnv1a.h"
#include "moe/plan/policy_balanced.h"
#include "moe/plan/policy_layers.h"
#include "moe/plan/policy_ordered.h"
#include "moe/plan/verifier.h"

namespace moe {

using base::ErrorKind;
using base::Fail;
using base::Forward;

std::string_view PlanPolicyName(PlanPolicy policy) {
  switch (policy) {
    case PlanPolicy::kOrdered:
      return "ordered";
    case PlanPolicy::kBalanced:
      return "balanced";
    case PlanPolicy::kLayers:
      return "layers";
  }
  return "ordered";
}

base::Result<PlanPolicy> ParsePlanPolicy(std::string_view text) {
  for (const PlanPolicy policy : kPlanPolicies) {
    if (text == PlanPolicyName(policy)) return policy;
  }
  return Fail(ErrorKind::kInvalidInput, "unknown plan policy '{}'; use ordered, balanced or layers",
              text);
}

namespace {

std::unexpected<base::Error> TooSmall(const PlanRequest& request, const Placement& placement) {
  const ModelShape& shape = *request.shape;
  base::Bytes taken;
  std::string targets;
  for (std::size_t i = 0; i < request.targets.size(); ++i) {
    // Only a list of bounded targets can be too small.
    const base::Bytes capacity = request.targets[i].capacity.value_or(base::Bytes());
    const base::Bytes bytes = capacity - placement.free(TargetId(i));
    taken += bytes;
    targets += std::format("{}{} would take {} bytes (capacity {})", i == 0 ? "" : ", ",
                           request.targets[i].name, bytes.count(), capacity.count());
  }
  const base::Bytes missing = shape.total_bytes() - taken;
  return Fail(ErrorKind::kCapacity,
              "not enough capacity for {} bytes of experts: {}; {} bytes ({}) are missing: raise a "
              "capacity or add a target such as cpu",
              shape.total_bytes().count(), targets, missing.count(), base::FormatBytes(missing));
}

Placement Place(const PlanRequest& request) {
  switch (request.policy) {
    case PlanPolicy::kBalanced:
      return PlaceBalanced(request);
    case PlanPolicy::kLayers:
      return PlaceLayers(request);
    case PlanPolicy::kOrdered:
      break;
  }
  return PlaceOrdered(request);
}

}  // namespace

base::Result<ExpertSplitPlan> ExpertSplitPlan::Make(const PlanRequest& request) {
  if (auto sound = VerifyShape(*request.shape); !sound) return Forward(sound);
  if (request.targets.empty() || request.targets.size() > kMaxTargets) {
    return Fail(ErrorKind::kInvalidInput, "a plan needs 1 to {} targets, not {}", kMaxTargets,
                request.targets.size());
  }
  const Placement placement = Place(request);
  if (placement.num_homeless() > 0) return TooSmall(request, placement);
  const auto owners = placement.owners();
  auto plan =
      FromOwners(*request.shape, *request.hotness, request.targets, {owners.begin(), owners.end()});
  if (!plan) {
    return Fail(ErrorKind::kInternal, "policy {} made a plan that its verifier refuses: {}",
                PlanPolicyName(request.policy), plan.error().message);
  }
  return plan;
}

base::Result<ExpertSplitPlan> ExpertSplitPlan::FromOwners(const ModelShape& shape,
                                                          const Hotness& hotness,
                                                          std::vector<PlanTarget> targets,
                                                          std::vector<std::uint8_t> owners) {
  if (auto sound = VerifyPlacement(shape, targets, owners, {}); !sound) return Forward(sound);
  ExpertSplitPlan plan;
  plan.model_ = shape.identity;
  plan.num_experts_ = shape.num_experts;
  plan.totals_.resize(targets.size());
  plan.targets_ = std::move(targets);
  plan.owners_ = std::move(owners);
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    for (std::size_t expert = 0; expert < shape.num_experts; ++expert) {
      const LayerId layer_id(layer);
      Totals& totals = plan.totals_[plan.owner(layer_id, ExpertId(expert)).index()];
      ++totals.units;
      totals.bytes += shape.unit_bytes(layer_id);
      totals.share += hotness.share(layer_id, ExpertId(expert));
    }
  }
  for (Totals& totals : plan.totals_) totals.share /= static_cast<double>(shape.layers.size());

  base::Fnv1a hash;
  hash.Text(plan.model_.architecture);
  hash.Text(plan.model_.name);
  hash.Text(plan.model_.quantisation);
  hash.Number(plan.model_.num_layers);
  hash.Number(plan.model_.num_experts);
  hash.Number(plan.model_.directory_hash);
  hash.Number(plan.model_.shape_hash);
  hash.Number(plan.targets_.size());
  for (const PlanTarget& target : plan.targets_) hash.Text(target.name);
  hash.Bytes(plan.owners_);
  plan.fingerprint_ = hash.value();

  if (auto sound = VerifyPlan(plan, shape); !sound) return Forward(sound);
  return plan;
}

std::string ExpertSplitPlan::FingerprintText() const {
  return std::format("{:016x}", fingerprint_);
}

std::string ExpertSplitPlan::Summary() const {
  std::string summary;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    summary += std::format("{}{}={}", i == 0 ? "" : "|", targets_[i].name, totals_[i].units);
  }
  return summary;
}

}  // namespace moe
