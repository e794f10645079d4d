// Plans as files: docs/plan_file.md has the grammar and an example. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/plan/plan.h"

namespace moe {

inline constexpr std::string_view kPlanFileFormat = "expert-split-plan";
inline constexpr std::uint64_t kPlanFileVersion = 1;

// The file's content. The same plan gives the same bytes.
std::string PrintPlanFile(const ExpertSplitPlan& plan);

// Errors: as base::WriteFileAtomically.
base::Result<void> WritePlanFile(const ExpertSplitPlan& plan, const std::string& path);

// Reads the plan of the model with this `shape`; `hotness` gives its expected shares. Errors:
// kCorruptModel, one line naming file, field and remedy, when the file is missing, too large, not
// JSON, of another format or version, lacks a field, has one of a wrong type, count or range, was
// made for another model (both are named), breaks a rule of the verifier, or does not have the
// fingerprint that it states.
base::Result<ExpertSplitPlan> ReadPlanFile(const std::string& path, const ModelShape& shape,
                                           const Hotness& hotness);

// The same for content in memory; `path` is used in messages only.
base::Result<ExpertSplitPlan> ParsePlanFile(std::string_view text, const std::string& path,
                                            const ModelShape& shape, const Hotness& hotness);

}  // namespace moe
