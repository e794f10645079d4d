#include "moe/target/capacity_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

namespace moe {
namespace {

std::uint64_t Size(std::string_view text) {
  const base::Result<base::Bytes> bytes = ParseSize(text);
  EXPECT_TRUE(bytes.has_value()) << text;
  return bytes ? bytes->count() : 0;
}

TEST(ParseSize, KnowsEveryUnit) {
  EXPECT_EQ(Size("7"), 7u);
  EXPECT_EQ(Size("7B"), 7u);
  EXPECT_EQ(Size("7KB"), 7'000u);
  EXPECT_EQ(Size("7MB"), 7'000'000u);
  EXPECT_EQ(Size("7GB"), 7'000'000'000u);
  EXPECT_EQ(Size("7TB"), 7'000'000'000'000u);
  EXPECT_EQ(Size("7KiB"), 7u << 10);
  EXPECT_EQ(Size("7MiB"), 7u << 20);
  EXPECT_EQ(Size("7GiB"), std::uint64_t{7} << 30);
  EXPECT_EQ(Size("7TiB"), std::uint64_t{7} << 40);
  EXPECT_EQ(Size("7tib"), std::uint64_t{7} << 40);
}

TEST(ParseSize, RoundsFractionsOfAByteDown) {
  EXPECT_EQ(Size("0.5KiB"), 512u);
  EXPECT_EQ(Size("0.9999KB"), 999u);
  EXPECT_EQ(Size("0.1TiB"), 109'951'162'777u);
}

TEST(ParseSize, HintsAtBothMeaningsOfAHalfUnit) {
  const base::Result<base::Bytes> bytes = ParseSize("20G");
  ASSERT_FALSE(bytes.has_value());
  EXPECT_EQ(bytes.error().kind, base::ErrorKind::kInvalidInput);
  EXPECT_THAT(bytes.error().message, ::testing::HasSubstr("20GiB"));
  EXPECT_THAT(bytes.error().message, ::testing::HasSubstr("20GB"));
  EXPECT_FALSE(ParseSize("").has_value());
}

TEST(SizeText, ReadsBackAsExactlyTheSameBytes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t count = random() >> (random() % 64) << (random() % 48);
    EXPECT_EQ(Size(SizeText(base::Bytes(count))), count);
  }
  EXPECT_EQ(Size(SizeText(base::Bytes::Max())), std::numeric_limits<std::uint64_t>::max());
}

TEST(CapacityText, ReadsBackAsTheSameCapacity) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20'000; ++i) {
    const TargetCapacity percent{
        .policy = CapacityPolicy::kPercent, .bytes = {}, .percent_e6 = random() % 100'000'001};
    const base::Result<TargetCapacity> read = ParseCapacity(CapacityText(percent));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(*read, percent);
  }
  EXPECT_EQ(*ParseCapacity(CapacityText(TargetCapacity{})), TargetCapacity{});
}

}  // namespace
}  // namespace moe
