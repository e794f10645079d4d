// expert-split serve: the HTTP server.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/quote.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/output.h"
#include "cli/placement_report.h"
#include "cli/profile_report.h"
#include "engine/engine.h"
#include "engine/grammar/schema_grammar.h"
#include "model/text/chat_template.h"
#include "moe/profile/routing_recorder.h"
#include "moe/rebalance/rebalancer.h"
#include "moe/target/target_config.h"
#include "server/http/server.h"

namespace cli {
namespace {

constexpr base::Bytes kMaxTemplate = base::Bytes::MiB(4);

struct ServeCommandOptions {
  ModelOptions model;
  PlacementOptions placement{.parallel = 4};
  std::uint32_t threads = 0;
  server::ServerOptions server;
  std::string alias;
  std::string chat_template;
  std::string api_key_file;
  std::string record;
  std::string rebalance = "off";
  std::string rebalance_budget = "128MiB";  // a second
  base::Bytes rebalance_bytes;              // the same as a number
  std::size_t queue = 64;
  std::size_t prompt_chunk = 128;
  std::uint64_t checkpoint_mib = 1024;
  unsigned drain_seconds = 30;
};

bool IsLoopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

// What the command line alone can tell, before any work.
base::Result<void> ReadFiles(ServeCommandOptions& options, std::string& template_text) {
  const auto read = [](const char* option, const std::string& path) -> base::Result<std::string> {
    auto text = base::ReadFile(path, kMaxTemplate);
    if (!text) {
      return base::Fail(base::ErrorKind::kInvalidInput, "{}: {}", option, text.error().message);
    }
    return text;
  };
  if (!options.chat_template.empty()) {
    auto text = read("--chat-template", options.chat_template);
    if (!text) return base::Forward(text);
    template_text = std::move(*text);
    // Its fault is one of the command line.
    if (auto parsed = model::ChatTemplate::Make(template_text, "", ""); !parsed) {
      return base::Fail(base::ErrorKind::kInvalidInput, "--chat-template {}: {}",
                        base::Quote(options.chat_template), parsed.error().message);
    }
  }
  if (!options.api_key_file.empty()) {
    auto key = read("--api-key-file", options.api_key_file);
    if (!key) return base::Forward(key);
    key->erase(key->find_last_not_of(" \t\r\n") + 1);
    if (key->empty()) {
      return base::Fail(base::ErrorKind::kInvalidInput,
                        "--api-key-file {} is empty; write a key into it",
                        base::Quote(options.api_key_file));
    }
    options.server.api_key = std::move(*key);
  }
  return {};
}

// --rebalance and what goes with it.
base::Result<void> CheckRebalance(ServeCommandOptions& options) {
  std::string_view text = options.rebalance_budget;
  if (text.ends_with("/s")) text.remove_suffix(2);
  const auto budget = moe::ParseSize(text);
  if (!budget) {
    return base::Fail(base::ErrorKind::kInvalidInput, "--rebalance-budget: {}",
                      budget.error().message);
  }
  if (*budget == base::Bytes()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "--rebalance-budget {} moves nothing; use --rebalance off for that",
                      base::Quote(options.rebalance_budget));
  }
  options.rebalance_bytes = *budget;
  if (options.rebalance == "off") return {};
  if (options.placement.policy == "layers") {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "--rebalance auto moves single experts, and --policy layers keeps layers "
                      "whole; use --policy ordered or balanced");
  }
  options.placement.movable = true;
  // By the same measure that the plan is made by.
  options.placement.costs = options.placement.policy == "balanced";
  return {};
}

