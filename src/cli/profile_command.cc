// expert-split profile: records, merges and shows routing profiles.
#include <charconv>
#include <cmath>
#include <filesystem>
#include <format>
#include <utility>

#include "base/file.h"
#include "base/quote.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/profile_report.h"
#include "cli/progress.h"
#include "engine/reading.h"
#include "gg/gguf_file.h"
#include "model/registry.h"
#include "moe/profile/profile.h"
#include "moe/profile/profile_file.h"

namespace cli {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr base::Bytes kMaxText = base::Bytes::GiB(1);

struct ProfileOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::uint32_t threads = 0;
  std::vector<std::string> texts;
  std::vector<std::string> merge;
  std::string show;
  std::string out;
  bool json = false;
};

base::Result<std::string> ReadText(const std::string& path) {
  auto text = base::ReadFile(path, kMaxText);
  // A file named on the command line is a part of the command line.
  if (!text) return Fail(ErrorKind::kInvalidInput, "--text: {}", text.error().message);
  if (text->empty()) {
    return Fail(ErrorKind::kInvalidInput, "--text: '{}' is empty; give a file with text", path);
  }
  if (const auto at = base::FindNonUtf8(*text)) {
    return Fail(ErrorKind::kInvalidInput,
                "--text: '{}' is not UTF-8 text: byte {} is {}; convert it first", path, *at,
                base::Quote(std::string_view(*text).substr(*at, 1)));
  }
  return text;
}

// The files' names without their folders.
std::string TextName(const std::vector<std::string>& paths) {
  std::string name;
  for (const std::string& path : paths) {
    name += (name.empty() ? "" : " + ") + std::filesystem::path(path).filename().string();
  }
  return name;
}

base::Result<void> Print(const ProfileOptions& options, const moe::RoutingProfile& profile) {
  return options.json ? PrintJson(ProfileJson(profile)) : PrintText(ProfileTable(profile));
}

base::Result<void> WriteAndPrint(const Session& session, const ProfileOptions& options,
                                 const moe::RoutingProfile& profile) {
  if (auto written = WriteProfile(session, profile, options.out); !written) return written;
  return Print(options, profile);
}

base::Result<void> Record(const Session& session, const ProfileOptions& options) {
  std::vector<std::string> texts;
  for (const std::string& path : options.texts) {
    auto text = ReadText(path);
    if (!text) return Forward(text);
    texts.push_back(*std::move(text));
  }
  if (auto writable = base::CheckWritable(options.out); !writable) return writable;
  GracefulInterrupt interrupt;
  auto placement = PlaceModel(session, options.model, options.placement);
  if (!placement) return base::Forward(placement);
  auto model = LoadedModel::Load(session, std::move(*placement), options.model, options.placement,
                                 options.threads, interrupt.token());
  if (!model) return base::Forward(model);

  moe::RoutingRecorder recorder((*model)->identity(), TextName(options.texts));
  (*model)->RecordRouting(&recorder);
  ProgressLine progress;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto tokens = (*model)->vocabulary().Tokenize(texts[i], /*add_special=*/true);
    if (!tokens) return base::Forward(tokens);
    auto read = engine::ReadTokens((*model)->backend(),
                                   {.tokens = *tokens,
                                    .chunk_tokens = options.placement.context,
                                    .batch_rows = options.placement.batch_rows},
                                   [&](std::size_t done, std::size_t total) {
                                     progress.Show(std::format("text {} of {}: {} of {} tokens",
                                                               i + 1, texts.size(), done, total));
                                   },
                                   interrupt.token());
    if (!read) return read;
  }
  progress.Clear();
  (*model)->RecordRouting(nullptr);
  return WriteAndPrint(session, options, recorder.Snapshot());
}

struct MergeItem {
  std::string path;
  double weight = 1;
};

