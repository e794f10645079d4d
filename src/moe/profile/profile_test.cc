#include "moe/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moe/plan/plan.h"
#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::ErrorKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Counts = std::vector<std::vector<std::uint64_t>>;

class ProfileTest : public ::testing::Test {
 protected:
  RoutingProfile Profile(const char* text, std::uint64_t num_tokens, Counts counts) const {
    return *RoutingProfile::FromCounts(shape_.identity, text, num_tokens, std::move(counts));
  }

  const ModelShape shape_ = TestShape({10, 10}, 3);
};

TEST_F(ProfileTest, CountsSelections) {
  RoutingProfile profile(shape_.identity, "wiki");
  // Two tokens that select two experts in each of two layers, then one token.
  EXPECT_TRUE(profile.CountStep(std::vector<std::int32_t>{0, 2, 2, 1, 1, 0, 1, 2}, 2, 2));
  // Lines longer than what they hold.
  EXPECT_TRUE(profile.CountStep(std::vector<std::int32_t>{0, 1, 7, 2, 1, -7}, 1, 2));
  EXPECT_EQ(profile.num_tokens(), 3u);
  EXPECT_THAT(profile.counts(), ElementsAre(ElementsAre(2, 2, 2), ElementsAre(1, 3, 2)));
}

TEST_F(ProfileTest, SelectionsOfNoExpertAreAFaultOfTheDeviceAndCountNothing) {
  RoutingProfile profile(shape_.identity, "wiki");
  for (const std::int32_t id : {3, -1}) {
    const auto counted = profile.CountStep(std::vector<std::int32_t>{0, 2, 1, id}, 1, 2);
    ASSERT_FALSE(counted) << id;
    EXPECT_EQ(counted.error().kind, ErrorKind::kDeviceFailure);
    EXPECT_THAT(counted.error().message,
                HasSubstr("layer 1 selected expert " + std::to_string(id) + ", but there are 3"));
  }
  EXPECT_EQ(profile.num_tokens(), 0u);
  EXPECT_THAT(profile.counts(), ElementsAre(ElementsAre(0, 0, 0), ElementsAre(0, 0, 0)));
}

TEST_F(ProfileTest, RefusesCountsThatCannotBe) {
  const auto refused = [&](std::uint64_t num_tokens, Counts counts) {
    const auto made =
        RoutingProfile::FromCounts(shape_.identity, "x", num_tokens, std::move(counts));
    return made ? std::string("accepted") : made.error().message;
  };
  EXPECT_THAT(refused(9, {{1, 2, 3}}), HasSubstr("counts for 1 layers, expected 2"));
  EXPECT_THAT(refused(9, {{1, 2, 3}, {1, 2}}), HasSubstr("layer 1 has counts for 2 experts"));
  EXPECT_THAT(refused(9, {{1, 2, 3}, {1, 10, 2}}), HasSubstr("layer 1, expert 1 was selected 10"));
  EXPECT_THAT(refused(RoutingProfile::kMaxCount + 1, {{0, 0, 0}, {0, 0, 0}}), HasSubstr("tokens"));
}

TEST_F(ProfileTest, MergesWithWeights) {
  const RoutingProfile a = Profile("a", 10, {{10, 0, 1}, {5, 5, 0}});
  const RoutingProfile b = Profile("b", 4, {{0, 4, 1}, {1, 1, 1}});
  const auto merged = MergeProfiles(std::vector<WeightedProfile>{{&a, 1}, {&b, 2.5}});
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(merged->num_tokens(), 20u);
  EXPECT_EQ(merged->text(), "a + 2.5*b");
  EXPECT_THAT(merged->counts(), ElementsAre(ElementsAre(10, 10, 4), ElementsAre(8, 8, 3)));
}

TEST_F(ProfileTest, RefusesMergesThatMeanNothing) {
  const RoutingProfile a = Profile("a", 10, {{10, 0, 1}, {5, 5, 0}});
  EXPECT_FALSE(MergeProfiles({}));
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    const auto merged = MergeProfiles(std::vector<WeightedProfile>{{&a, weight}});
    ASSERT_FALSE(merged) << weight;
    EXPECT_EQ(merged.error().kind, ErrorKind::kInvalidInput);
  }
  EXPECT_FALSE(MergeProfiles(std::vector<WeightedProfile>{{&a, 1e300}}));
  EXPECT_FALSE(MergeProfiles(std::vector<WeightedProfile>{{&a, 0.04}})) << "no token is left";
  ModelIdentity other = shape_.identity;
  other.shape_hash = 7;
  other.name = "Other";
  const RoutingProfile b(other, "b");
  const auto merged = MergeProfiles(std::vector<WeightedProfile>{{&a, 1}, {&b, 1}});
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().kind, ErrorKind::kCorruptModel);
  EXPECT_THAT(merged.error().message, AllOf(HasSubstr("\"Test\""), HasSubstr("\"Other\"")));
}

TEST_F(ProfileTest, AcceptsAnotherQuantisationWithANoteAndRefusesAnotherModel) {
  const RoutingProfile profile(shape_.identity, "wiki");
  EXPECT_EQ(CheckProfileModel(profile, shape_.identity).value_or("refused"), "");

  ModelIdentity quantised = shape_.identity;
  quantised.quantisation = "Q8_0";
  quantised.directory_hash = 1;
  EXPECT_EQ(CheckProfileModel(profile, quantised).value_or("refused"),
            "the profile was recorded with another quantisation of the model: \"Q4_K_M\", not "
            "\"Q8_0\"");

  ModelIdentity tuned = shape_.identity;
  tuned.name = "Tuned";
  EXPECT_THAT(CheckProfileModel(profile, tuned).value_or("refused"), HasSubstr("\"Tuned\""));

  ModelIdentity shapes = shape_.identity, architecture = shape_.identity, layers = shape_.identity,
                experts = shape_.identity;
  shapes.shape_hash = 1;
  architecture.architecture = "othermoe";
  layers.num_layers = 3;
  experts.num_experts = 4;
  for (ModelIdentity other : {shapes, architecture, layers, experts}) {
    other.name = "Other";
    const auto checked = CheckProfileModel(profile, other);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().kind, ErrorKind::kCorruptModel);
    EXPECT_THAT(checked.error().message, AllOf(HasSubstr("\"Test\""), HasSubstr("\"Other\"")));
  }
}

TEST_F(ProfileTest, SendsTheHottestUnitsToTheFirstTarget) {
  const RoutingProfile profile = Profile("a", 10, {{1, 9, 2}, {0, 3, 9}});
  const Hotness hotness = HotnessOf(profile, shape_);
  const auto plan =
      ExpertSplitPlan::Make({.shape = &shape_,
                             .hotness = &hotness,
                             .targets = {{"a", base::Bytes(20)}, {"cpu", std::nullopt}}});
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->owners(), ElementsAre(1, 0, 1, 1, 1, 0));
  EXPECT_DOUBLE_EQ(plan->expected_share(TargetId(0)), 0.75);
}

}  // namespace
}  // namespace moe