// Nothing when experts shall stay where they are, or must.
std::unique_ptr<moe::Rebalancer> StartRebalancer(const Session& session,
                                                 const ServeCommandOptions& options,
                                                 const LoadedModel& model,
                                                 const moe::RoutingRecorder& recorder) {
  if (options.rebalance == "off") return nullptr;
  std::size_t movable = 0;
  if (model.mover() != nullptr) {
    for (const moe::Movable target : model.mover()->units().targets) {
      movable += target != moe::Movable::kNo ? 1 : 0;
    }
  }
  if (movable < 2) {
    session.log.Warning(
        "--rebalance auto: nothing can move, because experts move between this process's CPU, its "
        "devices and workers, and the CPU or all others own none");
    return nullptr;
  }
  return std::make_unique<moe::Rebalancer>(
      moe::RebalancerOptions{.shape = &model.shape(),
                             .routed = &recorder,
                             .mover = model.mover(),
                             .costs = model.costs(),
                             .rules = {},
                             .bytes_per_second = options.rebalance_bytes,
                             .log = session.log});
}

// The model's own template unless another was given.
base::Result<model::ChatTemplate> MakeTemplate(const Session& session, const LoadedModel& model,
                                               std::string given) {
  const model::Vocabulary& vocabulary = model.vocabulary();
  const std::string start =
      vocabulary.start_token() >= 0 ? vocabulary.Piece(vocabulary.start_token()) : "";
  const auto end_id = model.file().Uint32("tokenizer.ggml.eos_token_id");
  const std::string end = end_id ? vocabulary.Piece(static_cast<model::Token>(*end_id)) : "";
  if (!given.empty()) return model::ChatTemplate::Make(std::move(given), start, end);
  auto own = model.file().String("tokenizer.chat_template");
  if (!own) {
    session.log.Info("the model has no chat template; using ChatML");
    return model::ChatTemplate::Make("", start, end);
  }
  auto made = model::ChatTemplate::Make(*own, start, end);
  if (made) return made;
  session.log.Warning("{}; using ChatML", made.error().message);
  return model::ChatTemplate::Make("", start, end);
}

// Computes one token, so that a server that says it is ready has computed.
base::Result<void> WarmUp(LoadedModel& model, std::stop_token stop) {
  const model::BatchRow row{.token = std::max(model.vocabulary().start_token(), 0),
                            .wants_logits = true};
  auto logits = model.backend().Evaluate({&row, 1}, std::move(stop));
  if (!logits) return base::Forward(logits);
  if (std::ranges::any_of(*logits, [](float logit) { return std::isnan(logit); })) {
    return base::Fail(base::ErrorKind::kDeviceFailure,
                      "the first token's logits are not numbers; the model file is damaged, or a "
                      "device computes wrong numbers: try --targets cpu");
  }
  model.backend().ClearSlot(0);
  return {};
}

void WaitForStop(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait(lock, stop, [] { return false; });
}

std::string ServedName(const ServeCommandOptions& options) {
  if (!options.alias.empty()) return options.alias;
  const std::string stem = std::filesystem::path(options.model.model).stem().string();
  // Of a split model only the first shard has a number that says nothing.
  constexpr std::string_view kFirstShard = "-00001-of-";
  return stem.substr(0, stem.rfind(kFirstShard));
}

void WarnWhenOpen(const Session& session, const server::ServerOptions& options) {
  if (IsLoopback(options.host)) return;
  if (options.api_key.empty()) {
    session.log.Warning(
        "listening on {} without --api-key: everybody who reaches this machine can use the model",
        options.host);
  } else {
    session.log.Warning("listening on {}: requests and keys travel unencrypted", options.host);
  }
}

// The profile of --record. Nothing is written when nothing was routed.
base::Result<void> WriteRecord(const Session& session, const ServeCommandOptions& options,
                               const moe::RoutingRecorder& recorder) {
  if (options.record.empty()) return {};
  const moe::RoutingProfile profile = recorder.Snapshot();
  if (profile.num_tokens() > 0) return WriteProfile(session, profile, options.record);
  session.log.Warning("no token was computed, so {} is not written", base::Quote(options.record));
  return {};
}

