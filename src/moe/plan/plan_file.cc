#include "moe/plan/plan_file.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/quote.h"
#include "moe/plan/json_fields.h"

namespace moe {

using base::ErrorKind;
using base::Fail;
using base::Forward;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

JsonFields::Source PlanSource(const std::string& path) {
  return {"plan", path, "make it again with `expert-split plan --out`"};
}

// "0*170 1*85 2": runs of equal owners.
std::string PrintRuns(std::span<const std::uint8_t> owners) {
  std::string text;
  for (std::size_t begin = 0; begin < owners.size();) {
    std::size_t end = begin + 1;
    while (end < owners.size() && owners[end] == owners[begin]) ++end;
    if (begin > 0) text += ' ';
    text += std::to_string(owners[begin]);
    if (end - begin > 1) text += std::format("*{}", end - begin);
    begin = end;
  }
  return text;
}

// A decimal number at the start of `text`, which it shortens. Nullopt for anything else.
std::optional<std::size_t> TakeNumber(std::string_view& text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || (text.front() == '0' && end != text.data() + 1)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Appends one layer's owners. The problem if `text` is not that of `num_experts` owners below
// `num_targets`, else empty.
std::string ParseRuns(std::string_view text, std::size_t num_experts, std::size_t num_targets,
                      std::vector<std::uint8_t>& owners) {
  std::size_t found = 0;
  bool first = true;
  while (!text.empty()) {
    if (!std::exchange(first, false)) {
      if (text.front() != ' ') return "runs must be parted by one blank";
      text.remove_prefix(1);
    }
    const auto owner = TakeNumber(text);
    if (!owner) return "expected the number of a target";
    if (*owner >= num_targets) {
      return std::format("owner {} is not one of the {} targets", *owner, num_targets);
    }
    std::size_t count = 1;
    if (text.starts_with('*')) {
      text.remove_prefix(1);
      const auto length = TakeNumber(text);
      if (!length || *length < 2) return "expected a run's length, 2 or more, after '*'";
      count = *length;
    }
    if (count > num_experts - found) {
      return std::format("has owners for more than {} experts", num_experts);
    }
    owners.insert(owners.end(), count, static_cast<std::uint8_t>(*owner));
    found += count;
  }
  if (found < num_experts)
    return std::format("has owners for {} experts, expected {}", found, num_experts);
  return {};
}

base::Result<std::vector<PlanTarget>> ParseTargets(const JsonFields& fields,
                                                   const JsonFields::Source& source) {
  const auto array = fields.Array("targets", 1, 255);
  if (!array) return std::unexpected(array.error());
  std::vector<PlanTarget> targets;
  for (const json& element : **array) {
    const std::string field = std::format("targets[{}]", targets.size());
    if (!element.is_object()) return fields.Refuse(field, "not an object");
    const JsonFields target(source, element, field + ".");
    auto name = target.Text("name");
    if (!name) return Forward(name);
    if (name->empty()) return target.Refuse("name", "empty");
    if (std::ranges::contains(targets, *name, &PlanTarget::name)) {
      return target.Refuse("name", base::Quote(*name) + " is listed twice");
    }
    const auto capacity = target.Value("capacity");
    if (!capacity) return std::unexpected(capacity.error());
    targets.push_back({std::move(*name), std::nullopt});
    if ((*capacity)->is_null()) continue;
    const auto bytes = target.Number("capacity", 0, UINT64_MAX);
    if (!bytes) {
      return target.Refuse("capacity", "neither null (unbounded) nor a whole number of bytes");
    }
    targets.back().capacity = base::Bytes(*bytes);
  }
  return targets;
}

base::Result<std::vector<std::uint8_t>> ParseOwners(const JsonFields& fields,
                                                    const ModelShape& shape,
                                                    std::size_t num_targets) {
  const auto array = fields.Array("owners", shape.layers.size(), shape.layers.size());
  if (!array) return std::unexpected(array.error());
  std::vector<std::uint8_t> owners;
  owners.reserve(shape.num_units());
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const auto* runs = (**array)[layer].get_ptr<const std::string*>();
    const std::string problem =
        runs ? ParseRuns(*runs, shape.num_experts, num_targets, owners) : "not text";
    if (!problem.empty()) return fields.Refuse(std::format("owners[{}]", layer), problem);
  }
  return owners;
}

}  // namespace

std::string PrintPlanFile(const ExpertSplitPlan& plan) {
  ordered_json targets = ordered_json::array();
  for (const PlanTarget& target : plan.targets()) {
    ordered_json capacity;
    if (target.capacity) capacity = target.capacity->count();
    targets.push_back({{"name", target.name}, {"capacity", capacity}});
  }
  ordered_json owners = ordered_json::array();
  for (std::size_t layer = 0; layer < plan.num_layers(); ++layer) {
    owners.push_back(
        PrintRuns(plan.owners().subspan(layer * plan.num_experts(), plan.num_experts())));
  }
  return PrintJsonFile({{"format", kPlanFileFormat},
                        {"version", kPlanFileVersion},
                        {"model", IdentityToJson(plan.model())},
                        {"targets", targets},
                        {"owners", owners},
                        {"fingerprint", plan.FingerprintText()}});
}

base::Result<void> WritePlanFile(const ExpertSplitPlan& plan, const std::string& path) {
  return base::WriteFileAtomically(path, PrintPlanFile(plan));
}

base::Result<ExpertSplitPlan> ParsePlanFile(std::string_view text, const std::string& path,
                                            const ModelShape& shape, const Hotness& hotness) {
  const JsonFields::Source source = PlanSource(path);
  auto document = ParseJsonFile(text, kPlanFileFormat, kPlanFileVersion, source);
  if (!document) return Forward(document);
  const JsonFields fields(source, *document);

  const auto model = fields.Object("model");
  if (!model) return std::unexpected(model.error());
  const auto identity = IdentityFromJson(*model);
  if (!identity) return std::unexpected(identity.error());
  if (*identity != AsWritten(shape.identity)) {
    return fields.Refuse(
        "model", std::format("the plan is for {}, the model is {}", DescribeIdentity(*identity),
                             DescribeIdentity(shape.identity)));
  }
  auto targets = ParseTargets(fields, source);
  if (!targets) return Forward(targets);
  auto owners = ParseOwners(fields, shape, targets->size());
  if (!owners) return Forward(owners);
  const auto fingerprint = fields.Hash("fingerprint");
  if (!fingerprint) return std::unexpected(fingerprint.error());

  auto plan = ExpertSplitPlan::FromOwners(shape, hotness, std::move(*targets), std::move(*owners));
  if (!plan) return fields.Refuse("owners", plan.error().message);
  if (plan->fingerprint() != *fingerprint) {
    return fields.Refuse("fingerprint", std::format("{:016x} is stated, but the plan's is {}",
                                                    *fingerprint, plan->FingerprintText()));
  }
  return plan;
}

base::Result<ExpertSplitPlan> ReadPlanFile(const std::string& path, const ModelShape& shape,
                                           const Hotness& hotness) {
  const auto text = ReadJsonFile(PlanSource(path));
  if (!text) return std::unexpected(text.error());
  return ParsePlanFile(*text, path, shape, hotness);
}

}  // namespace moe
