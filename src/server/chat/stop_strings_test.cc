#include "server/chat/stop_strings.h"

#include <gtest/gtest.h>

namespace server {
namespace {

struct Shown {
  std::string text;
  std::string matched;
  friend bool operator==(const Shown&, const Shown&) = default;
};

// Feeds `text` in pieces of `size` bytes; at every moment what was shown must hold no stop string.
Shown Feed(const std::vector<std::string>& stops, const std::string& text, std::size_t size) {
  StopStrings stream(stops);
  std::string shown;
  for (std::size_t i = 0; i < text.size(); i += size) shown += stream.Feed(text.substr(i, size));
  shown += stream.Finish();
  return {shown, stream.matched()};
}

TEST(StopStringsTest, EndsAtTheFirstStopStringHoweverTheTextIsCut) {
  for (std::size_t size = 1; size < 12; ++size) {
    EXPECT_EQ(Feed({"END"}, "one two END three", size), (Shown{"one two ", "END"})) << size;
    EXPECT_EQ(Feed({"\n\n", "###"}, "a\nb###\n\n", size), (Shown{"a\nb", "###"})) << size;
    EXPECT_EQ(Feed({"aab"}, "aaaab", size), (Shown{"aa", "aab"})) << size;
    EXPECT_EQ(Feed({"END"}, "no such EN", size), (Shown{"no such EN", ""})) << size;
    EXPECT_EQ(Feed({}, "anything", size), (Shown{"anything", ""})) << size;
    EXPECT_EQ(Feed({""}, "anything", size), (Shown{"anything", ""})) << size;
    EXPECT_EQ(Feed({"日本"}, "日日本", size), (Shown{"日", "日本"})) << size;
  }
}

TEST(StopStringsTest, NeverShowsAPartOfAStopString) {
  StopStrings stream({"<|end|>"});
  EXPECT_EQ(stream.Feed("text <"), "text ");
  EXPECT_EQ(stream.Feed("|en"), "");
  EXPECT_EQ(stream.Feed("d? "), "<|end? ");
  EXPECT_EQ(stream.Feed("<|end"), "");
  EXPECT_EQ(stream.Feed("|> more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Feed("more"), "");
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace server
