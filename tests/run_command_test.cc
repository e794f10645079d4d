// `expert-split run` and `expert-split perplexity` as a user sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "program.h"
#include "support/test_models.h"

namespace test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// One thread and the likeliest token, unless `more` says otherwise.
ProgramResult RunModel(std::vector<std::string> more, const std::string& vulkan = kNoVulkan) {
  std::vector<std::string> arguments = {"run", "--model", ModelPath("tiny-f32"), "--ctx", "256"};
  const auto set_default = [&](const char* option, const char* value) {
    if (!std::ranges::contains(more, option)) more.insert(more.end(), {option, value});
  };
  set_default("--threads", "1");
  set_default("--temp", "0");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunExpertSplit(arguments, {vulkan});
}

Json RunJson(std::vector<std::string> more, const std::string& vulkan = kNoVulkan) {
  more.emplace_back("--json");
  const ProgramResult result = RunModel(std::move(more), vulkan);
  EXPECT_EQ(result.status, 0) << result.err;
  Json document = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(document.is_object()) << result.out;
  return document;
}

std::string ErrorOf(const ProgramResult& result, int status) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  return result.err;
}

// A copy of the tiny model that says it has no tokeniser, as models made for tests do.
std::string WithoutTokeniser() {
  auto content = base::ReadFile(ModelPath("tiny-f32"), base::Bytes::MiB(64));
  if (!content) {
    ADD_FAILURE() << content.error().message;
    return {};
  }
  const std::size_t key = content->find("tokenizer.ggml.model");
  const std::size_t value = content->find("gpt2", key);
  EXPECT_LT(value, key + 64);
  content->replace(value, 4, "none");
  std::string path = ::testing::TempDir() + "without_tokeniser.gguf";
  EXPECT_TRUE(base::WriteFileAtomically(path, *content));
  return path;
}

TEST(RunCommandTest, AModelWithoutATokeniserTakesNoText) {
  const std::string path = WithoutTokeniser();
  const ProgramResult result = RunExpertSplit(
      {"run", "--model", path, "--targets", "cpu", "--prompt", "Hello", "-n", "1"}, {kNoVulkan});
  std::filesystem::remove(path);
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("without_tokeniser.gguf' has no tokeniser"));
}

TEST(RunCommandTest, JsonTellsWhatWasComputedAndWhere) {
  const Json run =
      RunJson({"--targets", "cpu", "--prompt", "Hello there", "-n", "8", "--ignore-eos"});
  EXPECT_EQ(run["prompt_tokens"], 11);
  EXPECT_EQ(run["completion_tokens"], 8);
  EXPECT_EQ(run["tokens"].size(), 8u);
  EXPECT_EQ(run["path"], "single");
  EXPECT_EQ(run["summary"], "cpu=32");
  EXPECT_TRUE(run["lost"].empty());
  EXPECT_GT(run["timings"]["load_ms"], 0.0);
  EXPECT_GT(run["timings"]["prompt_tok_s"], 0.0);
  EXPECT_GT(run["timings"]["decode_tok_s"], 0.0);
  // Every token but the last generated one went through 4 layers with top-k experts.
  EXPECT_EQ(run["targets"][0]["rows"].get<int>() % (4 * 18), 0);
  EXPECT_EQ(run["targets"][0]["share"], 1.0);
}

TEST(RunCommandTest, EveryCpuLayoutAndStepGivesTheSameTokens) {
  const Json whole = RunJson(
      {"--targets", "cpu", "-p", "A longer prompt, in one step.", "-n", "24", "--ignore-eos"});
  const Json steps = RunJson({"--targets", "cpu", "-p", "A longer prompt, in one step.", "-n", "24",
                              "--ignore-eos", "--batch", "5", "--threads", "3"});
  EXPECT_EQ(whole["tokens"], steps["tokens"]);
}

