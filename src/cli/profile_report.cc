#include "cli/profile_report.h"

#include <format>
#include <vector>

#include "base/quote.h"
#include "moe/plan/json_fields.h"
#include "moe/profile/profile_file.h"
#include "moe/profile/routing_report.h"

namespace cli {
namespace {

constexpr const char* kNothingBeyond =
    "it says nothing that a uniform router does not show after as many tokens; record a longer "
    "text";

Json LayerJson(const moe::LayerRouting& layer) {
  Json hottest = Json::array();
  for (const moe::HotShare& hot : layer.hottest) {
    hottest.push_back({{"fraction", hot.fraction},
                       {"experts", hot.num_experts},
                       {"share", hot.share},
                       {"uniform_share", hot.uniform_share}});
  }
  return {{"hottest", std::move(hottest)},
          {"entropy", layer.entropy},
          {"uniform_entropy", layer.uniform_entropy},
          {"beyond_uniform", layer.beyond_uniform}};
}

std::vector<std::string> LayerRow(std::string name, const moe::LayerRouting& layer) {
  std::vector<std::string> row = {std::move(name)};
  for (const moe::HotShare& hot : layer.hottest) {
    row.push_back(std::format("{:.1f} %", 100 * hot.share));
    row.push_back(std::format("{:.1f} %", 100 * hot.uniform_share));
  }
  row.push_back(std::format("{:.3f}", layer.entropy));
  row.push_back(std::format("{:.3f}", layer.uniform_entropy));
  row.push_back(layer.beyond_uniform ? "" : "as uniform");
  return row;
}

}  // namespace

base::Result<moe::RoutingProfile> ReadProfile(const Session& session, const std::string& path,
                                              const moe::ModelIdentity& model) {
  auto profile = moe::ReadProfileFile(path);
  if (!profile) return profile;
  auto note = moe::CheckProfileModel(*profile, model);
  if (!note) {
    return base::Fail(note.error().kind, "profile '{}': {}", path, note.error().message);
  }
  if (!note->empty()) session.log.Info("{}", *note);
  return profile;
}

base::Result<void> WriteProfile(const Session& session, const moe::RoutingProfile& profile,
                                const std::string& path) {
  if (auto written = moe::WriteProfileFile(profile, path); !written) return written;
  session.log.Info("wrote {}: the routing of {} tokens", path, profile.num_tokens());
  return {};
}

void LogGain(const Session& session, const moe::RoutingProfile& profile) {
  const moe::LayerRouting mean = moe::ReportRouting(profile).mean;
  const moe::HotShare& quarter = mean.hottest[1];
  session.log.Info(
      "profile '{}', {} tokens: the hottest {:.0f} % of each layer's experts draw {:.0f} % of the "
      "traffic; a uniform router would show {:.0f} %",
      profile.text(), profile.num_tokens(), 100 * quarter.fraction, 100 * quarter.share,
      100 * quarter.uniform_share);
  if (!mean.beyond_uniform) {
    session.log.Warning("profile '{}': {}", profile.text(), kNothingBeyond);
  }
}

Json ProfileJson(const moe::RoutingProfile& profile) {
  const moe::RoutingReport report = moe::ReportRouting(profile);
  Json layers = Json::array();
  for (const moe::LayerRouting& layer : report.layers) layers.push_back(LayerJson(layer));
  return {{"model", moe::IdentityToJson(profile.model())},
          {"text", profile.text()},
          {"tokens", profile.num_tokens()},
          {"beyond_uniform", report.mean.beyond_uniform},
          {"mean", LayerJson(report.mean)},
          {"layers", std::move(layers)}};
}

std::string ProfileTable(const moe::RoutingProfile& profile) {
  const moe::RoutingReport report = moe::ReportRouting(profile);
  std::vector<std::string> heading = {"LAYER"};
  for (const double fraction : moe::kHotFractions) {
    heading.push_back(std::format("HOTTEST {:.0f} %", 100 * fraction));
    heading.emplace_back("UNIFORM");
  }
  heading.insert(heading.end(), {"ENTROPY", "UNIFORM", ""});
  std::vector<std::vector<std::string>> rows = {heading};
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    rows.push_back(LayerRow(std::format("{}", i), report.layers[i]));
  }
  rows.push_back(LayerRow("mean", report.mean));
  std::string text = std::format("profile of {}: {} tokens, {}\n", base::Quote(profile.text()),
                                 profile.num_tokens(), moe::DescribeIdentity(profile.model()));
  text += FormatTable(rows, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  text +=
      "HOTTEST: the share of a layer's traffic that its hottest experts draw. ENTROPY: bits.\n"
      "UNIFORM: the same for a router without preference after as many tokens.\n";
  if (!report.mean.beyond_uniform) text += std::format("This is noise: {}.\n", kNothingBeyond);
  return text;
}

}  // namespace cli
