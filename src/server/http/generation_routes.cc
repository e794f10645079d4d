// Routes that generate: chat completions, completions, messages.
#include <algorithm>
#include <chrono>
#include <format>
#include <random>
#include <utility>

#include "base/quote.h"
#include "server/anthropic/request.h"
#include "server/anthropic/response.h"
#include "server/chat/prompt.h"
#include "server/http/generation_run.h"
#include "server/http/server_state.h"
#include "server/openai/request.h"
#include "server/openai/response.h"

namespace server {
namespace {

using httplib::Request;
using httplib::Response;

// How often a connection is looked at while nothing comes.
constexpr std::chrono::milliseconds kLook{20};
// How often a silent stream is given a comment, so that nobody between takes it for dead.
constexpr std::chrono::seconds kSilence{10};

// Everything that a request's answer is made of.
struct Work {
  GenerationOptions options;
  std::vector<engine::GenerationRequest> requests;  // [choices]
  ReplyOptions reply;
  std::unique_ptr<ReplyFormat> format;
  std::string param;          // the field that the prompt comes from
  std::string grammar_param;  // and the grammar, when there is one
  std::size_t prompt_tokens = 0;
};

std::int64_t SecondsSince1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::optional<ApiError> CheckModelName(const std::string& asked, const ServedModel& model) {
  if (asked.empty() || asked == model.name) return std::nullopt;
  return UnknownModel(asked, model.name);
}

// One request a choice; each with a seed of its own.
ApiResult<void> AddRequests(Work& work, const ServedModel& model, std::vector<model::Token> prompt,
                            std::vector<std::size_t> boundaries, const std::string& grammar) {
  const std::size_t context = model.engine->context_length();
  if (prompt.size() >= context) {
    ApiError error = BadRequest(work.param,
                                "the prompt has {} tokens, and the context holds {} with at least "
                                "one to generate; shorten the prompt or start the server with a "
                                "larger --ctx",
                                prompt.size(), context)
                         .error();
    error.code = "context_length_exceeded";
    return std::unexpected(std::move(error));
  }
  for (const model::LogitBias& bias : work.options.sampling.logit_bias) {
    if (static_cast<std::size_t>(bias.token) < model.vocabulary->size()) continue;
    return BadRequest("logit_bias", "'logit_bias' names token {}; the model has 0 to {}",
                      bias.token, model.vocabulary->size() - 1);
  }
  const std::size_t room = context - prompt.size();
  engine::GenerationRequest request{
      .prompt = std::move(prompt),
      .boundaries = std::move(boundaries),
      .max_tokens = std::min(work.options.max_tokens.value_or(room), room),
      .ignore_end = work.options.ignore_end,
      .sampling = work.options.sampling,
      .logprobs = work.options.logprobs,
      .top_logprobs = work.options.top_logprobs,
      .timeout = work.options.timeout};
  request.sampling.grammar = grammar;
  if (grammar.empty()) work.grammar_param.clear();
  const std::uint32_t seed =
      work.options.seed ? *work.options.seed : static_cast<std::uint32_t>(std::random_device{}());
  for (std::size_t i = 0; i < work.options.choices; ++i) {
    request.sampling.seed = seed + static_cast<std::uint32_t>(i);
    work.prompt_tokens += request.prompt.size();
    work.requests.push_back(request);
  }
  return {};
}

ReplyHead HeadOf(const Work& work, const ServedModel& model, std::string_view id_prefix) {
  return {.id = RandomId(id_prefix),
          .model = model.name,
          .created = SecondsSince1970(),
          .choices = work.requests.size(),
          .stream_usage = work.options.stream_usage,
          .prompt_tokens = work.prompt_tokens,
          .piece = [vocabulary = model.vocabulary](model::Token token) {
            return vocabulary->Piece(token);
          }};
}

ApiResult<Work> PrepareChat(const ChatRequest& chat, const ServedModel& model, bool anthropic) {
  if (auto error = CheckModelName(chat.options.model, model)) return std::unexpected(*error);
  auto grammar = MakeGrammar(chat, model.schema_to_grammar);
  if (!grammar) return std::unexpected(grammar.error());
  auto prompt = MakePrompt(chat, *model.chat, *model.vocabulary);
  if (!prompt) return std::unexpected(prompt.error());
  Work work{.options = chat.options, .param = "messages", .grammar_param = chat.format.param};
  work.reply = {.form = std::move(prompt->form),
                .stop = chat.options.stop,
                .logprobs = chat.options.logprobs};
  auto added =
      AddRequests(work, model, std::move(prompt->tokens), std::move(prompt->boundaries), *grammar);
  if (!added) return std::unexpected(added.error());
  if (anthropic) {
    work.format = anthropic::MakeMessagesFormat(HeadOf(work, model, "msg_"));
  } else {
    work.format = openai::MakeChatFormat(HeadOf(work, model, "chatcmpl-"), chat.options.logprobs);
  }
  return work;
}

ApiResult<Work> PrepareChatCompletion(const Json& body, const ServedModel& model) {
  auto request = openai::ParseChatRequest(body);
  if (!request) return std::unexpected(request.error());
  return PrepareChat(*request, model, /*anthropic=*/false);
}

ApiResult<Work> PrepareMessage(const Json& body, const ServedModel& model) {
  auto request = anthropic::ParseMessagesRequest(body);
  if (!request) return std::unexpected(request.error());
  return PrepareChat(*request, model, /*anthropic=*/true);
}

ApiResult<Work> PrepareCompletion(const Json& body, const ServedModel& model) {
  auto request = openai::ParseCompletionRequest(body);
  if (!request) return std::unexpected(request.error());
  if (auto error = CheckModelName(request->options.model, model)) return std::unexpected(*error);
  auto grammar = MakeGrammar(request->format, model.schema_to_grammar);
  if (!grammar) return std::unexpected(grammar.error());
  Work work{.options = request->options, .param = "prompt", .grammar_param = request->format.param};
  work.reply = {.form = {.separate_reasoning = false},
                .stop = request->options.stop,
                .logprobs = request->options.logprobs};
  std::vector<std::vector<model::Token>> prompts = std::move(request->token_prompts);
  for (const std::string& text : request->prompts) {
    auto tokens = model.vocabulary->Tokenize(text, /*add_special=*/true);
    if (!tokens) return std::unexpected(FromError(tokens.error(), "prompt"));
    prompts.push_back(std::move(*tokens));
  }
  std::vector<std::string> echo;
  for (std::vector<model::Token>& prompt : prompts) {
    if (prompt.empty()) return BadRequest("prompt", "'prompt' is empty; give at least one token");
    if (request->echo) echo.push_back(model.vocabulary->Text(prompt));
    auto added = AddRequests(work, model, std::move(prompt), {}, *grammar);
    if (!added) return std::unexpected(added.error());
  }
  work.format =
      openai::MakeCompletionFormat(HeadOf(work, model, "cmpl-"), request->options.logprobs,
                                   std::move(echo), request->options.choices);
  return work;
}

// "12 prompt tokens (3 cached), 40 generated"
std::string NoteOf(const Usage& usage) {
  return std::format("{} prompt tokens ({} cached), {} generated", usage.prompt_tokens,
                     usage.cached_tokens, usage.completion_tokens);
}

Usage UsageOf(const GenerationRun& run, std::size_t prompt_tokens) {
  Usage usage = run.usage();
  usage.prompt_tokens = prompt_tokens;
  return usage;
}

// Waits for the whole answer and gives it; cancels it when the client goes away.
void AnswerWhole(const Server::State& state, Work& work, GenerationRun& run, const Request& request,
                 Response& response, RequestNote& note) {
  while (!run.done()) {
    // Events of a whole answer are nobody's.
    static_cast<void>(run.Step(kLook, *work.format));
    if (state.stopping || (!run.done() && request.is_connection_closed())) {
      note.text = "the client went away";
      response.status = 499;
      return;
    }
  }
  if (run.failure()) {
    note.text = run.failure()->message;
    AnswerError(request, response, *run.failure());
    return;
  }
  const Usage usage = UsageOf(run, work.prompt_tokens);
  note.text = NoteOf(usage);
  Answer(response, 200, work.format->Whole(run.replies(), usage));
}

// A stream in progress, owned by its response.
struct Streaming {
  Work work;
  std::unique_ptr<GenerationRun> run;
  std::shared_ptr<RequestNote> note;
  ActiveRequest active;
  bool begun = false;
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();

