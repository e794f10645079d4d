#include "base/utf8.h"

#include <gtest/gtest.h>

namespace base {
namespace {

using std::string_view_literals::operator""sv;

TEST(Utf8Test, AcceptsWellFormedText) {
  for (const std::string_view text :
       {""sv, "plain"sv, "\0zero"sv, "caf\xc3\xa9"sv, "\xe2\x82\xac"sv, "\xf0\x9f\x99\x82"sv,
        "\xc2\x80"sv, "\xdf\xbf"sv, "\xe0\xa0\x80"sv, "\xed\x9f\xbf"sv, "\xee\x80\x80"sv,
        "\xf0\x90\x80\x80"sv, "\xf4\x8f\xbf\xbf"sv}) {
    EXPECT_EQ(FindNonUtf8(text), std::nullopt) << text;
  }
}

TEST(Utf8Test, FindsTheFirstByteThatIsNoText) {
  for (const std::string_view wrong :
       {"\x80"sv, "\xc0\xaf"sv, "\xc1\xbf"sv, "\xc3"sv, "\xc3("sv, "\xe0\x9f\xbf"sv, "\xe2\x82"sv,
        "\xe2("sv, "\xed\xa0\x80"sv, "\xf0\x8f\xbf\xbf"sv, "\xf0\x9f\x99"sv, "\xf4\x90\x80\x80"sv,
        "\xf5\x80\x80\x80"sv, "\xff"sv}) {
    EXPECT_EQ(FindNonUtf8(wrong), 0u) << wrong;
    EXPECT_EQ(FindNonUtf8("caf\xc3\xa9 " + std::string(wrong)), 6u) << wrong;
  }
}

}  // namespace
}  // namespace base
