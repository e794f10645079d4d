// Ctrl-C while `expert-split run` and `perplexity` work: they end soon, say so in one line and give
// the status of an interrupted program.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "program.h"
#include "support/test_models.h"

namespace test {
namespace {

constexpr std::string_view kPlacementLine = "[expert-split] plan";

// What stderr holds besides the placement line.
std::string Complaint(const ProgramResult& result) {
  EXPECT_TRUE(result.err.starts_with(kPlacementLine)) << result.err;
  return result.err.substr(result.err.find('\n') + 1);
}

class RunInterruptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(base::WriteFileAtomically(text_, std::string(3990, 'a')));
  }
  void TearDown() override {
    const std::filesystem::directory_iterator files(folder_);
    EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "a file was left behind";
    std::filesystem::remove_all(folder_);
  }

  // Steps of one token, so that the prompt or text takes long enough to be interrupted.
  std::vector<std::string> Command(std::vector<std::string> words) const {
    words.insert(words.end(), {"--model", ModelPath("tiny-f32"), "--targets", "cpu", "--threads",
                               "1", "--ctx", "3990", "--batch", "1"});
    return words;
  }

  std::filesystem::path folder_ = ::testing::TempDir() + "run_interrupt_test";
  std::string text_ = folder_ / "text";
};

TEST_F(RunInterruptTest, DuringThePromptNothingIsPrinted) {
  const ProgramResult result =
      InterruptExpertSplit(Command({"run", "--prompt-file", text_, "-n", "1"}), {kNoVulkan},
                           Stream::kErr, kPlacementLine);
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(Complaint(result), "expert-split: error: stopped\n");
}

TEST_F(RunInterruptTest, DuringDecodingTheTextSoFarStaysOnALineOfItsOwn) {
  const ProgramResult result =
      InterruptExpertSplit(Command({"run", "-p", "a", "-n", "3900", "--ignore-eos", "--temp", "0"}),
                           {kNoVulkan}, Stream::kOut, "");
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_GT(result.out.size(), 1U);
  EXPECT_TRUE(result.out.ends_with('\n'));
  EXPECT_EQ(Complaint(result), "expert-split: error: stopped\n");
}

// The dense part alone takes seconds to copy; llvmpipe refuses its embeddings before.
TEST_F(RunInterruptTest, WhileLoadingNothingIsComputed) {
  const ProgramResult targets = RunExpertSplit({"targets", "--json"}, {kTwoVulkan});
  if (targets.out.find("llvmpipe") == std::string::npos) GTEST_SKIP() << "no software device";
  const ProgramResult result = InterruptExpertSplit(
      {"run", "--model", ModelPath("plan_397b"), "--targets", "vulkan:0=500MiB,vulkan:1=100MiB,cpu",
       "--ctx", "256", "-p", "a", "-n", "1"},
      {kTwoVulkan}, Stream::kErr, "it stays on the CPU");
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.ends_with("expert-split: error: loading was interrupted\n")) << result.err;
  EXPECT_EQ(result.err.find(kPlacementLine), std::string::npos) << result.err;
}

TEST_F(RunInterruptTest, JsonOfAnInterruptedRunIsNotPrinted) {
  const ProgramResult result = InterruptExpertSplit(
      Command({"run", "-p", "a", "-n", "3900", "--ignore-eos", "--temp", "0", "--json"}),
      {kNoVulkan}, Stream::kErr, kPlacementLine);
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(Complaint(result), "expert-split: error: stopped\n");
}

TEST_F(RunInterruptTest, PerplexityEndsWithoutANumber) {
  const ProgramResult result = InterruptExpertSplit(Command({"perplexity", "--text", text_}),
                                                    {kNoVulkan}, Stream::kErr, kPlacementLine);
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(Complaint(result), "expert-split: error: stopped\n");
}

}  // namespace
}  // namespace test