  // Sends what has come. False ends the connection.
  bool Continue(const Server::State& state, const Request& request, httplib::DataSink& sink) {
    std::string events;
    if (!std::exchange(begun, true)) {
      events = work.format->Begin();
    } else {
      events = run->Step(kLook, *work.format);
    }
    const bool done = run->done();
    const Usage usage = UsageOf(*run, work.prompt_tokens);
    if (done) {
      events += run->failure() ? work.format->Failure(*run->failure()) : work.format->End(usage);
      note->text = NoteOf(usage) + (run->failure() ? ", failed: " + run->failure()->message : "");
    }
    const auto now = std::chrono::steady_clock::now();
    if (events.empty() && now - last > kSilence) events = ": still at work\n\n";
    if (!events.empty()) last = now;
    const bool sent = events.empty() || sink.write(events.data(), events.size());
    if (!sent || state.stopping || (!done && request.is_connection_closed())) {
      note->text = NoteOf(usage) + ", the client went away";
      run.reset();
      return false;
    }
    if (done) sink.done();
    return true;
  }
};

void AnswerStream(Server::State& state, Work work, std::unique_ptr<GenerationRun> run,
                  const Request& request, Response& response, std::shared_ptr<RequestNote> note) {
  auto streaming = std::shared_ptr<Streaming>(
      new Streaming{std::move(work), std::move(run), std::move(note), ActiveRequest(state.active)});
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  // The request outlives its response's content.
  response.set_chunked_content_provider(
      "text/event-stream", [streaming, &state, &request](std::size_t, httplib::DataSink& sink) {
        return streaming->Continue(state, request, sink);
      });
}

using Prepare = ApiResult<Work> (*)(const Json& body, const ServedModel& model);

void AnswerGeneration(Server::State& state, Prepare prepare, const Request& request,
                      Response& response) {
  const auto model = ReadyModel(state, request, response);
  if (!model) return;
  auto note = std::make_shared<RequestNote>();
  response.user_data.set("note", note);
  const ActiveRequest active(state.active);
  const auto refuse = [&](const ApiError& error) {
    // Messages to the client may quote what it sent; the log does not.
    note->text = error.status == 429 || error.status >= 500 ? error.message
                 : error.param.empty()                      ? "refused"
                                       : "refused: " + base::Quote(error.param);
    AnswerError(request, response, error);
  };
  const auto body = ParseRequestBody(request.body);
  if (!body) return refuse(body.error());
  auto work = prepare(*body, *model);
  if (!work) return refuse(work.error());
  // What a prompt's length and a bias can be at fault for was found above.
  auto run = GenerationRun::Submit(*model->engine, std::move(work->requests), work->reply,
                                   work->grammar_param.empty() ? work->param : work->grammar_param);
  if (!run) return refuse(run.error());
  if (work->options.stream) {
    AnswerStream(state, std::move(*work), std::move(*run), request, response, note);
  } else {
    AnswerWhole(state, *work, **run, request, response, *note);
  }
}

void CountTokens(const ServedModel& model, const Request& request, Response& response) {
  const auto body = ParseRequestBody(request.body);
  if (!body) return AnswerError(request, response, body.error());
  const auto chat = anthropic::ParseMessagesRequest(*body, /*counting=*/true);
  if (!chat) return AnswerError(request, response, chat.error());
  const auto prompt = MakePrompt(*chat, *model.chat, *model.vocabulary);
  if (!prompt) return AnswerError(request, response, prompt.error());
  Answer(response, 200, {{"input_tokens", prompt->tokens.size()}});
}

}  // namespace

void AddGenerationRoutes(httplib::Server& http, Server::State& state) {
  const auto add = [&](const char* path, Prepare prepare) {
    http.Post(path, [&state, prepare](const Request& request, Response& response) {
      AnswerGeneration(state, prepare, request, response);
    });
  };
  add("/v1/chat/completions", PrepareChatCompletion);
  add("/v1/completions", PrepareCompletion);
  add("/v1/messages", PrepareMessage);
  http.Post("/v1/messages/count_tokens", [&state](const Request& request, Response& response) {
    if (const auto model = ReadyModel(state, request, response)) {
      CountTokens(*model, request, response);
    }
  });
}

}  // namespace server
