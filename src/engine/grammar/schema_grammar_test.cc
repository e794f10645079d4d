#include "engine/grammar/schema_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/grammar/grammar_matcher.h"
#include "engine/grammar/grammar_text.h"
#include "engine/grammar/number_rules.h"
#include "engine/grammar/pattern_rules.h"

namespace engine {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class SchemaGrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = model::Vocabulary::Load(EXPERT_SPLIT_VOCABULARY_MODEL);
    ASSERT_TRUE(loaded) << loaded.error().message;
    vocabulary_ = std::make_unique<model::Vocabulary>(*std::move(loaded));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static bool Accepts(const std::string& grammar, std::string_view text) {
    return engine::Accepts(*vocabulary_, grammar, text);
  }
  static bool SchemaAccepts(const std::string& schema, std::string_view text) {
    const auto grammar = SchemaGrammar(Json::parse(schema));
    EXPECT_TRUE(grammar) << grammar.error().message;
    return grammar && Accepts(*grammar, text);
  }
  static std::string Refusal(const std::string& schema, base::ErrorKind kind) {
    const auto grammar = SchemaGrammar(Json::parse(schema));
    EXPECT_FALSE(grammar) << schema;
    if (grammar) return "accepted";
    EXPECT_EQ(grammar.error().kind, kind) << grammar.error().message;
    return grammar.error().message;
  }

  static std::unique_ptr<model::Vocabulary> vocabulary_;
};

std::unique_ptr<model::Vocabulary> SchemaGrammarTest::vocabulary_;

TEST_F(SchemaGrammarTest, AcceptsAndRejectsAsTheCasesSay) {
  std::ifstream file(EXPERT_SPLIT_SOURCE_DIR "/src/engine/grammar/schema_cases.jsonl");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json one = Json::parse(line);
    const auto grammar = SchemaGrammar(one["schema"]);
    ASSERT_TRUE(grammar) << grammar.error().message << "\n" << line;
    for (const Json& text : one["accept"]) {
      EXPECT_TRUE(Accepts(*grammar, text.get<std::string>())) << text << "\n" << line << *grammar;
    }
    for (const Json& text : one["reject"]) {
      EXPECT_FALSE(Accepts(*grammar, text.get<std::string>())) << text << "\n" << line << *grammar;
    }
  }
  EXPECT_GE(count, 50U);
}

