#include "server/chat/utf8_stream.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace server {
namespace {

// Text that arrives byte by byte.
std::string ByBytes(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  for (const char byte : bytes) {
    const std::string shown = stream.Feed(std::string_view(&byte, 1));
    EXPECT_FALSE(base::FindNonUtf8(shown));
    text += shown;
  }
  return text + stream.Finish();
}

TEST(Utf8StreamTest, CharactersCutAnywhereComeOutWhole) {
  for (const std::string_view text : {"plain", "Grüße", "日本語", "👩‍🚀 🚀", ""}) {
    EXPECT_EQ(ByBytes(text), text);
    EXPECT_EQ(Utf8Stream().Feed(text), text);
  }
}

TEST(Utf8StreamTest, NothingOfAnIncompleteCharacterIsShown) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Feed("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Feed("\x9A"), "");
  EXPECT_EQ(stream.Feed("\x80z"), "\xF0\x9F\x9A\x80z");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Feed("\xE2\x82"), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
}

TEST(Utf8StreamTest, BytesThatBelongToNoCharacterAreReplaced) {
  EXPECT_EQ(ByBytes("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(ByBytes("\x80"), "\uFFFD");
  EXPECT_EQ(ByBytes("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(ByBytes("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(ByBytes("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(ByBytes("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
}

}  // namespace
}  // namespace server
