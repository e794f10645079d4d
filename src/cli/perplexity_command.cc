// expert-split perplexity: how well the model predicts a text.
#include <format>

#include "base/file.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/perplexity.h"

namespace cli {
namespace {

constexpr base::Bytes kMaxText = base::Bytes::GiB(1);

struct PerplexityOptions {
  ModelOptions model;
  PlacementOptions placement;
  std::uint32_t threads = 0;
  std::string text;
  bool json = false;
};

base::Result<void> RunPerplexity(const Session& session, const PerplexityOptions& options) {
  auto text = base::ReadFile(options.text, kMaxText);
  if (!text) {
    return base::Fail(base::ErrorKind::kInvalidInput, "--text: {}", text.error().message);
  }
  GracefulInterrupt interrupt;
  auto placement = PlaceModel(session, options.model, options.placement);
  if (!placement) return base::Forward(placement);
  auto model = LoadedModel::Load(session, std::move(*placement), options.model, options.placement,
                                 options.threads, interrupt.token());
  if (!model) return base::Forward(model);
  auto tokens = (*model)->vocabulary().Tokenize(*text, /*add_special=*/true);
  if (!tokens) return base::Forward(tokens);

  ProgressLine progress;
  auto measured = engine::MeasurePerplexity(
      (*model)->backend(), (*model)->vocabulary(),
      {.tokens = std::move(*tokens),
       .chunk_tokens = options.placement.context,
       .batch_rows = options.placement.batch_rows},
      [&](std::size_t done, std::size_t total, const engine::Perplexity& so_far) {
        progress.Show(std::format("chunk {} of {}: perplexity {:.4f}", done, total, so_far.ppl));
      },
      interrupt.token());
  progress.Clear();
  if (!measured) return base::Forward(measured);
  if (options.json) {
    return PrintJson({{"ppl", measured->ppl},
                      {"nll", measured->nll},
                      {"tokens", measured->tokens},
                      {"path", moe::PlacementPathName((*model)->path())},
                      {"summary", (*model)->plan()->Summary()},
                      {"targets", UseJson((*model)->Use())}});
  }
  return PrintText(std::format("perplexity {:.4f} (nll {:.5f}, {} tokens scored)\n", measured->ppl,
                               measured->nll, measured->tokens));
}

}  // namespace

Command AddPerplexityCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("perplexity", "Measure how well a model predicts a text");
  auto options = std::make_shared<PerplexityOptions>();
  options->placement.context = 512;
  AddModelOptions(*app, options->model);
  app->add_option("--text", options->text, "the text to score")->type_name("FILE")->required();
  AddPlacementOptions(*app, options->placement);
  AddRunOptions(*app, options->threads, options->placement);
  AddJsonOption(*app, options->json);
  app->footer(
      "The text is cut into chunks of --ctx tokens; the second half of each is scored.\n\n"
      "Example:\n"
      "  expert-split perplexity --model M.gguf --text book.txt --targets vulkan:0=2GiB,cpu");
  return {app, [options](const Session& session) { return RunPerplexity(session, *options); }};
}

}  // namespace cli
