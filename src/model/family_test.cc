#include "model/family.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "model/registry.h"
#include "support/fake_family.h"
#include "support/qwen35moe_bytes.h"

namespace model {
namespace {

using test_support::AsBytes;
using test_support::GgufBytes;
using ::testing::HasSubstr;
using ::testing::Not;

gg::GgufFile Parse(const GgufBytes& bytes) {
  auto file = gg::GgufFile::Parse(AsBytes(bytes.Build()), "m.gguf");
  EXPECT_TRUE(file) << file.error().message;
  return *std::move(file);
}

TEST(FamilyTest, DispatchesOnTheArchitecture) {
  EXPECT_TRUE(DescribeModel(Parse(test_support::Qwen35MoeBytes())));
  const std::array families = {test_support::kFakeFamily};
  auto fake = DescribeModel(Parse(test_support::FakeModelBytes()), families);
  ASSERT_TRUE(fake) << fake.error().message;
  EXPECT_EQ(fake->shape.identity.architecture, "fakemoe");
  EXPECT_EQ(fake->shape.layers.front().block, 1U);
  EXPECT_EQ(fake->shape.num_units(), 18U);
  EXPECT_FALSE(fake->stacks[0].up);
  EXPECT_TRUE(fake->stacks[1].up);
  EXPECT_EQ(fake->shape.unit_bytes(moe::LayerId(0)), fake->shape.unit_bytes(moe::LayerId(1)));
}

TEST(FamilyTest, NamesAnUnknownArchitectureAndTheSupportedOnes) {
  auto unknown = DescribeModel(Parse(GgufBytes().Text("general.architecture", "ll\nama")));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(unknown.error().message, HasSubstr("ll\\x0aama"));
  EXPECT_THAT(unknown.error().message, HasSubstr("qwen35moe"));
  EXPECT_THAT(unknown.error().message, Not(HasSubstr("\n")));
  auto none = DescribeModel(Parse(GgufBytes()));
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("general.architecture is missing"));
}

TEST(FamilyTest, NamesTheQuantisation) {
  EXPECT_EQ(FileTypeName(15), "Q4_K_M");
  EXPECT_EQ(FileTypeName(1024 + 7), "Q8_0");
  EXPECT_EQ(FileTypeName(4), "unknown");
  auto guessed = ReadIdentity(Parse(GgufBytes()
                                        .Text("general.architecture", "x")
                                        .Tensor("a", GGML_TYPE_F32, {32})
                                        .Tensor("b", GGML_TYPE_Q4_K, {256, 8})));
  ASSERT_TRUE(guessed);
  EXPECT_EQ(guessed->quantisation, "Q4_K");
}

TEST(FamilyTest, NeedsSaturateAndWithoutAttentionHaveNoCache) {
  DenseProfile dense{.weights = base::Bytes::Max(), .num_heads = 4, .kv_width = 64};
  const DenseNeeds needs = NeedsOf(dense, {});
  EXPECT_EQ(needs.kv_cache, base::Bytes());
  EXPECT_EQ(needs.total(), base::Bytes::Max());
}

}  // namespace
}  // namespace model
