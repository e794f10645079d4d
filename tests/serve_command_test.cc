// `expert-split serve` as a client and an operator see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "eventually.h"
#include "served.h"

namespace test {
namespace {

using ::testing::HasSubstr;

TEST(ServeCommandTest, ServesAChatWholeAndStreamed) {
  Served served;
  EXPECT_EQ(served.Get("/health")["status"], "ok");
  EXPECT_EQ(served.Get("/v1/models")["data"][0]["id"], "tiny-f32");
  const Json whole = served.Post("/v1/chat/completions", Chat("Hello"));
  EXPECT_EQ(whole["usage"]["completion_tokens"], 8);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  Json streamed = Chat("Hello");
  streamed["stream"] = true;
  const auto stream =
      served.Client().Post("/v1/chat/completions", streamed.dump(), "application/json");
  ASSERT_TRUE(stream);
  std::string text;
  for (std::size_t at = stream->body.find("data: {"); at != std::string::npos;
       at = stream->body.find("data: {", at + 1)) {
    const Json event =
        Json::parse(stream->body.substr(at + 6, stream->body.find('\n', at) - at - 6));
    text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(whole["choices"][0]["message"]["content"], text);
  EXPECT_TRUE(stream->body.ends_with("data: [DONE]\n\n"));
}

TEST(ServeCommandTest, ASecondTurnReusesTheFirst) {
  Served served;
  Json chat = Chat("Once upon a time there was a quiet river.");
  const Json first = served.Post("/v1/chat/completions", chat);
  chat["messages"].push_back(first["choices"][0]["message"]);
  chat["messages"].push_back({{"role", "user"}, {"content", "And then?"}});
  const Json second = served.Post("/v1/chat/completions", chat);
  EXPECT_GT(second["usage"]["prompt_tokens_details"]["cached_tokens"], 20);
}

TEST(ServeCommandTest, TheSameRequestGivesTheSameTextWhateverElseRuns) {
  Served served;
  Json chat = Chat("A seed", 24);
  chat["temperature"] = 1.2;
  chat["seed"] = 7;
  const Json alone = served.Post("/v1/chat/completions", chat);
  std::jthread other([&] { served.Post("/v1/chat/completions", Chat("Somebody else", 60)); });
  const Json together = served.Post("/v1/chat/completions", chat);
  EXPECT_EQ(alone["choices"], together["choices"]);
}

TEST(ServeCommandTest, StructuredOutputFollowsItsSchema) {
  Served served;
  Json chat = Chat("Give me a number.", 60);
  chat.erase("ignore_eos");
  chat["response_format"] = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "n"},
        {"schema",
         {{"type", "object"},
          {"properties", {{"a", {{"enum", {"x", "y"}}}}, {"b", {{"type", "boolean"}}}}},
          {"required", {"a", "b"}},
          {"additionalProperties", false}}}}}};
  const Json answer = served.Post("/v1/chat/completions", chat);
  const Json value =
      Json::parse(answer["choices"][0]["message"]["content"].get<std::string>(), nullptr, false);
  ASSERT_TRUE(value.is_object()) << answer;
  EXPECT_TRUE(value["a"] == "x" || value["a"] == "y");
  EXPECT_TRUE(value["b"].is_boolean());
}

TEST(ServeCommandTest, AForcedCallIsACall) {
  Served served;
  Json chat = Chat("What is the weather?", 100);
  chat.erase("ignore_eos");
  chat["tools"] = Json::parse(R"([{"type": "function", "function": {"name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}},
      "required": ["city"], "additionalProperties": false}}}])");
  chat["tool_choice"] = "required";
  const Json answer = served.Post("/v1/chat/completions", chat);
  ASSERT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << answer;
  const Json call = answer["choices"][0]["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(call["name"], "weather");
  const Json arguments = Json::parse(call["arguments"].get<std::string>());
  EXPECT_TRUE(arguments["city"] == "Oslo" || arguments["city"] == "Rome");
}

TEST(ServeCommandTest, EveryTargetOfASplitIsShownWithItsTraffic) {
  Served served({"--targets", "vulkan:0=4MiB,vulkan:1=4MiB,cpu"}, kTwoVulkan);
  served.Post("/v1/chat/completions", Chat("Three owners", 4));
  const Json placement = served.Get("/v1/placement");
  EXPECT_EQ(placement["path"], "multi");
  ASSERT_EQ(placement["targets"].size(), 3u);
  for (const Json& target : placement["targets"]) EXPECT_GT(target["rows"], 0) << target;
  EXPECT_EQ(placement["layers"].size(), 4u);
  EXPECT_EQ(placement["targets"][0]["capacity"], 4 << 20);
  const std::string metrics = served.Client().Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("expert_split_target_rows_total{target=\"vulkan:1\"} "));
}

