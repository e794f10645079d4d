#include "model/text/log_probability.h"

#include <gtest/gtest.h>

#include <cmath>

namespace model {
namespace {

TEST(LogProbabilityTest, IsTheLogarithmOfTheSoftmax) {
  const std::vector<float> logits = {1.5F, -2, 3, 3, 0.25F};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (std::size_t t = 0; t < logits.size(); ++t) {
    EXPECT_NEAR(LogProbabilitiesOf(logits, static_cast<Token>(t), 0).token,
                std::log(std::exp(static_cast<double>(logits[t])) / sum), 1e-6)
        << t;
  }
}

TEST(LogProbabilityTest, AlternativesAreOrderedAndEqualOnesByToken) {
  const std::vector<float> logits = {1, 4, 2, 4};
  const LogProbabilities all = LogProbabilitiesOf(logits, 0, 9);
  ASSERT_EQ(all.top.size(), 4U);
  EXPECT_EQ(all.top[0].token, 1);
  EXPECT_EQ(all.top[1].token, 3);
  EXPECT_EQ(all.top[2].token, 2);
  EXPECT_EQ(all.top[3].token, 0);
  EXPECT_EQ(all.top[3].log_probability, all.token);
  EXPECT_EQ(LogProbabilitiesOf(logits, 0, 2).top.size(), 2U);
  EXPECT_TRUE(LogProbabilitiesOf(logits, 0, 0).top.empty());
}

TEST(LogProbabilityTest, HugeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e4F, 3e4F, -3e4F};
  EXPECT_NEAR(LogProbabilitiesOf(logits, 1, 0).token, std::log(0.5), 1e-6);
  EXPECT_NEAR(LogProbabilitiesOf(logits, 2, 0).token, -6e4, 1);
}

}  // namespace
}  // namespace model
