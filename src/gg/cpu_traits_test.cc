#include "gg/cpu_traits.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gg {
namespace {

class CpuTraitsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ggml_backend_load_all(); }
};

TEST_F(CpuTraitsTest, FindsTheLoadedModulesDotProducts) {
  const auto traits = CpuTraits::Loaded();
  ASSERT_TRUE(traits) << traits.error().message;
  EXPECT_FALSE(traits->portable());
  EXPECT_NE(traits->origin().find("ggml-cpu"), std::string::npos) << traits->origin();
  const auto q4_k = traits->Of(GGML_TYPE_Q4_K);
  ASSERT_TRUE(q4_k);
  EXPECT_NE(q4_k->vec_dot, nullptr);
  EXPECT_NE(q4_k->from_float, nullptr);
  EXPECT_EQ(q4_k->dot_type, GGML_TYPE_Q8_K);
  EXPECT_EQ(q4_k->block, 256u);
  EXPECT_EQ(q4_k->block_bytes, 144u);
}

TEST_F(CpuTraitsTest, TheDotProductOfFloatsIsOne) {
  const auto traits = CpuTraits::Loaded();
  ASSERT_TRUE(traits);
  const auto f32 = traits->Of(GGML_TYPE_F32);
  ASSERT_TRUE(f32);
  EXPECT_EQ(f32->dot_type, GGML_TYPE_F32);
  std::vector<float> a(100, 0.5f);
  std::vector<float> b(100, 4.0f);
  float dot = 0;
  f32->vec_dot(100, &dot, 0, a.data(), 0, b.data(), 0, 1);
  EXPECT_EQ(dot, 200.0f);
}

TEST_F(CpuTraitsTest, PortableTraitsDecodeToFloat) {
  const CpuTraits traits = CpuTraits::Portable();
  EXPECT_TRUE(traits.portable());
  const auto q8_0 = traits.Of(GGML_TYPE_Q8_0);
  ASSERT_TRUE(q8_0);
  EXPECT_EQ(q8_0->vec_dot, nullptr);
  EXPECT_NE(q8_0->to_float, nullptr);
  EXPECT_EQ(q8_0->dot_type, GGML_TYPE_F32);
  EXPECT_EQ(q8_0->dot_block, 1u);
}

TEST_F(CpuTraitsTest, RefusesTypesThatAreNoWeights) {
  const auto loaded = CpuTraits::Loaded();
  ASSERT_TRUE(loaded);
  for (const CpuTraits& traits : {*loaded, CpuTraits::Portable()}) {
    for (const int type : {-1, static_cast<int>(GGML_TYPE_COUNT), static_cast<int>(GGML_TYPE_I32),
                           4 /* removed from ggml */}) {
      const auto refused = traits.Of(type);
      ASSERT_FALSE(refused) << type;
      EXPECT_EQ(refused.error().kind, base::ErrorKind::kUnsupported);
    }
  }
  EXPECT_NE(loaded->Of(GGML_TYPE_I32).error().message.find("i32"), std::string::npos);
}

}  // namespace
}  // namespace gg
