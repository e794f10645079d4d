// `expert-split plan` on generated models: present, absent and too small targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "program.h"

namespace test {
namespace {

using Json = nlohmann::json;

// 4 layers of 8 experts of 768 KiB.
const std::string kTiny = EXPERT_SPLIT_MODELS "/plan_tiny.gguf";
const std::string kHalfOfTiny = "12MiB";
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

// A routing profile of kTiny in which two layers are uneven, as a file of the temporary folder.
std::string WriteProfile(const std::string& name) {
  const std::string path = ::testing::TempDir() + name;
  // Its identity is the one that a plan file of the model states.
  PlanJson(kTiny, "cpu", {"--out", path});
  auto plan = base::ReadFile(path, base::Bytes::MiB(1));
  EXPECT_TRUE(plan) << plan.error().message;
  const Json uneven = {400, 300, 200, 60, 10, 10, 10, 10};
  const Json even = {125, 125, 125, 125, 125, 125, 125, 125};
  const Json profile = {{"format", "expert-split-profile"},
                        {"version", 1},
                        {"model", Json::parse(*plan)["model"]},
                        {"text", "made for a test"},
                        {"num_tokens", 500},
                        {"counts", {uneven, uneven, even, even}}};
  std::ofstream(path, std::ios::trunc) << profile.dump();
  return path;
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
  const ProgramResult result = Plan(kTiny, "cuda:0=" + kHalfOfTiny + ",cpu");
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
  const Json plan = PlanJson(kTiny, "cuda:0=" + kHalfOfTiny + ",cpu", {"--policy", "layers"});
  ExpectConsistent(plan, 4, 8);
  for (const Json& layer : plan["layers"]) {
    for (const Json& owner : layer) EXPECT_EQ(owner, layer[0]);
  }
  EXPECT_EQ(plan["targets"][0]["units"], 16);
}

TEST(PlanCommandTest, WritesTheSamePlanThatItShows) {
  const std::string path = ::testing::TempDir() + "plan_command_test.json";
  const Json shown = PlanJson(kTiny, "cuda:0=8MiB,cpu", {"--out", path});
  auto content = base::ReadFile(path, base::Bytes::MiB(1));
  std::filesystem::remove(path);
  ASSERT_TRUE(content) << content.error().message;
  EXPECT_EQ(Json::parse(*content)["fingerprint"], shown["fingerprint"]);
  EXPECT_EQ(PlanJson(kTiny, "cuda:0=8MiB,cpu")["fingerprint"], shown["fingerprint"]);
  EXPECT_NE(PlanJson(kTiny, "cuda:0=9MiB,cpu")["fingerprint"], shown["fingerprint"]);
}

TEST(PlanCommandTest, PercentagesAreOfTheModelsExperts) {
  const Json plan = PlanJson(kTiny, "vulkan:0=25%,vulkan:1=12.5%,cpu", {}, kTwoVulkan);
  EXPECT_EQ(plan["summary"], "vulkan:0=8|vulkan:1=4|cpu=20");
  EXPECT_EQ(plan["targets"][0]["capacity"], 6 << 20);
}

// Without a floor the first target takes the hottest experts whichever layers they are of.
TEST(PlanCommandTest, ProfileDecidesAndTheFloorOfEachLayerCanBeSwitchedOff) {
  const std::string path = WriteProfile("plan_command_floor.json");
  // 8 units fit: the top 2 of each of 4 layers with the floor.
  const std::string list = "cuda:0=6MiB,cpu";
  const auto units_per_layer = [](const Json& plan) {
    std::vector<std::ptrdiff_t> units;
    for (const Json& layer : plan["layers"]) units.push_back(std::ranges::count(layer, Json(0)));
    return units;
  };
  const std::vector<std::string> profile = {"--profile", path};
  const Json floor = PlanJson(kTiny, list, profile);
  EXPECT_EQ(units_per_layer(floor), (std::vector<std::ptrdiff_t>{2, 2, 2, 2}));
  EXPECT_EQ(PlanJson(kTiny, list, {"--profile", path, "--layer-floor", "on"}), floor);
  const Json none = PlanJson(kTiny, list, {"--profile", path, "--layer-floor", "off"});
  EXPECT_EQ(units_per_layer(none), (std::vector<std::ptrdiff_t>{3, 3, 1, 1}));
  EXPECT_GT(none["targets"][0]["expected_share"], floor["targets"][0]["expected_share"]);
  std::filesystem::remove(path);
}

// Speeds of an imagined machine: nothing is measured.
const std::string kAssumed = "cuda:0=1000GB/s@2GiB,cpu=50GB/s";

TEST(PlanCommandTest, AssumedTargetsNeedNoSize) {
  const Json plan = PlanJson(kTiny, "cuda:0,cpu", {"--assume", kAssumed});
  EXPECT_EQ(plan["summary"], "cuda:0=32|cpu=0");
  // Of 2 GiB something is left after the dense part and the margin; of 520 MiB hardly anything.
  const Json tight =
      PlanJson(kTiny, "cuda:0,cpu", {"--assume", "cuda:0=1000GB/s@520MiB", "--ctx", "128"});
  EXPECT_LT(tight["targets"][0]["units"], 32);
}

TEST(PlanCommandTest, BalancedSharesWhatOrderedGivesToOne) {
  const auto plan = [](const std::string& policy, const std::string& speed) {
    return PlanJson(kTiny, "cuda:0,cuda:1,cpu",
                    {"--policy", policy, "--assume",
                     "cuda:0=" + speed + "@2GiB,cuda:1=" + speed + "@2GiB,cpu=1MB/s"});
  };
  EXPECT_EQ(plan("ordered", "10MB/s")["summary"], "cuda:0=32|cuda:1=0|cpu=0");
  const Json shared = plan("balanced", "10MB/s");
  ExpectConsistent(shared, 4, 8);
  EXPECT_EQ(shared["summary"], "cuda:0=16|cuda:1=16|cpu=0");
  EXPECT_EQ(shared, plan("balanced", "10MB/s"));
  // Where handing over takes longer than the work, nothing is handed over.
  EXPECT_EQ(plan("balanced", "1TB/s")["summary"], "cuda:0=32|cuda:1=0|cpu=0");
}

TEST(PlanCommandTest, ComparesThePoliciesOnTheSameBytes) {
  const std::string path = WriteProfile("plan_command_compare.json");
  const std::vector<std::string> more = {"--profile", path, "--compare", "--assume", kAssumed};
  const Json plan = PlanJson(kTiny, "cuda:0=25%,cpu", more);
  const Json& compare = plan["compare"];
  EXPECT_EQ(compare["fastest"], "cuda:0");
  EXPECT_EQ(compare["speeds"][1]["name"], "cpu");
  EXPECT_EQ(compare["speeds"][1]["decode_bytes_per_second"], 50e9);
  ASSERT_EQ(compare["policies"].size(), 3u);
  double slowest = 0, balanced = 0;
  for (const Json& policy : compare["policies"]) {
    EXPECT_TRUE(policy["fits"]) << policy;
    EXPECT_GT(policy["decode_ms"], 0) << policy;
    EXPECT_GT(policy["prompt_ms"], 0) << policy;
    slowest = std::max(slowest, policy["decode_ms"].get<double>());
    if (policy["policy"] == "balanced") balanced = policy["decode_ms"];
    // Whole layers hold a quarter of the traffic in a quarter of the bytes.
    if (policy["policy"] == "layers") {
      EXPECT_NEAR(policy["fastest_share"].get<double>(), 0.25, 1e-9);
    }
    if (policy["policy"] == "ordered") {
      EXPECT_GT(policy["fastest_share"], 0.3);
    }
  }
  EXPECT_LT(balanced, slowest);

  const ProgramResult table = Plan(kTiny, "cuda:0=25%,cpu", more);
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_TRUE(std::regex_search(table.out, std::regex("POLICY +TOKEN +PROMPT TOKEN +SHARE ON "
                                                      "cuda:0 +UNITS\nordered +[0-9.]+ ms")))
      << table.out;
  const ProgramResult tight =
      Plan(kTiny, "cuda:0=3MiB,cpu=22MiB", {"--compare", "--assume", kAssumed});
  EXPECT_EQ(tight.status, 0) << tight.err;
  EXPECT_NE(tight.out.find("whole layers fit in no order"), std::string::npos) << tight.out;
  std::filesystem::remove(path);
}

// The CPU is measured once and remembered.
TEST(PlanCommandTest, SpeedsAreMeasuredOnceAndKept) {
  const std::string cache = ::testing::TempDir() + "plan_command_cache";
  std::filesystem::remove_all(cache);
  const auto plan = [&] {
    return RunExpertSplit({"plan", "--model", kTiny, "--targets", "cpu", "--policy", "balanced"},
                          {kNoVulkan, "XDG_CACHE_HOME=" + cache});
  };
  const ProgramResult first = plan();
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_NE(first.err.find("measured cpu: "), std::string::npos) << first.err;
  const ProgramResult second = plan();
  EXPECT_EQ(second.status, 0);
  EXPECT_EQ(second.err, "");
  EXPECT_EQ(second.out, first.out);
  // A damaged file costs a measurement and nothing else.
  std::ofstream(cache + "/expert-split/speeds.json", std::ios::trunc) << "{";
  EXPECT_NE(plan().err.find("measured cpu: "), std::string::npos);
  EXPECT_EQ(plan().err, "");
  std::filesystem::remove_all(cache);
}

TEST(PlanCommandTest, DrawsThePlan) {
  const std::string path = ::testing::TempDir() + "plan_command.svg";
  EXPECT_EQ(Plan(kBig, "cuda:0=20GiB,cpu", {"--svg", path}).status, 0);
  const auto svg = base::ReadFile(path, base::Bytes::MiB(2));
  std::filesystem::remove(path);
  ASSERT_TRUE(svg) << svg.error().message;
  EXPECT_TRUE(svg->starts_with("<svg "));
  EXPECT_NE(svg->find("60 layers x 512 experts"), std::string::npos);
}

TEST(PlanCommandTest, WhatCannotBeAssumedDrawnOrComparedIsStatus2AndWritesNothing) {
  const std::string out = ::testing::TempDir() + "plan_command_nothing.json";
  const auto refused = [&](std::vector<std::string> more, std::string_view part) {
    SCOPED_TRACE(part);
    more.insert(more.end(), {"--out", out});
    ExpectOneErrorLine(Plan(kTiny, "cuda:0=6MiB,cpu", std::move(more)), 2, part);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused({"--assume", "cuda:0"}, "--assume item 1 \"cuda:0\": no speed");
  refused({"--assume", "cuda:0=0/s"}, "speed \"0\" is 0");
  refused({"--assume", "cpu=1GB/s,cuda:0=fast/s"}, "--assume item 2");
  refused({"--assume", "cuda:0=1GB/s@20G"}, "20GiB");
  refused({"--svg", "/nonexistent/p.svg"}, "/nonexistent/p.svg");
  refused({"--compare", "--assume", "cpu=50GB/s"}, "--assume cuda:0=900GB/s");
  refused({"--policy", "balanced", "--assume", "cpu=50GB/s"}, "its speed is unknown");
}

TEST(PlanCommandTest, FaultsOfTheCommandLineAreStatus2) {
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--layer-floor", "maybe"}), 2, "on,off");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--out", "/nonexistent/p.json"}), 2,
                     "/nonexistent/p.json");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--out", "/"}), 2, "Is a directory");

