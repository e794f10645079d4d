#include "moe/profile/profile_file.h"

#include <format>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/file.h"
#include "moe/plan/json_fields.h"

namespace moe {

using base::Forward;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

JsonFields::Source ProfileSource(const std::string& path) {
  return {"profile", path, "record it again with `expert-split profile`"};
}

base::Result<std::vector<std::vector<std::uint64_t>>> ParseCounts(const JsonFields& fields,
                                                                  const ModelIdentity& model) {
  const auto array = fields.Array("counts", model.num_layers, model.num_layers);
  if (!array) return std::unexpected(array.error());
  std::vector<std::vector<std::uint64_t>> counts;
  for (const json& layer : **array) {
    const std::string field = std::format("counts[{}]", counts.size());
    if (!layer.is_array() || layer.size() != model.num_experts) {
      return fields.Refuse(field, std::format("not an array of {} counts", model.num_experts));
    }
    counts.emplace_back();
    for (const json& element : layer) {
      const auto* count = element.get_ptr<const std::uint64_t*>();
      if (count == nullptr) {
        return fields.Refuse(std::format("{}[{}]", field, counts.back().size()),
                             "not a whole number from 0");
      }
      counts.back().push_back(*count);
    }
  }
  return counts;
}

}  // namespace

std::string PrintProfileFile(const RoutingProfile& profile) {
  return PrintJsonFile({{"format", kProfileFileFormat},
                        {"version", kProfileFileVersion},
                        {"model", IdentityToJson(profile.model())},
                        {"text", profile.text()},
                        {"num_tokens", profile.num_tokens()},
                        {"counts", profile.counts()}});
}

base::Result<void> WriteProfileFile(const RoutingProfile& profile, const std::string& path) {
  return base::WriteFileAtomically(path, PrintProfileFile(profile));
}

base::Result<RoutingProfile> ParseProfileFile(std::string_view text, const std::string& path) {
  const JsonFields::Source source = ProfileSource(path);
  auto document = ParseJsonFile(text, kProfileFileFormat, kProfileFileVersion, source);
  if (!document) return Forward(document);
  const JsonFields fields(source, *document);

  const auto model = fields.Object("model");
  if (!model) return std::unexpected(model.error());
  auto identity = IdentityFromJson(*model);
  if (!identity) return Forward(identity);
  if (std::uint64_t{identity->num_layers} * identity->num_experts > kMaxProfileUnits) {
    return model->Refuse(
        "num_experts", std::format("{} layers x {} experts are more than {} units",
                                   identity->num_layers, identity->num_experts, kMaxProfileUnits));
  }
  auto name = fields.Text("text");
  if (!name) return Forward(name);
  const auto num_tokens = fields.Number("num_tokens", 1, RoutingProfile::kMaxCount);
  if (!num_tokens) return std::unexpected(num_tokens.error());
  auto counts = ParseCounts(fields, *identity);
  if (!counts) return Forward(counts);
  auto profile = RoutingProfile::FromCounts(std::move(*identity), std::move(*name), *num_tokens,
                                            std::move(*counts));
  if (!profile) return fields.Refuse("counts", profile.error().message);
  return profile;
}

base::Result<RoutingProfile> ReadProfileFile(const std::string& path) {
  const auto text = ReadJsonFile(ProfileSource(path));
  if (!text) return std::unexpected(text.error());
  return ParseProfileFile(*text, path);
}

}  // namespace moe
