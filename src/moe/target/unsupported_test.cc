#include "moe/target/unsupported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace moe {
namespace {

base::Result<void> Refuse(std::string_view list) {
  base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(list);
  EXPECT_TRUE(config.has_value()) << list;
  return RefuseUnsupported(*config);
}

TEST(RefuseUnsupported, LetsCpuAndDevicesRun) {
  EXPECT_TRUE(Refuse("cpu").has_value());
  EXPECT_TRUE(Refuse("cpu:0,cpu:1").has_value());
  EXPECT_TRUE(Refuse("cuda:0=1GiB,hip:0,vulkan:1,cpu").has_value());
}

TEST(RefuseUnsupported, NamesTheTargetThatCannotRunYet) {
  const struct {
    std::string list;
    std::string named;
  } cases[] = {
      {"cpu,worker(vulkan:0)", "item 2 \"worker(vulkan:0)\": running a worker process"},
      {"rpc:h:1/2,cpu", "item 1 \"rpc:h:1/2\": running a remote ggml RPC device"},
      {"vulkan:0,cpu,unix:/s", "item 3 \"unix:/s\": running a worker process"},
  };
  for (const auto& c : cases) {
    const base::Result<void> refused = Refuse(c.list);
    ASSERT_FALSE(refused.has_value()) << c.list;
    EXPECT_EQ(refused.error().kind, base::ErrorKind::kUnsupported);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr(c.named));
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("not supported yet"));
  }
}

}  // namespace
}  // namespace moe