// Serves until it is asked to end, then lets running requests end.
void ServeUntilStopped(const Session& session, const ServeCommandOptions& options,
                       server::Server& server, const std::string& name, const LoadedModel& model,
                       const std::stop_token& stop) {
  session.log.Info("serving {} on {}, {} at a time, {} tokens each", base::Quote(name),
                   server.address(), options.placement.parallel, options.placement.context);
  WaitForStop(stop);
  session.log.Info("ending: waiting up to {} s for running requests; Ctrl-C ends at once",
                   options.drain_seconds);
  if (!server.Drain(std::chrono::seconds(options.drain_seconds))) {
    session.log.Warning("requests that still ran were cut off");
  }
  const std::string table = UseTable(model.Use());
  std::fputs(table.c_str(), stderr);
}

// From a loaded model to the end of service.
base::Result<void> ServeModel(const Session& session, const ServeCommandOptions& options,
                              std::string template_text, LoadedModel& model,
                              std::unique_ptr<server::Server> server, const std::stop_token& stop) {
  auto chat = MakeTemplate(session, model, std::move(template_text));
  if (!chat) return base::Forward(chat);
  server->SetLoading("computing a first token");
  if (auto warm = WarmUp(model, stop); !warm) return warm;
  const std::string name = ServedName(options);
  moe::RoutingRecorder recorder(model.identity(), "requests to " + name);
  model.RecordRouting(&recorder);
  const auto rebalancer = StartRebalancer(session, options, model, recorder);
  auto engine = engine::Engine::Start(
      model.backend(), model.vocabulary(),
      {.queue_limit = options.queue,
       .batch_rows = options.placement.batch_rows,
       .mixed_batch_rows = options.prompt_chunk,
       .checkpoint_budget = base::Bytes::MiB(options.checkpoint_mib),
       .log = session.log,
       .between_steps =
           [&] {
             model.Settle(session);
             if (rebalancer != nullptr) rebalancer->Step();
           },
       // Experts arrive in pieces.
       .between_period = std::chrono::milliseconds(rebalancer != nullptr ? 10 : 1000)});
  server->Serve({.name = name,
                 .engine = engine.get(),
                 .vocabulary = &model.vocabulary(),
                 .chat = &*chat,
                 .placement = [&] { return ReportOf(model, recorder, rebalancer.get()); },
                 .schema_to_grammar = engine::SchemaGrammar});
  ServeUntilStopped(session, options, *server, name, model, stop);
  // The server before the engine, which it points to; the engine before what it computes with.
  server.reset();
  engine.reset();
  if (auto written = WriteRecord(session, options, recorder); !written) return written;
  return std::unexpected(Interrupted());
}

base::Result<void> LoadAndServe(const Session& session, const ServeCommandOptions& options,
                                std::string template_text, std::unique_ptr<server::Server> server,
                                const std::stop_token& stop) {
  server::Server* listening = server.get();
  listening->SetLoading("reading the model's directory");
  const Session telling{.log = session.log, .progress = [listening](std::string_view text) {
                          listening->SetLoading(std::string(text));
                        }};
  auto placement = PlaceModel(telling, options.model, options.placement);
  if (!placement) return base::Forward(placement);
  auto model = LoadedModel::Load(telling, std::move(*placement), options.model, options.placement,
                                 options.threads, stop);
  if (!model) return base::Forward(model);
  session.log.Info("loaded in {:.1f} s", (*model)->load_ms() / 1e3);
  return ServeModel(session, options, std::move(template_text), **model, std::move(server), stop);
}

base::Result<void> Serve(const Session& session, ServeCommandOptions& options) {
  std::string template_text;
  if (auto read = ReadFiles(options, template_text); !read) return read;
  if (auto checked = CheckRebalance(options); !checked) return checked;
  if (!options.record.empty()) {
    if (auto writable = base::CheckWritable(options.record); !writable) return writable;
  }
  const GracefulInterrupt interrupt(GracefulInterrupt::Signals::kInterruptAndTerminate);
  // Before the model, so that a port in use costs no loading and /health answers meanwhile.
  auto server = server::Server::Listen(options.server, session.log);
  if (!server) return base::Forward(server);
  WarnWhenOpen(session, options.server);
  auto served = LoadAndServe(session, options, std::move(template_text), std::move(*server),
                             interrupt.token());
  // Service managers end servers with SIGTERM: that is no failure.
  const bool asked_to_end = !served && served.error().kind == base::ErrorKind::kCancelled;
  if (asked_to_end && interrupt.terminated()) return {};
  return served;
}

