// expert-split run: one completion.
#include <cstdio>
#include <filesystem>
#include <format>
#include <optional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/profile_report.h"
#include "cli/progress.h"
#include "cli/sampling_options.h"
#include "engine/completion.h"

namespace cli {
namespace {

constexpr base::Bytes kMaxPromptFile = base::Bytes::MiB(256);

struct RunCommandOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::uint32_t threads = 0;
  std::string prompt;
  std::string prompt_file;
  std::size_t num_tokens = 128;
  bool ignore_eos = false;
  std::string record;
  SamplingOptions sampling;
  bool json = false;
};

base::Result<std::string> PromptText(const RunCommandOptions& options) {
  if (options.prompt_file.empty()) return options.prompt;
  auto text = base::ReadFile(options.prompt_file, kMaxPromptFile);
  // A file named on the command line is a part of the command line.
  if (!text)
    return base::Fail(base::ErrorKind::kInvalidInput, "--prompt-file: {}", text.error().message);
  return text;
}

// What a recorded profile says of its text.
std::string PromptName(const RunCommandOptions& options) {
  if (options.prompt_file.empty()) return "a prompt and its completion";
  return std::filesystem::path(options.prompt_file).filename().string() + " and its completion";
}

Json RunJson(const LoadedModel& model, const engine::Completion& completion,
             std::size_t prompt_tokens, std::uint64_t graphs_built) {
  const engine::CompletionTimings& timings = completion.timings;
  return {{"text", completion.text},
          {"tokens", completion.tokens},
          {"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion.tokens.size()},
          {"timings",
           {{"load_ms", model.load_ms()},
            {"prompt_ms", timings.prompt_ms},
            {"decode_ms", timings.decode_ms},
            {"prompt_tok_s", timings.prompt_tokens_per_second},
            {"decode_tok_s", timings.decode_tokens_per_second}}},
          {"path", moe::PlacementPathName(model.path())},
          {"fingerprint", model.plan()->FingerprintText()},
          {"summary", model.plan()->Summary()},
          {"lost", model.Lost()},
          {"graphs_built", graphs_built},
          {"targets", UseJson(model.Use())}};
}

void LogUse(const Session& session, const LoadedModel& model, const engine::Completion& completion,
            std::size_t prompt_tokens) {
  const engine::CompletionTimings& timings = completion.timings;
  session.log.Info(
      "load {:.0f} ms; prompt {} tokens, {:.1f} tokens/s; {} tokens generated, {:.1f} "
      "tokens/s",
      model.load_ms(), prompt_tokens, timings.prompt_tokens_per_second, completion.tokens.size(),
      timings.decode_tokens_per_second);
  const std::string table = UseTable(model.Use());
  std::fputs(table.c_str(), stderr);
}

base::Result<void> Run(const Session& session, RunCommandOptions& options) {
  auto text = PromptText(options);
  if (!text) return base::Forward(text);
  // What the command line alone can tell comes before any work.
  auto sampling = ReadSettings(options.sampling);
  if (!sampling) return base::Forward(sampling);
  if (!options.record.empty()) {
    if (auto writable = base::CheckWritable(options.record); !writable) return writable;
  }
  GracefulInterrupt interrupt;
  auto placement = PlaceModel(session, options.model, options.placement);
  if (!placement) return base::Forward(placement);
  auto model = LoadedModel::Load(session, std::move(*placement), options.model, options.placement,
                                 options.threads, interrupt.token());
  if (!model) return base::Forward(model);
  auto prompt = (*model)->vocabulary().Tokenize(*text, /*add_special=*/true);
  if (!prompt) return base::Forward(prompt);
  const std::size_t prompt_tokens = prompt->size();

  std::optional<moe::RoutingRecorder> recorder;
  if (!options.record.empty()) {
    recorder.emplace((*model)->identity(), PromptName(options));
    (*model)->RecordRouting(&*recorder);
  }
  ProgressLine progress;
  engine::CompletionObserver observer;
  observer.prompt_progress = [&](std::size_t done, std::size_t total) {
    progress.Show(std::format("prompt: {} of {} tokens", done, total));
    if (done == total) progress.Clear();
  };
  bool began = false;
  if (!options.json) {
    observer.token = [&began](std::string_view piece) {
      began = true;
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
  }
  auto completion = engine::Complete((*model)->backend(), (*model)->vocabulary(),
                                     {.prompt = std::move(*prompt),
                                      .max_tokens = options.num_tokens,
                                      .ignore_end = options.ignore_eos,
                                      .batch_rows = options.placement.batch_rows,
                                      .sampling = *std::move(sampling)},
                                     observer, interrupt.token());
  progress.Clear();
  if (!completion) {
    if (began) static_cast<void>(PrintText("\n"));
    return base::Forward(completion);
  }
  const auto record = [&]() -> base::Result<void> {
    return recorder ? WriteProfile(session, recorder->Snapshot(), options.record)
                    : base::Result<void>();
  };
  if (options.json) {
    if (auto recorded = record(); !recorded) return recorded;
    return PrintJson(
        RunJson(**model, *completion, prompt_tokens, (*model)->backend().graphs_built()));
  }
  if (auto printed = PrintText("\n"); !printed) return printed;
  LogUse(session, **model, *completion, prompt_tokens);
  return record();
}

}  // namespace

Command AddRunCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("run", "Complete one prompt");
  auto options = std::make_shared<RunCommandOptions>();
  AddModelOptions(*app, options->model);
  auto* prompt = app->add_option_group("prompt");
  prompt->add_option("--prompt,-p", options->prompt,
                     "raw text: special tokens are parsed, no chat template is applied");
  prompt->add_option("--prompt-file,-f", options->prompt_file, "read the prompt from this file")
      ->type_name("FILE");
  prompt->require_option(1);
  app->add_option("-n", options->num_tokens, "tokens to generate at most")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_flag("--ignore-eos", options->ignore_eos, "go on past the end of generation");
  app->add_option("--record", options->record,
                  "write how the traffic of prompt and text was routed to this file, as `profile` "
                  "does")
      ->type_name("FILE");
  AddSamplingOptions(*app, options->sampling);
  AddPlacementOptions(*app, options->placement);
  AddRunOptions(*app, options->threads, options->placement);
  AddJsonOption(*app, options->json);
  app->footer(
      "The text goes to stdout, everything else to stderr. Ctrl-C ends between two tokens.\n\n"
      "Examples:\n"
      "  expert-split run --model M.gguf --prompt 'Once upon a time' -n 64\n"
      "  expert-split run --model M.gguf --targets cuda:0=20GiB,vulkan:1,cpu -f prompt.txt --temp "
      "0\n"
      "  expert-split run --model M.gguf --plan plan.json --targets cuda:0=20GiB,cpu -p Hi --json");
  return {app, [options](const Session& session) { return Run(session, *options); }};
}

}  // namespace cli
