#include "moe/plan/comparison.h"

#include <utility>

#include "moe/plan/policy_balanced.h"

namespace moe {
namespace {

base::Result<std::optional<ExpertSplitPlan>> MakeFor(PlanPolicy policy, PlanRequest request) {
  if (policy == PlanPolicy::kLayers) {
    auto owners = BestLayerOwners(request);
    if (!owners) return std::nullopt;
    auto plan = ExpertSplitPlan::FromOwners(*request.shape, *request.hotness, request.targets,
                                            *std::move(owners));
    if (!plan) return base::Forward(plan);
    return *std::move(plan);
  }
  request.policy = policy;
  auto plan = ExpertSplitPlan::Make(request);
  if (!plan) return base::Forward(plan);
  return *std::move(plan);
}

}  // namespace

base::Result<std::vector<PolicyOutcome>> ComparePolicies(const PlanRequest& request) {
  std::vector<PolicyOutcome> outcomes;
  for (const PlanPolicy policy : kPlanPolicies) {
    auto plan = MakeFor(policy, request);
    if (!plan) return base::Forward(plan);
    PolicyOutcome outcome{.policy = policy, .plan = *std::move(plan), .seconds = {}};
    if (outcome.plan) {
      outcome.seconds =
          ExpectSeconds(*request.shape, *request.hotness, outcome.plan->owners(), *request.costs);
    }
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace moe