void AddServerOptions(CLI::App& app, ServeCommandOptions& options) {
  app.add_option("--host", options.server.host, "address to listen on; 0.0.0.0 is every one")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--port", options.server.port, "port to listen on; 0 takes a free one")
      ->type_name("N")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  auto* key = app.add_option("--api-key", options.server.api_key,
                             "clients must send this key; others see it in the list of processes, "
                             "so prefer --api-key-file")
                  ->type_name("KEY");
  app.add_option("--api-key-file", options.api_key_file, "a file that holds the key")
      ->type_name("FILE")
      ->excludes(key);
  app.add_option("--cors", options.server.cors_origin,
                 "let web pages of this origin use the server; * for all (default: none)")
      ->type_name("ORIGIN");
  app.add_option("--alias", options.alias,
                 "what clients call the model (default: the file's name without .gguf)")
      ->type_name("NAME");
  app.add_option("--chat-template", options.chat_template,
                 "a Jinja template to use instead of the model's own")
      ->type_name("FILE");
  app.add_option("--queue", options.queue,
                 "requests that may wait for a sequence; more are sent away with status 429")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_option("--prompt-chunk", options.prompt_chunk,
                 "rows of a step in which somebody waits for the next token: smaller keeps streams "
                 "flowing while prompts are read, larger reads prompts faster")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--checkpoints", options.checkpoint_mib,
                 "MiB of memory for states of conversations to go back to; 0 keeps none")
      ->type_name("MIB")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option(
         "--record", options.record,
         "when the server ends, write how the traffic was routed to this file, as `profile` "
         "does")
      ->type_name("FILE");
  app.add_option(
         "--rebalance", options.rebalance,
         "auto: experts exchange their owners (this process's CPU, its devices and workers) "
         "while the server runs, so that the placement follows the traffic; off: they stay "
         "where the plan put them")
      ->type_name("off|auto")
      ->check(CLI::IsMember({"off", "auto"}).description(""))
      ->capture_default_str();
  app.add_option("--rebalance-budget", options.rebalance_budget,
                 "bytes of experts that may move in a second, as in 128MiB")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--drain", options.drain_seconds,
                 "seconds that running requests are given when the server is asked to end")
      ->type_name("N")
      ->check(CLI::Range(0, 24 * 3600))
      ->capture_default_str();
}

}  // namespace

Command AddServeCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("serve", "Serve a model over HTTP");
  auto options = std::make_shared<ServeCommandOptions>();
  AddModelOptions(*app, options->model);
  AddServerOptions(*app, *options);
  AddPlacementOptions(*app, options->placement);
  AddRunOptions(*app, options->threads, options->placement);
  app->footer(
      "Speaks OpenAI's and Anthropic's interfaces and has a page to chat and to watch the\n"
      "placement; docs/http_api.md lists the routes. SIGTERM or Ctrl-C lets running requests end;\n"
      "a second one ends at once.\n\n"
      "Examples:\n"
      "  expert-split serve --model M.gguf\n"
      "  expert-split serve --model M.gguf --targets cuda:0=20GiB,cpu --ctx 32768 --parallel 8\n"
      "  expert-split serve --model M.gguf --targets cuda:0,cpu --profile P.json --rebalance auto\n"
      "  expert-split serve --model M.gguf --host 0.0.0.0 --api-key-file key.txt");
  return {app, [options](const Session& session) { return Serve(session, *options); }};
}

}  // namespace cli
