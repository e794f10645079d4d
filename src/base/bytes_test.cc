#include "base/bytes.h"

#include <gtest/gtest.h>

namespace base {
namespace {

TEST(BytesTest, DifferencesStopAtZero) {
  EXPECT_EQ(Bytes(5) - Bytes(7), Bytes(0));
  EXPECT_EQ(Bytes(7) - Bytes(5), Bytes(2));
  EXPECT_EQ(Bytes(0) - Bytes::Max(), Bytes(0));
}

TEST(BytesTest, SumsAndProductsStopAtTheLargestValue) {
  EXPECT_EQ(Bytes::Max() + Bytes(1), Bytes::Max());
  EXPECT_EQ(Bytes::Max() * 2, Bytes::Max());
  EXPECT_EQ(Bytes::GiB(2) * 3, Bytes::GiB(6));
}

TEST(BytesTest, FormatsForPeople) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(FormatBytes(Bytes(1536)), "1.5 KiB");
  EXPECT_EQ(FormatBytes(Bytes::GiB(20)), "20.0 GiB");
  EXPECT_EQ(FormatBytes(Bytes::MiB(1) - Bytes(1)), "1.0 MiB");
  EXPECT_EQ(FormatBytes(Bytes::Max()), "16.0 EiB");
}

}  // namespace
}  // namespace base
