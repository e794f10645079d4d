#include "server/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <thread>

#include "server/json.h"
#include "support/scripted_backend.h"

namespace server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const model::Vocabulary& Vocabulary() {
  static const auto vocabulary = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
  EXPECT_TRUE(vocabulary) << vocabulary.error().message;
  return *vocabulary;
}

const std::string kLong(2000, 'x');

std::map<std::string, std::string> Replies() {
  return {
      {"greet", "Hello, wörld!"},
      {"long", kLong},
      {"think", "<think>\nHm.\n</think>\n\nYes."},
      {"call", "Look:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
      {"=>", "one two three"}};
}

struct Logged {
  std::mutex mutex;
  std::string text;
  base::Log log() {
    return base::Log([this](base::LogLevel, std::string_view message) {
      const std::scoped_lock lock(mutex);
      text += std::string(message) + "\n";
    });
  }
  std::string Text() {
    const std::scoped_lock lock(mutex);
    return text;
  }
};

class ServerTest : public ::testing::Test {
 protected:
  void Start(ServerOptions options = {}, std::size_t slots = 4, std::size_t queue = 8) {
    options.port = 0;
    auto server = Server::Listen(std::move(options), logged_.log());
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
    auto chat = model::ChatTemplate::Make("", "", "");
    ASSERT_TRUE(chat);
    chat_ = std::make_unique<model::ChatTemplate>(*std::move(chat));
    backend_ = std::make_unique<ScriptedBackend>(Vocabulary(), Replies(), 4096, slots);
    engine_ = engine::Engine::Start(*backend_, Vocabulary(), {.queue_limit = queue});
  }

  void Serve() {
    server_->Serve({.name = "test-model",
                    .engine = engine_.get(),
                    .vocabulary = &Vocabulary(),
                    .chat = chat_.get(),
                    .placement =
                        [] {
                          return PlacementReport{.path = "single",
                                                 .fingerprint = "00112233aabbccdd",
                                                 .summary = "cpu=4",
                                                 .units = 4,
                                                 .num_layers = 2,
                                                 .num_experts = 2,
                                                 .owners = {0, 0, 0, 0},
                                                 .targets = {{.name = "cpu", .units = 4}}};
                        },
                    .schema_to_grammar = [](const Json&) -> base::Result<std::string> {
                      return base::Fail(base::ErrorKind::kUnsupported, "no schemas here");
                    }});
  }

  void TearDown() override {
    server_.reset();
    engine_.reset();
  }

  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(60);
    return client;
  }

  httplib::Result Post(const std::string& path, const Json& body,
                       const httplib::Headers& headers = {}) const {
    return Client().Post(path, headers, Dump(body), "application/json");
  }

  static Json ChatBody(const std::string& text, const Json& more = Json::object()) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
                 {"temperature", 0}};
    body.update(more);
    return body;
  }

  static Json BodyOf(const httplib::Result& result) {
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    if (!result) return {};
    const Json body = Json::parse(result->body, nullptr, false);
    EXPECT_FALSE(body.is_discarded()) << result->body;
    return body;
  }

  // Waits until `done` or ten seconds have passed.
  static bool Eventually(const std::function<bool()>& done) {
    for (int i = 0; i < 2000; ++i) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  Logged logged_;
  std::unique_ptr<model::ChatTemplate> chat_;
  std::unique_ptr<ScriptedBackend> backend_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, IsNotReadyBeforeItHasAModelAndSaysWhy) {
  Start();
  server_->SetLoading("loading cuda:0: 1.0 GiB of 20.0 GiB");
  const auto health = Client().Get("/health");
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(BodyOf(health)["reason"], "loading cuda:0: 1.0 GiB of 20.0 GiB");
  const auto chat = Post("/v1/chat/completions", ChatBody("greet"));
  EXPECT_EQ(chat->status, 503);
  EXPECT_THAT(BodyOf(chat)["error"]["message"].get<std::string>(), HasSubstr("loading cuda:0"));
  EXPECT_TRUE(chat->has_header("Retry-After"));
  EXPECT_EQ(Client().Get("/metrics")->status, 200);
  Serve();
  EXPECT_EQ(Client().Get("/health")->status, 200);
}