TEST(ServeCommandTest, ExpertsMoveWithTheTraffic) {
  Served served(
      {"--targets", "vulkan:0=4MiB,cpu", "--rebalance", "auto", "--rebalance-budget", "1GiB"},
      kTwoVulkan);
  const Json before = served.Get("/v1/placement");
  EXPECT_EQ(before["rebalance"]["moved_units"], 0);
  EXPECT_EQ(before["rebalance"]["bytes_per_second"], 1 << 30);
  int requests = 0;
  const auto ask = [&] {
    const std::string text = std::to_string(requests++) + std::string(200, 'e');
    served.Post("/v1/chat/completions", Chat(text, 2));
    return served.Get("/v1/placement");
  };
  ASSERT_TRUE(Eventually([&] { return ask()["rebalance"]["moved_units"] > 0; }));
  const Json after = served.Get("/v1/placement");
  EXPECT_NE(after["layers"], before["layers"]);
  EXPECT_NE(after["fingerprint"], before["fingerprint"]);
  EXPECT_GT(after["generation"], before["generation"]);
  EXPECT_GT(after["rebalance"]["moved_bytes"], 0);
  EXPECT_EQ(after["rebalance"]["failures"], 0);
  EXPECT_TRUE(Eventually([&] { return ask()["summary"] == before["summary"]; }))
      << "each target has as many experts as before";
  EXPECT_THAT(served.Client().Get("/metrics")->body,
              HasSubstr("expert_split_rebalance_failures_total 0\n"));
}

TEST(ServeCommandTest, ExpertsThatMoveToAWorkerChangeNoText) {
  Served served(
      {"--targets", "worker(cpu)=50%,cpu", "--rebalance", "auto", "--rebalance-budget", "1GiB"});
  Json asked = Chat("What is left?", 24);
  const auto text = [&] {
    return served.Post("/v1/chat/completions", asked)["choices"][0]["message"]["content"];
  };
  const Json before = text();
  int requests = 0;
  ASSERT_TRUE(Eventually([&] {
    served.Post("/v1/chat/completions",
                Chat(std::to_string(requests++) + std::string(200, 'e'), 2));
    return served.Get("/v1/placement")["rebalance"]["moved_units"] > 0;
  }));
  EXPECT_EQ(text(), before);
  EXPECT_EQ(served.Get("/health")["status"], "ok");
}

TEST(ServeCommandTest, SaysWhenNoExpertCanMove) {
  Served served({"--targets", "cpu", "--rebalance", "auto"});
  EXPECT_EQ(served.Get("/v1/placement")["rebalance"], nullptr);
  EXPECT_THAT(served.program().Written(Stream::kErr), HasSubstr("nothing can move"));
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat("Hello"))["usage"]["completion_tokens"], 8);
}

TEST(ServeCommandTest, TheRoutingIsShownByUnitAndRecordedAtTheEnd) {
  const std::string file = ::testing::TempDir() + "serve_record.json";
  Served served({"--targets", "cpu", "--record", file});
  const Json answer = served.Post("/v1/chat/completions", Chat("Count me"));
  // The last token is never computed.
  const std::uint64_t tokens = answer["usage"]["total_tokens"].get<std::uint64_t>() - 1;
  const Json placement = served.Get("/v1/placement");
  ASSERT_EQ(placement["unit_rows"].size(), placement["layers"].size());
  const auto total = [](const Json& layer) {
    const auto counts = layer.get<std::vector<std::uint64_t>>();
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  const std::uint64_t rows = total(placement["unit_rows"][0]);
  EXPECT_GT(rows, tokens);
  EXPECT_EQ(rows % tokens, 0u) << "each token selects the same number of experts";
  for (const Json& layer : placement["unit_rows"]) EXPECT_EQ(total(layer), rows);
  EXPECT_FALSE(std::filesystem::exists(file));
  served.program().Signal(SIGTERM);
  EXPECT_TRUE(served.program().Ended(/*wait=*/true));
  EXPECT_EQ(served.program().Result().status, 0) << served.program().Result().err;
  const auto written = base::ReadFile(file, base::Bytes::MiB(1));
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(Json::parse(*written)["num_tokens"], tokens);
  std::filesystem::remove(file);
}

TEST(ServeCommandTest, AWrongGrammarIsTheClientsErrorAndNothingElse) {
  Served served;
  Json chat = Chat("Write anything");
  chat["grammar"] = "root ::= (";
  const Json refused = served.Post("/v1/chat/completions", chat, 400);
  EXPECT_EQ(refused["error"]["param"], "grammar");
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), HasSubstr("line 1, column 10"));
  EXPECT_FALSE(served.program().Written(Stream::kErr).contains("root ::="));
}