TEST(RunCommandTest, RepackedExpertsGiveTheSameTokensOnAnyThreads) {
  // Its experts have a packed layout; those of tiny-f32 have none.
  const std::vector<std::string> request = {"run",    "--model", ModelPath("tiny-q8_0"),
                                            "--ctx",  "256",     "--targets",
                                            "cpu",    "-p",      "A longer prompt, in one step.",
                                            "-n",     "24",      "--ignore-eos",
                                            "--temp", "0",       "--json"};
  for (const std::string repack : {"auto", "off"}) {
    const auto tokens = [&](std::vector<std::string> more) {
      more.insert(more.begin(), request.begin(), request.end());
      more.insert(more.end(), {"--repack", repack});
      const ProgramResult result = RunExpertSplit(more, {kNoVulkan});
      EXPECT_EQ(result.status, 0) << result.err;
      return Json::parse(result.out, nullptr, /*allow_exceptions=*/false)["tokens"];
    };
    const Json whole = tokens({"--threads", "1"});
    EXPECT_EQ(whole.size(), 24u);
    EXPECT_EQ(whole, tokens({"--threads", "3", "--batch", "5"})) << repack;
  }
  EXPECT_THAT(ErrorOf(RunModel({"--repack", "on", "-p", "Hi"}), 2), HasSubstr("--repack"));
}

TEST(RunCommandTest, ANumaNodeGivesTheTokensOfTheCpu) {
  const auto on = [](const std::string& target) {
    return RunJson({"--targets", target, "-p", "A longer prompt, in one step.", "-n", "16",
                    "--ignore-eos", "--threads", "2"});
  };
  const Json node = on("cpu:0");
  EXPECT_EQ(node["tokens"], on("cpu")["tokens"]);
  EXPECT_EQ(node["summary"], "cpu:0=32");
  EXPECT_GT(node["targets"][0]["busy_ms"], 0.0);
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "cpu:0,cpu:999=1MiB", "-p", "x"}), 2),
              AllOf(HasSubstr("cpu:999"), HasSubstr("present are")));
}

TEST(RunCommandTest, ThreeTargetsGiveTheTextOfOne) {
  const std::vector<std::string> request = {"-p", "Three owners at once", "-n", "16",
                                            "--ignore-eos"};
  std::vector<std::string> one = {"--targets", "cpu"};
  std::vector<std::string> three = {"--targets", "vulkan:0=6MiB,vulkan:1=6MiB,cpu"};
  one.insert(one.end(), request.begin(), request.end());
  three.insert(three.end(), request.begin(), request.end());
  const Json single = RunJson(one, kTwoVulkan);
  const Json split = RunJson(three, kTwoVulkan);
  EXPECT_EQ(split["path"], "multi");
  EXPECT_EQ(single["tokens"], split["tokens"]);
  std::uint64_t rows = 0;
  for (const Json& target : split["targets"]) {
    EXPECT_GT(target["rows"], 0u) << target;
    rows += target["rows"].get<std::uint64_t>();
  }
  EXPECT_EQ(rows, single["targets"][0]["rows"]);
}

TEST(RunCommandTest, GraphsAreReusedFromStepToStep) {
  const Json few = RunJson({"--targets", "cpu", "-p", "x", "-n", "4", "--ignore-eos"});
  const Json many = RunJson({"--targets", "cpu", "-p", "x", "-n", "60", "--ignore-eos"});
  EXPECT_EQ(few["graphs_built"], many["graphs_built"]);
  EXPECT_LE(many["graphs_built"], 2u);
}

