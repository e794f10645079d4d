// Our grammars of JSON schemas against those that llama-server makes: the same texts are accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/grammar/grammar_matcher.h"
#include "engine/grammar/schema_grammar.h"
#include "support/test_models.h"

namespace {

using Json = nlohmann::ordered_json;

TEST(SchemaPeerTest, AcceptsAndRejectsAsLlamaServerDoes) {
  const std::string cases = EXPERT_SPLIT_SOURCE_DIR "/src/engine/grammar/schema_cases.jsonl";
  const std::string model = test::ModelPath("tiny-f32");
  const std::string out = testing::TempDir() + "llama_server_grammars.jsonl";
  const std::string command = "python3 -B " EXPERT_SPLIT_SOURCE_DIR
                              "/tests/llama_server_grammars.py " LLAMA_SERVER " '" +
                              model + "' '" + cases + "' '" + out + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  auto vocabulary = model::Vocabulary::Load(model);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;

  std::ifstream ours(cases);
  std::ifstream theirs(out);
  std::size_t compared = 0;
  for (std::string line, answer; std::getline(ours, line);) {
    ASSERT_TRUE(std::getline(theirs, answer));
    const Json one = Json::parse(line);
    const Json peer = Json::parse(answer);
    ASSERT_EQ(peer.contains("grammar"), !one.contains("peer")) << line << "\n" << answer;
    if (one.contains("peer")) continue;
    const auto grammar = engine::SchemaGrammar(one["schema"]);
    ASSERT_TRUE(grammar) << grammar.error().message;
    const Json differs = one.value("differs", Json::array());
    for (const char* list : {"accept", "reject"}) {
      for (const Json& text : one[list]) {
        const std::string value = text.get<std::string>();
        const bool same = engine::Accepts(*vocabulary, *grammar, value) ==
                          engine::Accepts(*vocabulary, peer["grammar"], value);
        EXPECT_EQ(same, std::ranges::find(differs, text) == differs.end())
            << value << "\n"
            << line << "\n"
            << peer["grammar"].get<std::string>();
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 250U);
}

}  // namespace
