#include "base/quote.h"

#include <gtest/gtest.h>

#include <string>

namespace base {
namespace {

TEST(Quote, LeavesPrintableTextAlone) { EXPECT_EQ(Quote("cuda:0=20GiB"), "\"cuda:0=20GiB\""); }

TEST(Quote, EscapesWhatWouldBreakTheLineOrTheQuotes) {
  EXPECT_EQ(Quote("a\nb\tc"), "\"a\\x0ab\\x09c\"");
  EXPECT_EQ(Quote("\"\\"), "\"\\\"\\\\\"");
  EXPECT_EQ(Quote(std::string_view("\0\x7f", 2)), "\"\\x00\\x7f\"");
  EXPECT_EQ(Quote("\xc3\xa9"), "\"\\xc3\\xa9\"");
}

TEST(Quote, CutsLongTextAndSaysHowLongItWas) {
  EXPECT_EQ(Quote(std::string(80, 'x')), "\"" + std::string(80, 'x') + "\"");
  EXPECT_EQ(Quote(std::string(81, 'x')), "\"" + std::string(80, 'x') + "...\" (81 bytes)");
}

}  // namespace
}  // namespace base