// "FILE:WEIGHT" or "FILE".
base::Result<MergeItem> ParseMergeItem(const std::string& item) {
  const std::size_t colon = item.rfind(':');
  const std::string_view text =
      colon == std::string::npos ? std::string_view() : std::string_view(item).substr(colon + 1);
  if (colon == std::string::npos || text.contains('/')) return MergeItem{item};
  MergeItem parsed{item.substr(0, colon)};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed.weight);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && std::isfinite(parsed.weight) && parsed.weight > 0) return parsed;
  if (!is_number && std::filesystem::exists(item)) return MergeItem{item};
  return Fail(
      ErrorKind::kInvalidInput,
      "--merge: {} has the weight {}, which is not a number above 0; write FILE:WEIGHT, for "
      "example {}:0.5",
      base::Quote(item), base::Quote(text), item.substr(0, colon));
}

base::Result<void> Merge(const Session& session, const ProfileOptions& options) {
  std::vector<MergeItem> items;
  for (const std::string& text : options.merge) {
    auto item = ParseMergeItem(text);
    if (!item) return base::Forward(item);
    items.push_back(*std::move(item));
  }
  if (auto writable = base::CheckWritable(options.out); !writable) return writable;
  std::vector<moe::RoutingProfile> profiles;
  for (const MergeItem& item : items) {
    auto profile = profiles.empty() ? moe::ReadProfileFile(item.path)
                                    : ReadProfile(session, item.path, profiles.front().model());
    if (!profile) return base::Forward(profile);
    profiles.push_back(*std::move(profile));
  }
  std::vector<moe::WeightedProfile> weighted;
  for (std::size_t i = 0; i < items.size(); ++i) {
    weighted.push_back({&profiles[i], items[i].weight});
  }
  auto merged = moe::MergeProfiles(weighted);
  if (!merged) return base::Forward(merged);
  return WriteAndPrint(session, options, *merged);
}

base::Result<void> Show(const Session& session, const ProfileOptions& options) {
  auto profile = moe::ReadProfileFile(options.show);
  if (!profile) return base::Forward(profile);
  if (!options.model.model.empty()) {
    auto file = gg::GgufFile::Open(options.model.model);
    if (!file) return base::Forward(file);
    auto description = model::DescribeModel(*file);
    if (!description) return base::Forward(description);
    auto checked = ReadProfile(session, options.show, description->shape.identity);
    if (!checked) return base::Forward(checked);
  }
  return Print(options, *profile);
}

base::Result<void> RunProfile(const Session& session, const ProfileOptions& options) {
  if (!options.show.empty()) return Show(session, options);
  return options.merge.empty() ? Record(session, options) : Merge(session, options);
}

}  // namespace

Command AddProfileCommand(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("profile", "Record, merge or show how a model's traffic is routed");
  auto options = std::make_shared<ProfileOptions>();
  options->placement.context = 512;
  AddModelOptions(*app, options->model);
  CLI::Option* model = app->get_option("--model")->required(false);
  CLI::Option* out = app->add_option("--out,-o", options->out, "write the profile to this file")
                         ->type_name("FILE");
  auto* what = app->add_option_group("what");
  what->add_option("--text", options->texts, "run these texts through the model and count")
      ->type_name("FILE...")
      ->needs(model)
      ->needs(out);
  what->add_option("--merge", options->merge,
                   "add up these profiles; weight 2 counts as if a text had been read twice")
      ->type_name("FILE[:WEIGHT]...")
      ->needs(out);
  what->add_option("--show", options->show,
                   "show a profile beside what a uniform router would show after as many tokens; "
                   "with --model, refuse one of another model")
      ->type_name("FILE")
      ->excludes(out);
  what->require_option(1);
  AddPlacementOptions(*app, options->placement);
  AddRunOptions(*app, options->threads, options->placement);
  AddJsonOption(*app, options->json);
  app->footer(
      "A profile says which experts are hot: give it to plan, run and the other commands as\n"
      "--profile. Each text is cut into chunks of --ctx tokens. Ctrl-C writes nothing.\n\n"
      "Examples:\n"
      "  expert-split profile --model M.gguf --text book.txt letters.txt --out prose.json\n"
      "  expert-split profile --merge prose.json:1.0 code.json:0.5 --out both.json\n"
      "  expert-split profile --show both.json");
  return {app, [options](const Session& session) { return RunProfile(session, *options); }};
}

}  // namespace cli
