// `expert-split plan` on generated models: present, absent and too small targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "program.h"

namespace test {
namespace {

using Json = nlohmann::json;

const std::string kTwoVulkan = "GGML_VK_VISIBLE_DEVICES=0,0";
const std::string kNoVulkan = "GGML_VK_VISIBLE_DEVICES=";
// 4 layers of 8 experts.
const std::string kTiny = EXPERT_SPLIT_MODELS "/plan_tiny.gguf";
// 60 layers of 512 experts, full-size metadata without data.
const std::string kBig = EXPERT_SPLIT_MODELS "/plan_397b.gguf";

ProgramResult Plan(const std::string& model, const std::string& targets,
                   std::vector<std::string> more = {}, const std::string& vulkan = kNoVulkan) {
  std::vector<std::string> arguments = {"plan", "--model", model, "--targets", targets};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunExpertSplit(arguments, {vulkan});
}

Json PlanJson(const std::string& model, const std::string& targets,
              std::vector<std::string> more = {}, const std::string& vulkan = kNoVulkan) {
  more.push_back("--json");
  const ProgramResult result = Plan(model, targets, std::move(more), vulkan);
  EXPECT_EQ(result.status, 0) << result.err;
  Json plan = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(plan.is_object()) << result.out.substr(0, 200);
  return plan;
}

void ExpectOneErrorLine(const ProgramResult& result, int status, std::string_view part) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("expert-split: error: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

// The parts of the document agree with each other.
void ExpectConsistent(const Json& plan, std::size_t layers, std::size_t experts) {
  EXPECT_EQ(plan["units"], layers * experts);
  EXPECT_TRUE(std::regex_match(plan["fingerprint"].get<std::string>(), std::regex("[0-9a-f]{16}")));
  ASSERT_EQ(plan["layers"].size(), layers);
  std::vector<std::size_t> owned(plan["targets"].size());
  for (const Json& layer : plan["layers"]) {
    ASSERT_EQ(layer.size(), experts);
    for (const Json& owner : layer) ++owned.at(owner.get<std::size_t>());
  }
  double share = 0;
  std::string summary;
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const Json& target = plan["targets"][i];
    EXPECT_EQ(target["units"], owned[i]);
    if (!target["capacity"].is_null()) {
      EXPECT_LE(target["bytes"], target["capacity"]);
    }
    share += target["expected_share"].get<double>();
    summary +=
        (i == 0 ? "" : "|") + target["name"].get<std::string>() + "=" + std::to_string(owned[i]);
  }
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_EQ(plan["summary"], summary);
}

TEST(PlanCommandTest, FullSizeModelOverTwoVulkanDevicesAndTheCpu) {
  const Json plan = PlanJson(kBig, "vulkan:0=500MiB,vulkan:1=100MiB,cpu", {}, kTwoVulkan);
  ExpectConsistent(plan, 60, 512);
  EXPECT_EQ(plan["units"], 30720);
  EXPECT_EQ(plan["path"], "multi");
  EXPECT_GT(plan["targets"][0]["units"], plan["targets"][1]["units"]);
  EXPECT_GT(plan["targets"][1]["units"], 0);
  EXPECT_EQ(plan["targets"][0]["capacity"], 500 << 20);
  EXPECT_TRUE(plan["targets"][2]["capacity"].is_null());
}

TEST(PlanCommandTest, TargetsThatThisMachineLacksCanBePlannedFor) {
  const Json plan = PlanJson(kBig, "cuda:0=20GiB,cuda:1=12GiB,hip:0=16GiB,cpu=64GiB");
  ExpectConsistent(plan, 60, 512);
  EXPECT_EQ(plan["path"], "multi");
  EXPECT_EQ(plan["targets"][2]["name"], "hip:0");
  for (const Json& target : plan["targets"]) EXPECT_GT(target["units"], 0) << target;
}

TEST(PlanCommandTest, TextIsThePlacementLineAndATable) {
  const ProgramResult result = Plan(kTiny, "cuda:0=50%,cpu");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(std::regex_search(
      result.out,
      std::regex("^\\[expert-split\\] plan cuda:0=16\\|cpu=16 units=32 path=hot-cold "
                 "fingerprint=[0-9a-f]{16}\nTARGET +UNITS +BYTES +CAPACITY +SHARE\ncuda:0 +16 ")))
      << result.out;
}

TEST(PlanCommandTest, PathFollowsTheOwners) {
  EXPECT_EQ(PlanJson(kTiny, "cpu")["path"], "single");
  EXPECT_EQ(PlanJson(kTiny, "vulkan:0=0,cpu", {}, kTwoVulkan)["path"], "hot-cold");
  EXPECT_EQ(PlanJson(kTiny, "vulkan:0,vulkan:1,cpu", {}, kTwoVulkan)["path"], "single");
  EXPECT_EQ(PlanJson(kTiny, "worker(cpu)=1MiB,cpu")["path"], "hot-cold");
  EXPECT_EQ(PlanJson(kTiny, "vulkan:0=0,vulkan:1,cpu", {}, kTwoVulkan)["path"], "multi");
}

TEST(PlanCommandTest, LayersPolicyKeepsLayersWhole) {
  const Json plan = PlanJson(kTiny, "cuda:0=50%,cpu", {"--policy", "layers"});
  ExpectConsistent(plan, 4, 8);
  for (const Json& layer : plan["layers"]) {
    for (const Json& owner : layer) EXPECT_EQ(owner, layer[0]);
  }
  EXPECT_EQ(plan["targets"][0]["units"], 16);
}

TEST(PlanCommandTest, WritesTheSamePlanThatItShows) {
  const std::string path = ::testing::TempDir() + "plan_command_test.json";
  const Json shown = PlanJson(kTiny, "cuda:0=25%,cpu", {"--out", path});
  auto content = base::ReadFile(path, base::Bytes::MiB(1));
  std::filesystem::remove(path);
  ASSERT_TRUE(content) << content.error().message;
  EXPECT_EQ(Json::parse(*content)["fingerprint"], shown["fingerprint"]);
  EXPECT_EQ(PlanJson(kTiny, "cuda:0=25%,cpu")["fingerprint"], shown["fingerprint"]);
  EXPECT_NE(PlanJson(kTiny, "cuda:0=50%,cpu")["fingerprint"], shown["fingerprint"]);
}

TEST(PlanCommandTest, FaultsOfTheCommandLineAreStatus2) {
  ExpectOneErrorLine(RunExpertSplit({"plan"}), 2, "--model");
  ExpectOneErrorLine(Plan(kTiny, "cpu,,cpu"), 2, "item 2");
  ExpectOneErrorLine(Plan(kTiny, "gpu:0,cpu"), 2, "vulkan");
  ExpectOneErrorLine(Plan(kTiny, "cpu=20G"), 2, "20GiB");
  ExpectOneErrorLine(Plan(kTiny, "worker(cpu)=1MiB"), 2, "worker");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--policy", "best"}), 2, "ordered");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--ctx", "0"}), 2, "--ctx");
}

TEST(PlanCommandTest, AbsentDeviceWithoutASizeNamesThePresentOnes) {
  ExpectOneErrorLine(Plan(kTiny, "cpu,cuda:0", {}, kTwoVulkan), 2,
                     "present are vulkan:0, vulkan:1, cpu");
}

TEST(PlanCommandTest, FilesThatCannotBeUsedAreStatus3) {
  ExpectOneErrorLine(Plan("/nonexistent/m.gguf", "cpu"), 3, "/nonexistent/m.gguf");
  ExpectOneErrorLine(Plan(EXPERT_SPLIT_BINARY, "cpu"), 3, "GGUF");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--profile", "/nonexistent/p.json"}), 3, "p.json");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--profile", kTiny}), 3, "plan_tiny.gguf");
}

TEST(PlanCommandTest, TargetsTooSmallTogetherAreStatus4AndSayHowMuchIsMissing) {
  ExpectOneErrorLine(Plan(kBig, "cuda:0=20GiB,cpu=1GiB"), 4, "missing");
  ExpectOneErrorLine(Plan(kBig, "cuda:0=20GiB,cpu=1GiB"), 4, "cuda:0");
}

}  // namespace
}  // namespace test
