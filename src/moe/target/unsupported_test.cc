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

TEST(RefuseUnsupported, LetsEverythingElseRun) {
  EXPECT_TRUE(Refuse("cpu").has_value());
  EXPECT_TRUE(Refuse("cpu:0,cpu:1").has_value());
  EXPECT_TRUE(Refuse("cuda:0=1GiB,hip:0,vulkan:1,cpu").has_value());
  EXPECT_TRUE(Refuse("worker(vulkan:0),worker(cpu),worker(cpu:0),unix:/s,cpu").has_value());
  EXPECT_TRUE(Refuse("rpc:h:1/2,rpc:h:2,rpc:g:1,worker(rpc:h:3),cpu").has_value());
}

TEST(RefuseUnsupported, ASecondConnectionToAServerIsRefusedByName) {
  for (const std::string second : {"rpc:h:1/1", "worker(rpc:h:1)"}) {
    const base::Result<void> refused = Refuse("rpc:h:1=1MiB,cpu," + second + "=1MiB");
    ASSERT_FALSE(refused.has_value()) << second;
    EXPECT_EQ(refused.error().kind, base::ErrorKind::kUnsupported);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("item 3 \"" + second + "\""));
  }
}

}  // namespace
}  // namespace moe
