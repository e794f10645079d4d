// The program's surface: exit statuses, one error line, stdout for results only.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "program.h"

namespace test {
namespace {

using Json = nlohmann::json;

TEST(CliTest, HelpAndVersionGoToStdout) {
  const ProgramResult version = RunExpertSplit({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("expert-split ")) << version.out;
  EXPECT_EQ(version.err, "");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{}, {"--help"}, {"targets", "--help"}}) {
    const ProgramResult help = RunExpertSplit(arguments);
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Examples:\n  expert-split targets"), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
}

TEST(CliTest, FaultsOfTheCommandLineAreOneLineAndStatus2) {
  ExpectOneErrorLine(RunExpertSplit({"frobnicate"}), 2, "frobnicate");
  ExpectOneErrorLine(RunExpertSplit({"frobnicate"}), 2, "targets");
  ExpectOneErrorLine(RunExpertSplit({"--frobnicate"}), 2, "--frobnicate");
  ExpectOneErrorLine(RunExpertSplit({"targets", "--frobnicate"}), 2, "targets --help");
  ExpectOneErrorLine(RunExpertSplit({"targets", "two\nlines"}), 2, "two lines");
}

TEST(CliTest, TargetsWithoutVulkanListsTheCpu) {
  const ProgramResult result = RunExpertSplit({"targets", "--json"}, {kNoVulkan});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Json targets = Json::parse(result.out);
  ASSERT_FALSE(targets.empty());
  const Json& cpu = targets.back();
  EXPECT_EQ(cpu["name"], "cpu");
  EXPECT_EQ(cpu["backend"], "cpu");
  EXPECT_NE(cpu["description"], "");
  EXPECT_GT(cpu["memory_total"], 1 << 26);
  EXPECT_LE(cpu["memory_free"], cpu["memory_total"]);
  EXPECT_TRUE(cpu["device_id"].is_string());
}

TEST(CliTest, TargetsListsAVulkanDeviceThatIsVisibleTwice) {
  const ProgramResult result = RunExpertSplit({"targets", "--json"}, {kTwoVulkan});
  ASSERT_EQ(result.status, 0) << result.err;
  std::vector<std::string> names;
  for (const Json& target : Json::parse(result.out)) names.push_back(target["name"]);
  const auto first = std::ranges::find(names, "vulkan:0");
  ASSERT_NE(first, names.end());
  ASSERT_NE(first + 1, names.end());
  EXPECT_EQ(*(first + 1), "vulkan:1");
  EXPECT_EQ(names.back(), "cpu");
  const ProgramResult table = RunExpertSplit({"targets"}, {kTwoVulkan});
  EXPECT_TRUE(table.out.starts_with("TARGET ")) << table.out;
  EXPECT_NE(table.out.find("\nvulkan:1 "), std::string::npos) << table.out;
}

TEST(CliTest, VulkanDeviceNumberThatDoesNotExistIsRefused) {
  ExpectOneErrorLine(RunExpertSplit({"targets"}, {"GGML_VK_VISIBLE_DEVICES=99"}), 2,
                     "no Vulkan device 99");
  ExpectOneErrorLine(RunExpertSplit({"targets"}, {"GGML_VK_VISIBLE_DEVICES=gpu"}), 2, "gpu");
}

}  // namespace
}  // namespace test