TEST(ServeCommandTest, TerminationLetsRunningRequestsEnd) {
  Served served;
  Json chat = Chat("A long story", 300);
  chat["stream"] = true;
  std::string body;
  std::jthread running([&] {
    const auto result =
        served.Client().Post("/v1/chat/completions", chat.dump(), "application/json");
    if (result) body = result->body;
  });
  ASSERT_TRUE(Eventually([&] { return served.Get("/v1/placement")["activity"]["running"] == 1; }));
  served.program().Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return served.program().Ended(/*wait=*/false); }));
  running.join();
  EXPECT_EQ(served.program().Result().status, 0) << served.program().Result().err;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body.substr(body.size() - 200);
}

TEST(ServeCommandTest, ASecondCtrlCEndsAtOnce) {
  Served served;
  std::jthread running([&] {
    static_cast<void>(served.Client().Post("/v1/chat/completions", Chat("On and on", 1000).dump(),
                                           "application/json"));
  });
  ASSERT_TRUE(Eventually([&] { return served.Get("/v1/placement")["activity"]["running"] == 1; }));
  served.program().Signal(SIGINT);
  ASSERT_TRUE(Eventually(
      [&] { return served.program().Written(Stream::kErr).contains("ending: waiting"); }));
  served.program().Signal(SIGINT);
  EXPECT_TRUE(served.program().Ended(/*wait=*/true));
  EXPECT_EQ(served.program().Result().status, 130);
}

TEST(ServeCommandTest, CtrlCAloneGivesItsStatus) {
  Served served;
  served.program().Signal(SIGINT);
  EXPECT_TRUE(served.program().Ended(/*wait=*/true));
  EXPECT_EQ(served.program().Result().status, 130);
}

TEST(ServeCommandTest, FaultsAreOneLineWithTheirStatus) {
  Served served;
  const auto run = [](std::vector<std::string> more) {
    return RunExpertSplit(ServeCommand(std::move(more)), {kNoVulkan});
  };
  const std::string port = std::to_string(served.port());
  std::vector<std::string> taken = ServeCommand({"--targets", "cpu"});
  *(std::ranges::find(taken, "--port") + 1) = port;
  ExpectOneErrorLine(RunExpertSplit(taken, {kNoVulkan}), 5, port);
  std::vector<std::string> missing = ServeCommand({"--targets", "cpu"});
  *(std::ranges::find(missing, "--model") + 1) = "/no/such/model.gguf";
  ExpectOneErrorLine(RunExpertSplit(missing, {kNoVulkan}), 3, "/no/such/model.gguf");
  ExpectOneErrorLine(run({"--targets", "cpu=1KiB"}), 4, "cpu");
  ExpectOneErrorLine(run({"--targets", "cpu", "--host", "192.0.2.1"}), 2, "192.0.2.1");
  ExpectOneErrorLine(run({"--rebalance", "often"}), 2, "--rebalance");
  ExpectOneErrorLine(run({"--rebalance-budget", "20G"}), 2, "20GiB");
  ExpectOneErrorLine(run({"--rebalance-budget", "0"}), 2, "--rebalance off");
  ExpectOneErrorLine(run({"--rebalance", "auto", "--policy", "layers"}), 2, "--policy layers");
  const std::string file = ::testing::TempDir() + "serve_bad_template.jinja";
  ASSERT_TRUE(base::WriteFileAtomically(file, "{% if %}"));
  ExpectOneErrorLine(run({"--targets", "cpu", "--chat-template", file}), 2, "--chat-template");
  std::filesystem::remove(file);
}

TEST(ServeCommandTest, AnotherTemplateIsUsedAndItsRefusalIsA400) {
  const std::string file = ::testing::TempDir() + "serve_template.jinja";
  ASSERT_TRUE(base::WriteFileAtomically(
      file,
      "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
      "{{ messages[0].content }}"));
  Served served({"--targets", "cpu", "--chat-template", file});
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat("Hello"))["usage"]["prompt_tokens"], 5);
  Json chat = Chat("Hello");
  chat["messages"][0]["role"] = "system";
  const Json refused = served.Post("/v1/chat/completions", chat, 400);
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), HasSubstr("no system here"));
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace test
