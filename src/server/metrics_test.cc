#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"

namespace server {
namespace {

using ::testing::HasSubstr;

std::string SampleText() {
  HttpCounters http;
  http.Add("/v1/models", 200);
  http.Add("odd\"\\\n", 404);
  engine::EngineStatistics engine;
  engine.finished[0] = 7;
  engine.generated_tokens = 42;
  engine.time_to_first_token.Add(0.02);
  engine.time_to_first_token.Add(3);
  engine.time_to_first_token.Add(1000);
  PlacementReport placement{.path = "multi", .fingerprint = "0123456789abcdef"};
  placement.targets = {
      {.name = "cuda:0", .units = 3, .bytes = 30, .capacity = 40, .rows = 9, .busy_seconds = 0.5},
      {.name = "cpu", .units = 5}};
  placement.generation = 6;
  placement.rebalance = {.moved_units = 12, .moved_bytes = 480, .failures = 1};
  return MetricsText(http, engine, placement);
}

// What `promtool check metrics` asks for: HELP and TYPE once before a family's samples, names in
// snake case, counters and nothing else end in _total, histograms accumulate.
TEST(MetricsTest, FollowsTheFormatAndItsConventions) {
  std::istringstream lines(SampleText());
  const std::regex sample(R"re(([a-z_]+)(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+)re");
  std::set<std::string> seen;
  std::string line;
  std::string family;
  std::string type;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, kind, name;
    if (line.starts_with("# HELP ")) {
      words >> hash >> kind >> family;
      EXPECT_TRUE(family.starts_with("expert_split_")) << line;
      EXPECT_TRUE(seen.insert(family).second) << line;
      EXPECT_TRUE(line.ends_with('.')) << line;
    } else if (line.starts_with("# TYPE ")) {
      words >> hash >> kind >> name >> type;
      EXPECT_EQ(name, family);
      EXPECT_EQ(family.ends_with("_total"), type == "counter") << line;
    } else {
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      const std::string base = match[1];
      EXPECT_TRUE(base == family || (type == "histogram" && base.starts_with(family + "_")))
          << line;
    }
  }
  EXPECT_GT(seen.size(), 30u);
}

TEST(MetricsTest, HistogramsAccumulate) {
  const std::string text = SampleText();
  EXPECT_THAT(text, HasSubstr("expert_split_time_to_first_token_seconds_bucket{le=\"0.01\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_time_to_first_token_seconds_bucket{le=\"0.025\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_time_to_first_token_seconds_bucket{le=\"5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_time_to_first_token_seconds_count 3\n"));
}

TEST(MetricsTest, MovesOfExpertsAreCounted) {
  const std::string text = SampleText();
  EXPECT_THAT(text, HasSubstr("expert_split_placement_generation 6\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_rebalance_moved_units_total 12\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_rebalance_moved_bytes_total 480\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_rebalance_failures_total 1\n"));
}

TEST(MetricsTest, TargetsAreLabelled) {
  const std::string text = SampleText();
  EXPECT_THAT(text, HasSubstr("expert_split_target_rows_total{target=\"cuda:0\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("expert_split_target_capacity_bytes{target=\"cuda:0\"} 40\n"));
  EXPECT_EQ(text.find("capacity_bytes{target=\"cpu\"}"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("expert_split_target_busy_seconds_total{target=\"cuda:0\"} 0.5\n"));
}

TEST(MetricsTest, TheDocumentListsExactlyTheNames) {
  const auto page = base::ReadFile(std::string(EXPERT_SPLIT_SOURCE_DIR) + "/docs/metrics.md",
                                   base::Bytes::MiB(1));
  ASSERT_TRUE(page) << page.error().message;
  std::set<std::string> documented;
  const std::regex listed("\\| `(expert_split_[a-z_]+)` \\|");
  for (std::sregex_iterator it(page->begin(), page->end(), listed), end; it != end; ++it) {
    documented.insert((*it)[1]);
  }
  std::set<std::string> written;
  const std::string text = SampleText();
  const std::regex type("# TYPE (expert_split_[a-z_]+) ");
  for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it) {
    written.insert((*it)[1]);
  }
  EXPECT_EQ(documented, written);
}

}  // namespace
}  // namespace server