TEST(RunCommandTest, TextGoesToStdoutAndTheRestToStderr) {
  const ProgramResult result =
      RunModel({"--targets", "cpu", "-p", "Hello", "-n", "6", "--ignore-eos"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_THAT(result.err,
              HasSubstr("[expert-split] plan cpu=32 units=32 path=single fingerprint="));
  EXPECT_THAT(result.err, HasSubstr("TARGET"));
  const Json json = RunJson({"--targets", "cpu", "-p", "Hello", "-n", "6", "--ignore-eos"});
  EXPECT_EQ(Json(result.out.substr(0, result.out.size() - 1))
                .dump(-1, ' ', false, Json::error_handler_t::replace),
            json["text"].dump());
}

TEST(RunCommandTest, SameSeedSameTokens) {
  const std::vector<std::string> request = {"--targets",    "cpu",    "-p", "Hello",  "-n", "20",
                                            "--ignore-eos", "--seed", "5",  "--temp", "1.5"};
  EXPECT_EQ(RunJson(request)["tokens"], RunJson(request)["tokens"]);
}

TEST(RunCommandTest, TakesAPlanFile) {
  const std::string plan = ::testing::TempDir() + "run_command_plan.json";
  const ProgramResult planned =
      RunExpertSplit({"plan", "--model", ModelPath("tiny-f32"), "--targets",
                      "vulkan:0=3MiB,vulkan:1=3MiB,cpu", "--out", plan},
                     {kTwoVulkan});
  ASSERT_EQ(planned.status, 0) << planned.err;
  const Json run = RunJson({"--plan", plan, "-p", "Hi", "-n", "2", "--ignore-eos"}, kTwoVulkan);
  EXPECT_THAT(planned.out, HasSubstr(run["fingerprint"].get<std::string>()));
  EXPECT_THAT(ErrorOf(RunModel({"--plan", plan, "--targets", "cpu", "-p", "Hi"}), 3),
              HasSubstr("vulkan:0,vulkan:1,cpu"));
  std::filesystem::remove(plan);
}

TEST(RunCommandTest, PlanFilesThatCannotBeUsedAreNamedWithTheFault) {
  const std::string path = ::testing::TempDir() + "run_command_bad_plan.json";
  const ProgramResult planned = RunExpertSplit(
      {"plan", "--model", ModelPath("tiny-f32"), "--targets", "cpu", "--out", path}, {kNoVulkan});
  ASSERT_EQ(planned.status, 0) << planned.err;
  auto content = base::ReadFile(path, base::Bytes::MiB(1));
  ASSERT_TRUE(content) << content.error().message;
  const auto refusal = [&](const std::string& text) {
    EXPECT_TRUE(base::WriteFileAtomically(path, text));
    return ErrorOf(RunModel({"--plan", path, "-p", "x"}), 3);
  };
  const auto changed = [&](const char* pointer, const Json& value) {
    Json document = Json::parse(*content);
    document[Json::json_pointer(pointer)] = value;
    return refusal(document.dump());
  };
  for (const std::string& message :
       {refusal(""), refusal(content->substr(0, content->size() / 2)), changed("/version", 99),
        changed("/owners/1", "0*7"), changed("/owners/1", "1*8"), changed("/targets", "cpu"),
        changed("/fingerprint", "0123456789abcdef")}) {
    EXPECT_THAT(message, HasSubstr(path));
    EXPECT_THAT(message, HasSubstr("make it again with `expert-split plan --out`"));
  }
  const std::string other = changed("/model/name", "another model");
  EXPECT_THAT(other, HasSubstr("the plan is for qwen35moe \"another model\""));
  EXPECT_THAT(other, HasSubstr("the model is qwen35moe \"random tiny"));
  EXPECT_THAT(ErrorOf(RunModel({"--plan", "/nonexistent/p.json", "-p", "x"}), 3),
              HasSubstr("/nonexistent/p.json"));
  EXPECT_THAT(ErrorOf(RunModel({"--plan", ::testing::TempDir(), "-p", "x"}), 3),
              HasSubstr("not a regular file"));
  std::filesystem::remove(path);
}

TEST(RunCommandTest, RefusalsNameThingAndRemedy) {
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "rpc:127.0.0.1:1=1MiB,cpu", "-p", "x"}), 5),
              HasSubstr("rpc:127.0.0.1:1"));
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "cuda:0=1MiB,cpu", "-p", "x"}), 2),
              HasSubstr("cuda:0"));
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "cpu", "--prompt-file", "/no/such/file"}), 2),
              HasSubstr("/no/such/file"));
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "cpu"}), 2), HasSubstr("prompt"));
  EXPECT_THAT(ErrorOf(RunModel({"--targets", "cpu", "-p", "x", "--top-p", "2"}), 2),
              HasSubstr("top-p"));
}

TEST(PerplexityCommandTest, DoesNotDependOnStepsOrThreads) {
  const std::string text = ::testing::TempDir() + "run_command_text.txt";
  std::string content;
  for (int i = 0; i < 60; ++i) content += "The quick brown fox jumps over the lazy dog. ";
  ASSERT_TRUE(base::WriteFileAtomically(text, content));
  const auto measure = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "perplexity", "--model", ModelPath("tiny-f32"), "--text", text, "--targets", "cpu", "--ctx",
        "128",        "--json",  "--threads",           "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = RunExpertSplit(arguments, {kNoVulkan});
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  };
  const Json whole = measure({});
  const Json steps = measure({"--batch", "7"});
  EXPECT_GT(whole["ppl"], 1.0);
  EXPECT_EQ(whole["tokens"], content.size() / 128 * 63);
  EXPECT_EQ(whole["nll"], steps["nll"]);
}

}  // namespace
}  // namespace test
