// The file that llama.cpp's own test tool writes: fused gate and up, biases, scales of every kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <format>
#include <string>

#include "model/qwen35moe/directory.h"

namespace model::qwen35moe {
namespace {

std::string FindTool() {
  const std::filesystem::path libexec = "/usr/libexec";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(libexec, error)) {
    const auto tool = entry.path() / "llama.cpp-tests" / "test-llama-archs";
    if (std::filesystem::exists(tool, error)) return tool;
  }
  return "";
}

TEST(Qwen35MoeToyModelTest, IsDescribed) {
  const std::string tool = FindTool();
  if (tool.empty()) GTEST_SKIP() << "package llama.cpp-tests is not installed";
  const auto folder = std::filesystem::path(::testing::TempDir()) / "qwen35moe_toy_model_test";
  std::filesystem::create_directories(folder);
  const std::string command =
      std::format("'{}' -a qwen35moe -o '{}' >/dev/null 2>&1", tool, folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  auto file = gg::GgufFile::Open(folder / "qwen35moe-moe.gguf");
  ASSERT_TRUE(file) << file.error().message;
  auto model = Describe(*file);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->shape.num_units(), 4U);
  EXPECT_FALSE(model->stacks[0].up);
  EXPECT_EQ(model->stacks[1].down.scale, "blk.1.ffn_down_exps.scale");
  EXPECT_EQ(model->dense.num_attention_layers, 1U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace model::qwen35moe
