#include "moe/plan/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;
using base::ErrorKind;
using ::testing::HasSubstr;

class VerifierTest : public ::testing::Test {
 protected:
  void ExpectRefused(const base::Result<void>& verified, const char* part) {
    ASSERT_FALSE(verified) << "accepted, expected: " << part;
    EXPECT_EQ(verified.error().kind, ErrorKind::kCorruptModel);
    EXPECT_THAT(verified.error().message, HasSubstr(part));
  }

  const ModelShape shape_ = TestShape({10, 20}, 2);
  const std::vector<PlanTarget> targets_ = {{"cuda:0", Bytes(30)}, {"cpu", {}}};
  const std::vector<std::uint8_t> owners_ = {0, 1, 1, 0};
};

TEST_F(VerifierTest, AcceptsAPlanFilledToItsLastByte) {
  EXPECT_TRUE(VerifyPlacement(shape_, targets_, owners_, {}));
  const std::vector<ClaimedTotals> claims = {{2, Bytes(30)}, {2, Bytes(30)}};
  EXPECT_TRUE(VerifyPlacement(shape_, targets_, owners_, claims));
}

TEST_F(VerifierTest, RefusesACapacityExceededByOneByte) {
  ExpectRefused(VerifyPlacement(shape_, std::vector<PlanTarget>{{"cuda:0", Bytes(29)}, {"cpu", {}}},
                                owners_, {}),
                R"(target "cuda:0" would own 30 bytes of experts, above its capacity of 29)");
}

TEST_F(VerifierTest, RefusesUnitsWithoutAListedOwner) {
  ExpectRefused(VerifyPlacement(shape_, targets_, std::vector<std::uint8_t>{0, 1, 2, 0}, {}),
                "expert 0 of layer 1 is owned by target 2");
  ExpectRefused(VerifyPlacement(shape_, targets_, std::vector<std::uint8_t>{0, 1, 1, 255}, {}),
                "expert 1 of layer 1 is owned by target 255");
}

TEST_F(VerifierTest, RefusesAWrongNumberOfOwners) {
  ExpectRefused(VerifyPlacement(shape_, targets_, std::vector<std::uint8_t>{0, 1, 1}, {}),
                "owners for 3 units, the model has 4");
  ExpectRefused(VerifyPlacement(shape_, targets_, std::vector<std::uint8_t>{0, 1, 1, 0, 0}, {}),
                "owners for 5 units");
}

TEST_F(VerifierTest, RefusesSumsThatAreNotExact) {
  const std::vector<ClaimedTotals> byte_off = {{2, Bytes(30)}, {2, Bytes(31)}};
  ExpectRefused(VerifyPlacement(shape_, targets_, owners_, byte_off), R"(target "cpu")");
  const std::vector<ClaimedTotals> unit_off = {{1, Bytes(30)}, {2, Bytes(30)}};
  ExpectRefused(VerifyPlacement(shape_, targets_, owners_, unit_off), R"(target "cuda:0")");
  const std::vector<ClaimedTotals> too_few = {{2, Bytes(30)}};
  ExpectRefused(VerifyPlacement(shape_, targets_, owners_, too_few), "sums for 1 targets");
}

TEST_F(VerifierTest, RefusesNoTargetsAndTooMany) {
  ExpectRefused(VerifyPlacement(shape_, {}, owners_, {}), "1 to 255 targets, not 0");
  const std::vector<PlanTarget> many(256, {"cpu", {}});
  ExpectRefused(VerifyPlacement(shape_, many, owners_, {}), "not 256");
}

TEST_F(VerifierTest, RefusesShapesThatContradictThemselves) {
  ModelShape layers = shape_;
  layers.identity.num_layers = 3;
  ExpectRefused(VerifyPlacement(layers, targets_, owners_, {}), "contradicts itself");
  const std::uint64_t huge = std::uint64_t{1} << 62;
  ExpectRefused(VerifyShape(TestShape({huge, huge}, 2)), "2^63");
}

TEST_F(VerifierTest, RefusesAPlanOfAnotherModel) {
  const auto plan =
      ExpertSplitPlan::FromOwners(shape_, Hotness::Uniform(shape_), targets_, owners_);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(VerifyPlan(*plan, shape_));
  ModelShape other = shape_;
  other.identity.name = "Other";
  ExpectRefused(VerifyPlan(*plan, other), R"("Test" (Q4_K_M), not "Other")");
}

}  // namespace
}  // namespace moe
