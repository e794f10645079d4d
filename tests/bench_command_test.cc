// `expert-split bench` as a user sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "program.h"
#include "support/test_models.h"

namespace test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProgramResult Bench(const std::vector<std::string>& more, const std::string& vulkan = kNoVulkan) {
  std::vector<std::string> arguments = {"bench", "--model", ModelPath("tiny-f32"), "--threads",
                                        "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunExpertSplit(arguments, {vulkan});
}

void ExpectSamples(const Json& speed, std::size_t count) {
  ASSERT_EQ(speed["samples"].size(), count) << speed;
  for (const Json& sample : speed["samples"]) {
    EXPECT_GT(sample, 0.0);
    EXPECT_LE(speed["min"], sample);
    EXPECT_GE(speed["max"], sample);
  }
  EXPECT_LE(speed["min"], speed["median"]);
  EXPECT_GE(speed["max"], speed["median"]);
}

TEST(BenchCommandTest, JsonHasEverySampleAndWhereItWasComputed) {
  const ProgramResult result =
      Bench({"--targets", "cpu", "-p", "20", "-n", "4", "-r", "3", "--depth", "5", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(bench.is_object()) << result.out;
  ExpectSamples(bench["prompt_tok_s"], 3);
  ExpectSamples(bench["decode_tok_s"], 3);
  EXPECT_EQ(bench["path"], "single");
  EXPECT_EQ(bench["summary"], "cpu=32");
  // Three repeats and a warm-up, each kind behind 5 tokens, 4 layers of 2 experts.
  EXPECT_EQ(bench["targets"][0]["rows"], 4 * (20 + 4 + 2 * 5) * 4 * 2);
  EXPECT_THAT(result.err, HasSubstr("[expert-split] plan cpu=32 units=32 path=single"));
}

TEST(BenchCommandTest, OneKindAlone) {
  const ProgramResult result =
      Bench({"--targets", "cpu", "-p", "0", "-n", "2", "-r", "1", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out, nullptr, false);
  EXPECT_TRUE(bench["prompt_tok_s"]["samples"].empty());
  ExpectSamples(bench["decode_tok_s"], 1);
}

TEST(BenchCommandTest, ByNodeSaysWhereAStepSpendsItsTime) {
  const ProgramResult result =
      Bench({"--targets", "cpu", "-p", "20", "-n", "2", "-r", "1", "--by-node", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out, nullptr, false);
  for (const char* step : {"prompt_nodes", "decode_nodes"}) {
    std::size_t expands = 0;
    double last = std::numeric_limits<double>::infinity();
    for (const Json& node : bench[step]) {
      if (node["what"] == "experts expand") expands = node["nodes"];
      EXPECT_LE(node["ms"], last) << bench[step];
      EXPECT_GE(node["ms"], 0.0);
      last = node["ms"];
    }
    EXPECT_EQ(expands, 4u) << "one a layer: " << bench[step];
  }
  EXPECT_THAT(Bench({"--targets", "cpu", "-p", "4", "-n", "1", "-r", "1", "--by-node"}).out,
              AllOf(HasSubstr("PROMPT"), HasSubstr("STEP"), HasSubstr("MUL_MAT ffn_gate_inp")));
}

TEST(BenchCommandTest, ThreeTargets) {
  const ProgramResult result = Bench(
      {"--targets", "vulkan:0=6MiB,vulkan:1=6MiB,cpu", "-p", "8", "-n", "2", "-r", "1", "--json"},
      kTwoVulkan);
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out, nullptr, false);
  EXPECT_EQ(bench["path"], "multi");
  EXPECT_EQ(bench["targets"].size(), 3u);
}

TEST(BenchCommandTest, LanesSideBySide) {
  const ProgramResult result = Bench({"--targets", "vulkan:0=12MiB,vulkan:1=6MiB,cpu", "--lanes",
                                      "-p", "8", "-n", "2", "-r", "1", "--json"},
                                     kTwoVulkan);
  ASSERT_EQ(result.status, 0) << result.err;
  const Json bench = Json::parse(result.out, nullptr, false);
  ASSERT_TRUE(bench.is_object()) << result.out;
  std::vector<std::string> names;
  for (const Json& lane : bench["lanes"]) {
    SCOPED_TRACE(lane.dump());
    names.push_back(lane["lane"]);
    ExpectSamples(lane["prompt_tok_s"], 1);
    ExpectSamples(lane["decode_tok_s"], 1);
    EXPECT_LT(lane["nmse"], 1e-6);
    std::uint64_t rows = 0;
    for (const Json& target : lane["targets"]) rows += target["rows"].get<std::uint64_t>();
    // A repeat and a warm-up, 4 layers of 2 experts.
    EXPECT_EQ(rows, 2U * (8 + 2) * 4 * 2);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"single", "layers", "hot-cold", "remote", "split"}));
  const Json& lanes = bench["lanes"];
  EXPECT_EQ(lanes[0]["path"], "single");
  EXPECT_EQ(lanes[0]["nmse"], 0);
  EXPECT_EQ(lanes[2]["path"], "hot-cold");
  EXPECT_EQ(lanes[3]["targets"][1]["name"], "worker(cpu)");
  EXPECT_EQ(lanes[4]["path"], "multi");
  EXPECT_EQ(lanes[1]["policy"], "layers");
  // The same bytes, as experts and as whole layers.
  EXPECT_EQ(lanes[1]["summary"], lanes[4]["summary"]);
}

TEST(BenchCommandTest, LanesThatAreNotPossibleSayWhy) {
  const ProgramResult result =
      Bench({"--targets", "cpu", "--lanes", "-p", "4", "-n", "0", "-r", "1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("LANE      PROMPT TOK/S  DECODE TOK/S"));
  EXPECT_THAT(result.out, HasSubstr("absent: --targets has no device beside the cpu"));
  ExpectOneErrorLine(Bench({"--targets", "cpu", "--lanes", "--plan", "p.json"}), 2, "--plan");
}

TEST(BenchCommandTest, PeopleGetATable) {
  const ProgramResult result = Bench({"--targets", "cpu", "-p", "8", "-n", "2", "-r", "1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("prompt 8"));
  EXPECT_THAT(result.out, HasSubstr("generate 2"));
  EXPECT_THAT(result.out, HasSubstr("tokens/s"));
}

TEST(BenchCommandTest, RefusesWhatCannotBeMeasured) {
  ExpectOneErrorLine(Bench({"--targets", "cpu", "-p", "0", "-n", "0"}), 2, "nothing to measure");
  ExpectOneErrorLine(Bench({"--targets", "cpu", "-r", "0"}), 2, "-r");
}

}  // namespace
}  // namespace test