TEST_F(SchemaGrammarTest, KeywordsOutsideTheListAreNamedWithTheirPath) {
  const auto kUnsupported = base::ErrorKind::kUnsupported;
  for (const std::string keyword :
       {"not", "if", "then", "else", "dependentRequired", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "uniqueItems", "contains", "multipleOf",
        "unevaluatedProperties", "$dynamicRef", "requird"}) {
    const std::string schema =
        R"({"type":"object","properties":{"a":{"items":{")" + keyword + R"(":2}}}})";
    EXPECT_THAT(Refusal(schema, kUnsupported),
                testing::AllOf(HasSubstr("'" + keyword + "'"), HasSubstr("#/properties/a/items")));
  }
  EXPECT_THAT(Refusal(R"({"format":"email"})", kUnsupported), HasSubstr("'email' at #"));
  EXPECT_THAT(Refusal(R"({"$ref":"http://x/y"})", kUnsupported), HasSubstr("http://x/y"));
  EXPECT_THAT(Refusal(R"({"type":"string","pattern":"a","minLength":2})", kUnsupported),
              HasSubstr("only one of"));
  EXPECT_THAT(Refusal(R"({"type":"number","minimum":0.5})", kUnsupported), HasSubstr("0.5"));
  EXPECT_THAT(Refusal(R"({"maxLength":100000000})", kUnsupported), HasSubstr("maxLength"));
  EXPECT_THAT(Refusal(R"({"minLength":1,"minimum":1})", kUnsupported), HasSubstr("without 'type'"));
}

TEST_F(SchemaGrammarTest, BrokenSchemasAreInvalid) {
  const auto kInvalid = base::ErrorKind::kInvalidInput;
  EXPECT_THAT(Refusal("3", kInvalid), HasSubstr("at #"));
  EXPECT_THAT(Refusal("false", kInvalid), HasSubstr("admits nothing"));
  EXPECT_THAT(Refusal(R"({"type":"text"})", kInvalid), HasSubstr("'text'"));
  EXPECT_THAT(Refusal(R"({"$ref":"#/nowhere"})", kInvalid), HasSubstr("points to nothing"));
  EXPECT_THAT(Refusal(R"({"$ref":"#"})", kInvalid), HasSubstr("leads to itself"));
  EXPECT_THAT(Refusal(R"({"$ref":"#","type":"object"})", kInvalid), HasSubstr("leads to itself"));
  EXPECT_THAT(Refusal(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", kInvalid),
              HasSubstr("leads to itself"));
  EXPECT_THAT(Refusal(R"({"anyOf":[]})", kInvalid), HasSubstr("anyOf"));
  EXPECT_THAT(Refusal(R"({"enum":[]})", kInvalid), HasSubstr("enum"));
  EXPECT_THAT(Refusal(R"({"minItems":3,"maxItems":2})", kInvalid), HasSubstr("minItems"));
  EXPECT_THAT(Refusal(R"({"minLength":-1})", kInvalid), HasSubstr("-1"));
  EXPECT_THAT(Refusal(R"({"type":"integer","minimum":3,"maximum":2})", kInvalid),
              HasSubstr("no number"));
  EXPECT_THAT(Refusal(R"({"pattern":"a("})", kInvalid), HasSubstr("'a('"));
  EXPECT_THAT(
      Refusal(R"({"type":"object","required":["a"],"additionalProperties":false})", kInvalid),
      HasSubstr("'a'"));
  EXPECT_THAT(Refusal(R"({"allOf":[{"type":"string"},{"type":"object"}]})", kInvalid),
              HasSubstr("both types"));
}

TEST_F(SchemaGrammarTest, DeepAndLargeSchemasAreRefused) {
  std::string deep = "{}";
  for (int i = 0; i < 200; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_THAT(Refusal(deep, base::ErrorKind::kUnsupported), HasSubstr("too deep"));
  Json large = Json::object();
  for (int i = 0; i < 200000; ++i) large["enum"].push_back("value number " + std::to_string(i));
  const auto grammar = SchemaGrammar(large);
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().kind, base::ErrorKind::kUnsupported);
}

TEST_F(SchemaGrammarTest, ConstraintsBesideAlternativesAndReferencesHold) {
  const std::string beside = R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})";
  EXPECT_TRUE(SchemaAccepts(beside, R"({"a":1})"));
  EXPECT_TRUE(SchemaAccepts(beside, R"({"b":1})"));
  EXPECT_FALSE(SchemaAccepts(beside, "{}"));
  const std::string reference = R"({"$defs":{"n":{"type":"integer","minimum":1}},
      "$ref":"#/$defs/n","maximum":3})";
  EXPECT_TRUE(SchemaAccepts(reference, "3"));
  EXPECT_FALSE(SchemaAccepts(reference, "0"));
  EXPECT_FALSE(SchemaAccepts(reference, "4"));
  const std::string both = R"({"allOf":[{"enum":["a","b","c"]},{"enum":["c","b"]}]})";
  EXPECT_TRUE(SchemaAccepts(both, R"("b")"));
  EXPECT_FALSE(SchemaAccepts(both, R"("a")"));
}

TEST_F(SchemaGrammarTest, AdditionalNamesAreNoneOfTheDeclaredOnes) {
  const std::string schema = R"({"properties":{"a":{"type":"null"},"ab":{"type":"null"},
      "é\"":{"type":"null"}},"additionalProperties":{"type":"integer"}})";
  for (const std::string name : {"", "b", "abc", "aa", "\\n", "é", "éa", "è", "é\\\\"}) {
    EXPECT_TRUE(SchemaAccepts(schema, "{\"" + name + "\":1}")) << name;
  }
  for (const std::string name : {"a", "ab", "é\\\""}) {
    EXPECT_FALSE(SchemaAccepts(schema, "{\"" + name + "\":1}")) << name;
    EXPECT_TRUE(SchemaAccepts(schema, "{\"" + name + "\":null}")) << name;
  }
}

TEST_F(SchemaGrammarTest, LongRepetitionsAreExact) {
  for (const auto& [least, most] : std::vector<std::pair<int, int>>{
           {0, 65}, {63, 64}, {64, 128}, {65, 130}, {100, 1000}, {1000, 1000}, {0, 127}}) {
    const std::string schema = std::format(R"({{"minLength":{},"maxLength":{}}})", least, most);
    const auto grammar = SchemaGrammar(Json::parse(schema));
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (const int length :
         {0, 1, 62, 63, 64, 65, 66, 99, 100, 126, 127, 128, 129, 130, 131, 999, 1000, 1001}) {
      const std::string text = "\"" + std::string(static_cast<std::size_t>(length), 'x') + "\"";
      EXPECT_EQ(Accepts(*grammar, text), least <= length && length <= most)
          << schema << " " << length << "\n"
          << *grammar;
    }
  }
}

TEST_F(SchemaGrammarTest, IntegersBetweenAnyBounds) {
  for (const std::int64_t least : {-130, -100, -11, -9, -1, 0, 1, 9, 10, 42, 100}) {
    for (const std::int64_t most : {-101, -10, -9, 0, 5, 10, 19, 99, 100, 101, 129}) {
      const std::string body = IntegerBody({.least = least, .most = most});
      EXPECT_EQ(body.empty(), most < least);
      if (body.empty()) continue;
      const std::string grammar = "root ::= " + body + "\n";
      for (std::int64_t value = -140; value <= 140; value += 1 + (value & 3)) {
        ASSERT_EQ(Accepts(grammar, std::to_string(value)), least <= value && value <= most)
            << least << " to " << most << ": " << value << "\n"
            << grammar;
      }
    }
  }
}

TEST_F(SchemaGrammarTest, DecimalNumbersKeepTheirBounds) {
  const auto accepts = [](const NumberBounds& bounds, const char* text) {
    return Accepts("root ::= " + NumberBody(bounds) + "\n", text);
  };
  const NumberBounds open = {
      .least = 0, .most = 2, .least_is_exclusive = true, .most_is_exclusive = true};
  EXPECT_TRUE(accepts(open, "0.001"));
  EXPECT_TRUE(accepts(open, "1"));
  EXPECT_TRUE(accepts(open, "1.999"));
  EXPECT_FALSE(accepts(open, "0"));
  EXPECT_FALSE(accepts(open, "0.00"));
  EXPECT_FALSE(accepts(open, "2"));
  const NumberBounds negative = {.least = -3, .most = -1};
  EXPECT_TRUE(accepts(negative, "-3"));
  EXPECT_TRUE(accepts(negative, "-3.0"));
  EXPECT_TRUE(accepts(negative, "-1"));
  EXPECT_TRUE(accepts(negative, "-2.5"));
  EXPECT_FALSE(accepts(negative, "-0.5"));
  EXPECT_FALSE(accepts(negative, "-3.5"));
  EXPECT_FALSE(accepts(negative, "2"));
  EXPECT_TRUE(accepts({.least = 5}, "1000.25"));
  EXPECT_FALSE(accepts({.least = 5}, "4.99"));
  EXPECT_TRUE(accepts({.most = 5}, "-1000.25"));
  EXPECT_FALSE(accepts({.most = 5}, "5.01"));
}

TEST_F(SchemaGrammarTest, PatternsMatchAnywhereUnlessAnchored) {
  const auto accepts = [](std::string_view pattern, const std::string& text) {
    GrammarText rules;
    auto body = PatternBody(pattern, rules);
    EXPECT_TRUE(body) << body.error().message;
    return body && Accepts(rules.Finish(*body), text);
  };
  EXPECT_TRUE(accepts("b", "abc"));
  EXPECT_FALSE(accepts("b", "ac"));
  EXPECT_TRUE(accepts("^b", "bc"));
  EXPECT_FALSE(accepts("^b", "abc"));
  EXPECT_TRUE(accepts("^a|c$", "xc"));
  EXPECT_FALSE(accepts("^a$|^b$", "ab"));
  EXPECT_TRUE(accepts("^[\\d\\-.]+$", "1-2.3"));
  EXPECT_TRUE(accepts("^\\u00e9\\x41$", "éA"));
  EXPECT_TRUE(accepts("^(?:ab)+?(?<n>c)$", "ababc"));
  EXPECT_TRUE(accepts("^\\\\\"$", R"(\\\")")) << "as JSON writes a backslash and a quote";
  EXPECT_TRUE(accepts("^\\s$", "\\n"));
  EXPECT_FALSE(accepts("^\\S$", "\\n"));
  EXPECT_TRUE(accepts("^[^x]$", R"(\")"));
  EXPECT_TRUE(accepts("", "anything"));
}

TEST_F(SchemaGrammarTest, PatternsThatAreNotTakenSayWhere) {
  const auto refusal = [](std::string_view pattern, base::ErrorKind kind) {
    GrammarText rules;
    const auto body = PatternBody(pattern, rules);
    EXPECT_FALSE(body) << pattern;
    if (body) return std::string();
    EXPECT_EQ(body.error().kind, kind) << body.error().message;
    return body.error().message;
  };
  for (const std::string_view pattern :
       {"a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", "(a)\\1", "\\bfoo", "\\p{L}", "a^b", "a$b",
        "(a$)", "a{1,99999999}"}) {
    EXPECT_THAT(refusal(pattern, base::ErrorKind::kUnsupported), HasSubstr("character"));
  }
  for (const std::string_view pattern :
       {"(", ")", "[a", "*a", "a{2,1}", "a{", "[b-a]", "\\", "\\xZZ"}) {
    EXPECT_THAT(refusal(pattern, base::ErrorKind::kInvalidInput), HasSubstr("character"));
  }
  EXPECT_THAT(refusal(std::string(100, '('), base::ErrorKind::kUnsupported), HasSubstr("deep"));
}

TEST_F(SchemaGrammarTest, JsonObjectsOfAnyKind) {
  EXPECT_TRUE(Accepts(JsonObjectGrammar(), R"({"a": [1, {"b": "c"}]})"));
  EXPECT_FALSE(Accepts(JsonObjectGrammar(), "[]"));
}

}  // namespace
}  // namespace engine