TEST_F(ServerTest, AnswersChatsWhole) {
  Start();
  Serve();
  const Json answer = BodyOf(Post("/v1/chat/completions", ChatBody("greet")));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello, wörld!");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["model"], "test-model");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 14);
  const Json thought = BodyOf(Post("/v1/chat/completions", ChatBody("think")));
  EXPECT_EQ(thought["choices"][0]["message"]["reasoning_content"], "Hm.");
  EXPECT_EQ(thought["choices"][0]["message"]["content"], "Yes.");
}

TEST_F(ServerTest, StreamsTheSameText) {
  Start();
  Serve();
  const auto result = Post(
      "/v1/chat/completions",
      ChatBody("greet",
               {{"stream", true}, {"stop", "rld"}, {"stream_options", {{"include_usage", true}}}}));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  std::string text;
  std::string rest = result->body;
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n")) << rest;
  Json usage;
  for (std::size_t at = rest.find("data: {"); at != std::string::npos;
       at = rest.find("data: {", at + 1)) {
    const Json event = Json::parse(rest.substr(at + 6, rest.find('\n', at) - at - 6));
    if (!event["choices"].empty()) text += event["choices"][0]["delta"].value("content", "");
    usage = event["usage"];
  }
  EXPECT_EQ(text, "Hello, wö");
  EXPECT_EQ(usage["completion_tokens"], 13);
}

