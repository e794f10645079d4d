#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace base {
namespace {

// Values of other people's implementations: files name their model by this hash.
TEST(Fnv1aTest, BytesHashAsTheAlgorithmSays) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325ULL);
  Fnv1a hash;
  for (const char c : std::string_view("foobar")) hash.Byte(static_cast<std::uint8_t>(c));
  EXPECT_EQ(hash.value(), 0x85944171f73967e8ULL);
}

TEST(Fnv1aTest, TheLengthOfTextCounts) {
  Fnv1a split;
  split.Text("ab");
  split.Text("c");
  Fnv1a other;
  other.Text("a");
  other.Text("bc");
  EXPECT_NE(split.value(), other.value());
}

TEST(Fnv1aTest, NumbersAreEightLittleEndianBytes) {
  Fnv1a number;
  number.Number(0x0102030405060708);
  Fnv1a bytes;
  for (std::uint8_t byte = 8; byte > 0; --byte) bytes.Byte(byte);
  EXPECT_EQ(number.value(), bytes.value());
}

}  // namespace
}  // namespace base