  ExpectOneErrorLine(RunExpertSplit({"plan"}), 2, "--model");
  ExpectOneErrorLine(Plan(kTiny, "cpu,,cpu"), 2, "item 2");
  ExpectOneErrorLine(Plan(kTiny, "gpu:0,cpu"), 2, "vulkan");
  ExpectOneErrorLine(Plan(kTiny, "cpu=20G"), 2, "20GiB");
  ExpectOneErrorLine(Plan(kTiny, "worker(cpu)=1MiB"), 2, "worker");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--policy", "best"}), 2, "ordered");
  ExpectOneErrorLine(Plan(kTiny, "cpu", {"--ctx", "0"}), 2, "--ctx");
}

// Each kind of error of the target list, as docs/targets.md lists them.
TEST(PlanCommandTest, ErrorsOfTheTargetListNameItemPositionTextAndWhatIsAccepted) {
  const std::vector<std::vector<std::string>> cases = {
      {"", "--targets: the list is empty"},
      {" ", "target list \" \" is empty"},
      {"cpu,,cuda:0=1GiB", "item 2 \"\": the item is empty; accepted is"},
      {"cpu,gpu:0", "item 2 \"gpu:0\": unknown kind \"gpu\"; known kinds are cuda, hip"},
      {"cpu,cuda:0", "item 2 \"cuda:0\": missing device; present are cpu"},
      {"cpu,cuda:0=50%", "item 2 \"cuda:0\": missing device; present are cpu"},
      {"cpu,worker(cuda:0)", "item 2 \"worker(cuda:0)\": missing device; present are cpu"},
      {"cpu,rocm:0=1GiB,hip:0=1GiB", "item 3 \"hip:0=1GiB\": duplicate of item 2"},
      {"cpu=20G", "item 1 \"cpu=20G\": bad size \"20G\": write 20GiB"},
      {"cpu=101%", "item 1 \"cpu=101%\": bad percentage \"101%\""},
      {"cuda:x=1GiB,cpu", "bad device index \"x\"; accepted are digits"},
      {"cpu:x", "bad NUMA node \"x\""},
      {"cpu,unix:w.sock=1GiB", "bad path \"w.sock\": it is not absolute"},
      {"cpu,rpc:[::1]:50052=1GiB", "IPv6 is not possible"},
      {"cpu,rpc:host:0=1GiB", "bad port \"0\""},
      {"cpu,worker(worker(cpu))", "is a worker inside a worker"},
      {"cpu,cpu:0", "cpu and cpu:NODE exclude each other"},
      {"vulkan:0=1GiB,worker(vulkan:0)", "needs a size on both"},
      {"worker(cpu)=1GiB", "no target that can run the dense part"},
      {"rpc:h:1=1GiB,unix:/w.sock=1GiB", "no target that can run the dense part"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each[0]);
    ExpectOneErrorLine(Plan(kTiny, each[0]), 2, each[1]);
  }
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

TEST(PlanCommandTest, ModelFilesThatCannotBeUsedAreNamedWithTheFault) {
  auto content = base::ReadFile(kTiny, base::Bytes::MiB(64));
  ASSERT_TRUE(content) << content.error().message;
  const std::string path = ::testing::TempDir() + "plan_command_model.gguf";
  const auto expect = [&](const std::string& bytes, std::string_view part) {
    SCOPED_TRACE(part);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    ExpectOneErrorLine(Plan(path, "cpu"), 3, part);
    ExpectOneErrorLine(Plan(path, "cpu"), 3, path);
  };
  const auto renamed = [&](std::string_view from, std::string_view to) {
    std::string changed = *content;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  expect(content->substr(0, content->size() / 2), "cut off");
  expect(content->substr(0, 1000), "cut off");
  expect(content->substr(0, 10), "cut off");
  expect("", "the file is empty");
  expect(renamed("blk.1.ffn_up_exps.weight", "blk.1.ffn_xx_exps.weight"),
         "blk.1.ffn_up_exps.weight");
  expect(renamed("blk.3.attn_q.weight", "blk.3.attn_x.weight"), "blk.3.attn_q.weight");
  expect(renamed("qwen35moe", "qwen99moe"),
         "\"qwen99moe\" is not supported; choose a model of qwen35moe");
  expect(renamed("qwen35moe.block_count", "qwen35moe.block_xxxxx"), "qwen35moe.block_count");
  std::filesystem::remove(path);
}

TEST(PlanCommandTest, ProfilesThatCannotBeUsedAreNamedWithTheFault) {
  const std::string path = WriteProfile("plan_command_profile.json");
  auto content = base::ReadFile(path, base::Bytes::MiB(1));
  ASSERT_TRUE(content);
  const auto expect = [&](const std::string& text, std::string_view part) {
    SCOPED_TRACE(part);
    std::ofstream(path, std::ios::trunc) << text;
    ExpectOneErrorLine(Plan(kTiny, "cpu", {"--profile", path}), 3, part);
    ExpectOneErrorLine(Plan(kTiny, "cpu", {"--profile", path}), 3, path);
  };
  expect("", "not a JSON document");
  expect(content->substr(0, content->size() / 2), "not a JSON document");
  Json changed = Json::parse(*content);
  changed["version"] = 99;
  expect(changed.dump(), "99");
  changed = Json::parse(*content);
  changed["counts"][1][2] = -1;
  expect(changed.dump(), "counts[1][2]");
  changed = Json::parse(*content);
  changed["model"]["architecture"] = "other";
  expect(changed.dump(), "other");
  std::filesystem::remove(path);
}

TEST(PlanCommandTest, TargetsTooSmallTogetherAreStatus4AndSayHowMuchIsMissing) {
  ExpectOneErrorLine(Plan(kBig, "cuda:0=20GiB,cpu=1GiB"), 4, "missing");
  ExpectOneErrorLine(Plan(kBig, "cuda:0=20GiB,cpu=1GiB"), 4, "cuda:0");
}

}  // namespace
}  // namespace test