TEST_F(ServerTest, ToolCallsOfBothProtocols) {
  Start();
  Serve();
  const Json tool = {{"name", "f"}, {"parameters", {{"type", "object"}}}};
  const Json chat = BodyOf(Post(
      "/v1/chat/completions",
      ChatBody("call", {{"tools", Json::array({{{"type", "function"}, {"function", tool}}})}})));
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "Look:");
  EXPECT_EQ(chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "tool_calls");
  const Json message = BodyOf(Post(
      "/v1/messages",
      ChatBody(
          "call",
          {{"max_tokens", 200},
           {"tools", Json::array({{{"name", "f"}, {"input_schema", {{"type", "object"}}}}})}})));
  EXPECT_EQ(message["content"][1]["input"], Json({{"a", 1}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

TEST_F(ServerTest, CompletionsSeveralChoicesAndProbabilities) {
  Start();
  Serve();
  const Json answer = BodyOf(Post("/v1/completions", {{"prompt", Json::array({"a =>", "b =>"})},
                                                      {"n", 2},
                                                      {"max_tokens", 5},
                                                      {"echo", true},
                                                      {"logprobs", 1},
                                                      {"temperature", 0}}));
  ASSERT_EQ(answer["choices"].size(), 4u) << answer;
  EXPECT_EQ(answer["choices"][3]["text"], "b =>one t");
  EXPECT_EQ(answer["choices"][3]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][3]["logprobs"]["tokens"].size(), 5u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 20);
}

TEST_F(ServerTest, ErrorsAreShapedLikeTheProtocolsOwn) {
  Start({.max_body_bytes = 100'000});
  Serve();
  const auto wrong = Post("/v1/chat/completions", ChatBody("x", {{"max_tokens", -1}}));
  EXPECT_EQ(wrong->status, 400);
  EXPECT_EQ(BodyOf(wrong)["error"]["param"], "max_tokens");
  const auto model = Post("/v1/chat/completions", ChatBody("x", {{"model", "other"}}));
  EXPECT_EQ(model->status, 404);
  EXPECT_EQ(BodyOf(model)["error"]["code"], "model_not_found");
  const auto prompt = Post("/v1/chat/completions", ChatBody(std::string(5000, 'y')));
  EXPECT_EQ(prompt->status, 400);
  EXPECT_EQ(BodyOf(prompt)["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(BodyOf(prompt)["error"]["message"].get<std::string>(), HasSubstr("4096"));
  EXPECT_THAT(BodyOf(prompt)["error"]["message"].get<std::string>(), HasSubstr("50"));
  const auto schema =
      Post("/v1/chat/completions", ChatBody("x", {{"response_format", {{"type", "json_object"}}}}));
  EXPECT_EQ(BodyOf(schema)["error"]["param"], "response_format");
  const auto route = Client().Get("/v1/nothing");
  EXPECT_EQ(route->status, 404);
  EXPECT_THAT(BodyOf(route)["error"]["message"].get<std::string>(), HasSubstr("/v1/nothing"));
  const auto message = Post("/v1/messages", ChatBody("x"));
  EXPECT_EQ(BodyOf(message)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(BodyOf(message)["type"], "error");
  const auto large = Post("/v1/chat/completions", ChatBody(std::string(200'000, 'z')));
  if (large) {
    EXPECT_EQ(large->status, 413);
    EXPECT_THAT(BodyOf(large)["error"]["message"].get<std::string>(), HasSubstr("100000"));
  }
}

TEST_F(ServerTest, AFailureBelowIsAnAnswerAndTheServerLivesOn) {
  Start();
  Serve();
  backend_->fail = true;
  const auto whole = Post("/v1/chat/completions", ChatBody("greet"));
  EXPECT_EQ(whole->status, 500);
  EXPECT_EQ(BodyOf(whole)["error"]["type"], "server_error");
  const auto stream = Post("/v1/chat/completions", ChatBody("greet", {{"stream", true}}));
  EXPECT_THAT(stream->body, HasSubstr("scripted failure"));
  backend_->fail = false;
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody("greet"))->status, 200);
}

TEST_F(ServerTest, KeysAreAskedForButNotForHealth) {
  Start({.api_key = "secret"});
  Serve();
  EXPECT_EQ(Client().Get("/health")->status, 200);
  EXPECT_EQ(Client().Get("/")->status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/v1/placement"}) {
    EXPECT_EQ(Client().Get(path)->status, 401) << path;
  }
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody("greet"))->status, 401);
  EXPECT_EQ(
      Post("/v1/chat/completions", ChatBody("greet"), {{"Authorization", "Bearer secre"}})->status,
      401);
  EXPECT_EQ(
      Post("/v1/chat/completions", ChatBody("greet"), {{"Authorization", "Bearer secret"}})->status,
      200);
  EXPECT_EQ(Post("/v1/messages", ChatBody("greet", {{"max_tokens", 3}}), {{"x-api-key", "secret"}})
                ->status,
            200);
  EXPECT_THAT(logged_.Text(), Not(HasSubstr("secret")));
}

TEST_F(ServerTest, OtherOriginsAreLetInOnlyWhenAsked) {
  Start();
  Serve();
  EXPECT_FALSE(Client().Get("/v1/models")->has_header("Access-Control-Allow-Origin"));
  TearDown();
  Start({.cors_origin = "https://example.org"});
  Serve();
  EXPECT_EQ(Client().Get("/v1/models")->get_header_value("Access-Control-Allow-Origin"),
            "https://example.org");
  const auto preflight = Client().Options("/v1/chat/completions");
  EXPECT_EQ(preflight->status, 204);
  EXPECT_THAT(preflight->get_header_value("Access-Control-Allow-Headers"),
              HasSubstr("Authorization"));
}

TEST_F(ServerTest, TokensThereAndBack) {
  Start();
  Serve();
  const Json tokens = BodyOf(Post("/tokenize", {{"content", "wörld"}}))["tokens"];
  EXPECT_EQ(tokens.size(), 6u);
  EXPECT_EQ(BodyOf(Post("/detokenize", {{"tokens", tokens}}))["content"], "wörld");
  EXPECT_EQ(BodyOf(Post("/detokenize", {{"tokens", Json::array({-1})}}))["error"]["param"],
            "tokens[0]");
  EXPECT_EQ(BodyOf(Post("/tokenize", {{"content", 1}}))["error"]["param"], "content");
}

TEST_F(ServerTest, StatusRoutesShowModelPlacementAndMetrics) {
  Start();
  Serve();
  EXPECT_EQ(BodyOf(Client().Get("/v1/models"))["data"][0]["id"], "test-model");
  EXPECT_EQ(Client().Get("/v1/models/test-model")->status, 200);
  EXPECT_EQ(Client().Get("/v1/models/other")->status, 404);
  const Json placement = BodyOf(Client().Get("/v1/placement"));
  EXPECT_EQ(placement["layers"], Json::parse("[[0, 0], [0, 0]]"));
  EXPECT_EQ(placement["targets"][0]["capacity"], nullptr);
  EXPECT_EQ(placement["rebalance"], nullptr);
  BodyOf(Post("/v1/chat/completions", ChatBody("greet")));
  const std::string metrics = Client().Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("expert_split_requests_finished_total{reason=\"end\"} 1\n"));
  EXPECT_THAT(metrics,
              HasSubstr("expert_split_http_responses_total{route=\"/v1/models\",code=\"200\"} 1"));
}

TEST_F(ServerTest, ThePageComesFromInsideTheProgram) {
  Start();
  const auto page = Client().Get("/");
  EXPECT_THAT(page->body, HasSubstr("<title>expert-split</title>"));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(page->body, Not(HasSubstr("http://")));
  EXPECT_THAT(page->body, Not(HasSubstr("https://")));
  for (const char* file :
       {"page.css", "chat.js", "placement.js", "settings.js", "marked.js", "purify.js"}) {
    EXPECT_EQ(Client().Get(std::string("/page/") + file)->status, 200) << file;
  }
  EXPECT_EQ(Client().Get("/page/../secret")->status, 404);
}

TEST_F(ServerTest, AClientThatGoesAwayEndsItsGeneration) {
  Start();
  Serve();
  backend_->step_ms = 2;
  for (const bool stream : {true, false}) {
    const auto cancelled = [&] {
      return engine_->statistics()
          .finished[static_cast<std::size_t>(engine::FinishReason::kCancelled)];
    };
    const std::uint64_t before = cancelled();
    httplib::Client client("127.0.0.1", server_->port());
    std::jthread asking([&] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/v1/chat/completions";
      request.set_header("Content-Type", "application/json");
      request.body = Dump(ChatBody("long", {{"stream", stream}, {"max_tokens", 3000}}));
      request.content_receiver = [](const char*, std::size_t, std::size_t, std::size_t) {
        return false;  // hangs up at the first text
      };
      static_cast<void>(client.send(request));
    });
    // One that streams may be over before it is seen running.
    if (!stream) {
      ASSERT_TRUE(Eventually([&] { return engine_->statistics().running > 0; }));
      client.stop();
    }
    EXPECT_TRUE(Eventually([&] { return cancelled() > before; })) << stream;
    EXPECT_TRUE(Eventually([&] { return engine_->statistics().running == 0; }));
  }
}

TEST_F(ServerTest, BeyondTheQueueRequestsAreSentAway) {
  Start({}, /*slots=*/1, /*queue=*/1);
  Serve();
  backend_->step_ms = 5;
  std::vector<std::jthread> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back(
        [this] { Post("/v1/chat/completions", ChatBody("long", {{"max_tokens", 100}})); });
    ASSERT_TRUE(Eventually([&] {
      const auto now = engine_->statistics();
      return now.running + now.queued == static_cast<std::size_t>(i) + 1 && now.running == 1;
    }));
  }
  const auto refused = Post("/v1/chat/completions", ChatBody("greet"));
  EXPECT_EQ(refused->status, 429);
  EXPECT_TRUE(refused->has_header("Retry-After"));
  EXPECT_EQ(BodyOf(refused)["error"]["code"], "rate_limit_exceeded");
}

TEST_F(ServerTest, DrainingLetsRunningRequestsEndAndRefusesNewOnes) {
  Start();
  Serve();
  backend_->step_ms = 2;
  std::string body;
  std::jthread running([&] {
    const auto result =
        Post("/v1/chat/completions", ChatBody("long", {{"stream", true}, {"max_tokens", 150}}));
    if (result) body = result->body;
  });
  ASSERT_TRUE(Eventually([&] { return engine_->statistics().running > 0; }));
  std::jthread draining([&] { EXPECT_TRUE(server_->Drain(std::chrono::seconds(30))); });
  ASSERT_TRUE(Eventually([&] { return Client().Get("/health")->status == 503; }));
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody("greet"))->status, 503);
  running.join();
  draining.join();
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, ThePortIsNotShared) {
  Start();
  ServerOptions options;
  options.port = server_->port();
  const auto second = Server::Listen(options, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, base::ErrorKind::kIo);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(options.port)));
  options.host = "192.0.2.1";
  EXPECT_EQ(Server::Listen(options, {}).error().kind, base::ErrorKind::kInvalidInput);
}

TEST_F(ServerTest, TheLogHasNothingOfPromptsOrReplies) {
  Start();
  Serve();
  BodyOf(Post("/v1/chat/completions", ChatBody("greet my private words")));
  Post("/v1/chat/completions", {{"messages", "my private words"}});
  Client().Post("/v1/chat/completions", "{\"my private words", "application/json");
  ASSERT_TRUE(Eventually([&] { return logged_.Text().contains("14 generated"); }))
      << logged_.Text();
  EXPECT_THAT(logged_.Text(), Not(HasSubstr("private")));
  EXPECT_THAT(logged_.Text(), Not(HasSubstr("Hello")));
}

}  // namespace
}  // namespace server
