#include "moe/plan/verifier.h"

#include <vector>

#include "base/quote.h"

namespace moe {

using base::ErrorKind;
using base::Fail;

base::Result<void> VerifyShape(const ModelShape& shape) {
  const ModelIdentity& identity = shape.identity;
  if (shape.layers.empty() || shape.num_experts == 0) {
    return Fail(ErrorKind::kCorruptModel,
                "model {} has {} expert layers of {} experts; nothing "
                "can be placed: choose a Mixture-of-Experts model",
                base::Quote(identity.name), shape.layers.size(), shape.num_experts);
  }
  if (shape.layers.size() != identity.num_layers || shape.num_experts != identity.num_experts) {
    return Fail(ErrorKind::kCorruptModel,
                "model {} has {} expert layers of {} experts, but its identity says {} of {}; "
                "the file contradicts itself",
                base::Quote(identity.name), shape.layers.size(), shape.num_experts,
                identity.num_layers, identity.num_experts);
  }
  if (shape.total_bytes().count() > std::uint64_t{1} << 63) {
    return Fail(ErrorKind::kCorruptModel,
                "model {}: its experts are more than 2^63 bytes; the "
                "file's tensor sizes cannot be right",
                base::Quote(identity.name));
  }
  return {};
}

namespace {

// Counts what each target owns and compares it with capacity and claim.
base::Result<void> VerifyTotals(const ModelShape& shape, std::span<const PlanTarget> targets,
                                std::span<const std::uint8_t> owners,
                                std::span<const ClaimedTotals> claims) {
  std::vector<std::uint64_t> units(targets.size(), 0);
  std::vector<std::uint64_t> bytes(targets.size(), 0);
  for (std::size_t unit = 0; unit < owners.size(); ++unit) {
    ++units[owners[unit]];
    // Cannot wrap: VerifyShape bounds the sum over all units.
    bytes[owners[unit]] += shape.layers[unit / shape.num_experts].unit.total().count();
  }
  std::uint64_t all_bytes = 0;
  for (std::size_t target = 0; target < targets.size(); ++target) {
    const auto& [name, capacity] = targets[target];
    all_bytes += bytes[target];
    if (capacity && bytes[target] > capacity->count()) {
      return Fail(ErrorKind::kCorruptModel,
                  "target {} would own {} bytes of experts, above its capacity of {}",
                  base::Quote(name), bytes[target], capacity->count());
    }
    if (!claims.empty() &&
        (claims[target].units != units[target] || claims[target].bytes.count() != bytes[target])) {
      return Fail(ErrorKind::kCorruptModel,
                  "target {} owns {} units of {} bytes, but the plan says {} of {}",
                  base::Quote(name), units[target], bytes[target], claims[target].units,
                  claims[target].bytes.count());
    }
  }
  if (all_bytes != shape.total_bytes().count()) {
    return Fail(ErrorKind::kCorruptModel, "the targets own {} bytes of the model's {}", all_bytes,
                shape.total_bytes().count());
  }
  return {};
}

}  // namespace

base::Result<void> VerifyPlacement(const ModelShape& shape, std::span<const PlanTarget> targets,
                                   std::span<const std::uint8_t> owners,
                                   std::span<const ClaimedTotals> claims) {
  if (auto sound = VerifyShape(shape); !sound) return sound;
  if (targets.empty() || targets.size() > 255) {
    return Fail(ErrorKind::kCorruptModel, "a plan has 1 to 255 targets, not {}", targets.size());
  }
  if (owners.size() != shape.num_units()) {
    return Fail(ErrorKind::kCorruptModel,
                "the plan has owners for {} units, the model has {} units", owners.size(),
                shape.num_units());
  }
  if (!claims.empty() && claims.size() != targets.size()) {
    return Fail(ErrorKind::kCorruptModel, "the plan has sums for {} targets but lists {}",
                claims.size(), targets.size());
  }
  for (std::size_t unit = 0; unit < owners.size(); ++unit) {
    if (owners[unit] >= targets.size()) {
      return Fail(ErrorKind::kCorruptModel,
                  "expert {} of layer {} is owned by target {}, but the plan lists {} targets "
                  "(0 to {})",
                  unit % shape.num_experts, unit / shape.num_experts, owners[unit], targets.size(),
                  targets.size() - 1);
    }
  }
  return VerifyTotals(shape, targets, owners, claims);
}

base::Result<void> VerifyPlan(const ExpertSplitPlan& plan, const ModelShape& shape) {
  if (plan.model() != shape.identity) {
    return Fail(ErrorKind::kCorruptModel, "the plan is for model {} ({}), not {} ({})",
                base::Quote(plan.model().name), plan.model().quantisation,
                base::Quote(shape.identity.name), shape.identity.quantisation);
  }
  std::vector<ClaimedTotals> claims;
  for (std::size_t target = 0; target < plan.targets().size(); ++target) {
    claims.push_back({plan.units(TargetId(target)), plan.bytes(TargetId(target))});
  }
  return VerifyPlacement(shape, plan.targets(), plan.owners(), claims);
}

}  // namespace moe
