#include "cli/sampling_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace cli {
namespace {

using ::testing::HasSubstr;

base::Result<model::SamplingSettings> Parse(const std::string& arguments) {
  CLI::App app;
  SamplingOptions options;
  AddSamplingOptions(app, options);
  app.parse(arguments);
  return ReadSettings(options);
}

TEST(SamplingOptionsTest, FlagsHaveTheirPlaces) {
  const auto settings = Parse(
      "--temp 0.5 --typical 0.9 --repeat-last-n 10 --repeat-penalty 1.1 --frequency-penalty 0.2 "
      "--presence-penalty 0.3 --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 "
      "--dry-penalty-last-n 99 --logit-bias 15-2.5 --logit-bias 7+1 --logit-bias 3-inf --seed 5 "
      "--grammar 'root ::= \"a\"'");
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->temperature, 0.5F);
  EXPECT_EQ(settings->typical_p, 0.9F);
  EXPECT_EQ(settings->penalty_last_n, 10);
  EXPECT_EQ(settings->repeat_penalty, 1.1F);
  EXPECT_EQ(settings->frequency_penalty, 0.2F);
  EXPECT_EQ(settings->presence_penalty, 0.3F);
  EXPECT_EQ(settings->dry_multiplier, 0.8F);
  EXPECT_EQ(settings->dry_base, 2.0F);
  EXPECT_EQ(settings->dry_allowed_length, 3);
  EXPECT_EQ(settings->dry_last_n, 99);
  EXPECT_EQ(settings->seed, 5U);
  EXPECT_EQ(settings->grammar, "root ::= \"a\"");
  ASSERT_EQ(settings->logit_bias.size(), 3U);
  EXPECT_EQ(settings->logit_bias[0].token, 15);
  EXPECT_EQ(settings->logit_bias[0].bias, -2.5F);
  EXPECT_EQ(settings->logit_bias[1].bias, 1.0F);
  EXPECT_TRUE(std::isinf(settings->logit_bias[2].bias));
}

TEST(SamplingOptionsTest, RefusalsNameTheFlagAndTheText) {
  const auto message = [](const std::string& arguments) {
    const auto settings = Parse(arguments);
    EXPECT_FALSE(settings) << arguments;
    return settings ? std::string() : settings.error().message;
  };
  EXPECT_THAT(message("--logit-bias 15"), HasSubstr("--logit-bias: \"15\""));
  EXPECT_THAT(message("--logit-bias=15-x"), HasSubstr("15-x"));
  EXPECT_THAT(message("--logit-bias=15+1y"), HasSubstr("15+1y"));
  EXPECT_THAT(message("--typical 2"), HasSubstr("typical is 2"));
  EXPECT_THAT(message("--grammar-file /nowhere/g"), HasSubstr("--grammar-file"));
}

TEST(SamplingOptionsTest, WithoutASeedEachTimeAnother) {
  const auto one = Parse("");
  const auto two = Parse("");
  const auto three = Parse("");
  ASSERT_TRUE(one && two && three);
  EXPECT_FALSE(one->seed == two->seed && two->seed == three->seed);
}

}  // namespace
}  // namespace cli
