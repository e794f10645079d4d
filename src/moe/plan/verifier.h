// Proves a placement: every unit owned once by a listed target, no capacity exceeded, sums exact.
//
// Called on every plan that is made or read, and written without any code of the policies, so that
// a fault there cannot hide here. Messages name no remedy: that is for whoever knows where the
// placement came from (plan/plan_file.h). Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/plan/model_shape.h"
#include "moe/plan/plan.h"

namespace moe {

// What a plan claims that a target owns.
struct ClaimedTotals {
  std::size_t units = 0;
  base::Bytes bytes;
};

// `owners` is [num_layers * num_experts], layer major; `claims` is [targets] or empty (no claim to
// check). Errors: kCorruptModel, one line, for a shape that contradicts its identity, no target or
// more than 255, a wrong number of owners, an owner that is not listed, a capacity exceeded, a
// claim that is not the exact sum, sums that are not the whole model.
base::Result<void> VerifyPlacement(const ModelShape& shape, std::span<const PlanTarget> targets,
                                   std::span<const std::uint8_t> owners,
                                   std::span<const ClaimedTotals> claims);

// The same for a finished plan and all it claims, the model it names included.
base::Result<void> VerifyPlan(const ExpertSplitPlan& plan, const ModelShape& shape);

// Errors: kCorruptModel for a shape without layers or experts, one whose counts are not those of
// its identity, or one whose units are more than 2^63 bytes.
base::Result<void> VerifyShape(const ModelShape& shape);

}  // namespace moe
