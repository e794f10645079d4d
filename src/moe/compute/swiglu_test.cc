#include "moe/compute/swiglu.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace moe {
namespace {

float Silu(float x) {
  const float one = 1.0f;
  float out = 0;
  SwiGlu(&x, &one, &out, 1);
  return out;
}

TEST(SwiGlu, IsWithinFourUlpOfTheExactValue) {
  for (float x = -86.0f; x < 200.0f; x += 0.00731f) {
    const double exact = static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    const float nearest = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::abs(std::nextafter(nearest, INFINITY) - nearest));
    ASSERT_LE(std::abs(static_cast<double>(Silu(x)) - exact), 4 * ulp) << x;
  }
  EXPECT_EQ(Silu(0.0f), 0.0f);
}

TEST(SwiGlu, VeryNegativeGatesGiveNothing) {
  for (const float x : {-87.5f, -1000.0f, std::numeric_limits<float>::lowest()}) {
    EXPECT_LE(std::abs(Silu(x)), std::max(1e-35f, std::abs(x) * 1e-38f)) << x;
  }
}

TEST(SwiGlu, NanStaysNan) {
  EXPECT_TRUE(std::isnan(Silu(NAN)));
  const float gate = 1.0f;
  const float up = NAN;
  float out = 0;
  SwiGlu(&gate, &up, &out, 1);
  EXPECT_TRUE(std::isnan(out));
}

TEST(SwiGlu, AnElementDoesNotDependOnItsPlace) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> gate(131);
  std::vector<float> up(131);
  for (float& value : gate) value = normal(random);
  for (float& value : up) value = normal(random);
  std::vector<float> together(131);
  SwiGlu(gate.data(), up.data(), together.data(), 131);
  for (std::size_t i = 0; i < 131; ++i) {
    float alone = 0;
    SwiGlu(gate.data() + i, up.data() + i, &alone, 1);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(alone), std::bit_cast<std::uint32_t>(together[i])) << i;
  }
}

}  // namespace
}  // namespace moe
