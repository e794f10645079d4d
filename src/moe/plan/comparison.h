// The policies side by side on one request: what each would make of the same bytes. Pure; any
// thread.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "moe/plan/cost_model.h"
#include "moe/plan/plan.h"

namespace moe {

struct PolicyOutcome {
  PlanPolicy policy = PlanPolicy::kOrdered;
  std::optional<ExpertSplitPlan> plan;  // absent where whole layers fit in no order
  ExpectedSeconds seconds;              // of the routed experts, under the request's costs
};

// One outcome for each of kPlanPolicies, in that order. `layers` takes the targets in whatever
// order is fastest (plan/policy_balanced.h), so that the comparison is with the best that whole
// layers can do. The request's policy is ignored; precondition: it has costs. Errors: as
// ExpertSplitPlan::Make for the policy `ordered`.
base::Result<std::vector<PolicyOutcome>> ComparePolicies(const PlanRequest& request);

}  // namespace moe
