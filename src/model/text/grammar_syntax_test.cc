#include "model/text/grammar_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(std::string_view grammar) {
  const auto checked = CheckGrammar(grammar);
  if (checked) return "accepted";
  EXPECT_EQ(checked.error().kind, base::ErrorKind::kInvalidInput);
  EXPECT_FALSE(checked.error().message.contains('\n')) << checked.error().message;
  return checked.error().message;
}

TEST(GrammarSyntaxTest, TakesEverythingThatGbnfHas) {
  for (const char* grammar :
       {"root ::= \"a\"",
        "\n# comment\nroot ::= a-1 | # this\n  b\r\na-1::=\"x\"\nb ::= [a-z0-9_-]",
        "root ::= ( \"a\"\n | \"b\" )* \"c\"+ \"d\"? \"e\"{2} \"f\"{2,} \"g\"{ 2 , 5 }",
        "root ::= [^\"\\\\\\x7F\\x00-\\x1F] \"\\u00e4\\U0001F680\\t\\r\\n\\[\\]\" .",
        "root ::= \"\" | []", "root ::= \"a\" |", "root ::=\n  \"a\"", "root ::= \"ä\" [ä-ö]"}) {
    EXPECT_EQ(Refusal(grammar), "accepted") << grammar;
  }
}

TEST(GrammarSyntaxTest, GivesTheNamedTokens) {
  const auto names = CheckGrammar("root ::= <think> !<b c>* <[17]>");
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_THAT(*names, ElementsAre("<think>", "<b c>"));
}

TEST(GrammarSyntaxTest, SaysWhatIsWrongAndWhere) {
  const struct {
    std::string grammar, place, what;
  } cases[] = {
      {"", "line 1, column 1", "'root'"},
      {"start ::= \"a\"", "line 1, column 1", "'root'"},
      {"nonsense", "line 1, column 9", "ends where '::='"},
      {"root = \"a\"", "line 1, column 6", "expected '::=', found \"= \\\"a\\\"\""},
      {"_ ::= \"a\"", "line 1, column 1", "name of a rule"},
      {"root ::= missing", "line 1, column 10", "no rule \"missing\""},
      {"root ::= \"a\nb ::= c", "line 1, column 10", "literal does not end"},
      {"root ::= [a-", "line 1, column 10", "class does not end"},
      {"root ::= \"a\"\nb ::= (\"c\"", "line 2, column 7", "group does not end"},
      {"root ::= (\"c\" ]", "line 1, column 15", "expected ')'"},
      {"root ::= \"c\" )", "line 1, column 14", "end of the rule"},
      {"root ::= \"c\"\n\"d\"", "line 2, column 1", "name of a rule"},
      {"root ::= *", "line 1, column 10", "nothing here to repeat"},
      {"root ::= \"a\" | +", "line 1, column 16", "nothing here to repeat"},
      {"root ::= \"a\"{", "line 1, column 14", "a number"},
      {"root ::= \"a\"{2", "line 1, column 15", "',' or '}'"},
      {"root ::= \"a\"{2,3", "line 1, column 17", "'}'"},
      {"root ::= \"a\"{3,1}", "line 1, column 13", "at least 3 but at most 1"},
      {"root ::= \"a\"{99999999999}", "line 1, column 14", "too large"},
      {"root ::= \"a\"{2000}", "line 1, column 13", "too many repetitions"},
      {"root ::= (\"a\"{0,100}){100}", "line 1, column 22", "too many repetitions"},
      {"root ::= \"\\q\"", "line 1, column 11", "unknown escape"},
      {"root ::= \"\\x1\"", "line 1, column 11", "2 hex digits"},
      {"root ::= <a", "line 1, column 10", "token"},
      {"root ::= <[1>", "line 1, column 13", "']>'"},
      {"root ::= !a", "line 1, column 11", "'<'"},
  };
  for (const auto& [grammar, place, what] : cases) {
    EXPECT_THAT(Refusal(grammar), HasSubstr(place)) << grammar;
    EXPECT_THAT(Refusal(grammar), HasSubstr(what)) << grammar;
  }
  EXPECT_THAT(Refusal("root ::= \"\xFF\""), HasSubstr("no UTF-8 at byte 10"));
  EXPECT_THAT(Refusal(std::string_view("root ::= \"\0\"", 12)), HasSubstr("null character"));
}

TEST(GrammarSyntaxTest, KeepsToItsLimits) {
  EXPECT_THAT(Refusal("root ::= " + std::string(100'000, '(')), HasSubstr("200 deep"));
  EXPECT_EQ(Refusal("root ::= \"" + std::string(1000, '(') + "\" [((((] # ((("), "accepted");
  EXPECT_THAT(Refusal(std::string(kMaxGrammarBytes + 1, ' ')), HasSubstr("bytes"));
  EXPECT_THAT(Refusal("root ::= \"" + std::string(500'000, 'a') + "\"{1999}"),
              HasSubstr("too many repetitions"));
  std::string many = "root ::= \"a\"\n";
  for (std::size_t i = 0; i < kMaxGrammarRules; ++i) many += "r" + std::to_string(i) + " ::= .\n";
  EXPECT_THAT(Refusal(many), HasSubstr("more than 16384 rules"));
}

}  // namespace
}  // namespace model
