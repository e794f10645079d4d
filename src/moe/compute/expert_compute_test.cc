#include "moe/compute/expert_compute.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace moe {
namespace {

// Pairs of a batch shared out over some parts at random, and perhaps some parts of sums.
class Batch {
 public:
  Batch(std::size_t num_rows, std::size_t num_used, std::size_t n_embd, std::size_t num_parts,
        std::size_t num_sums, std::uint32_t seed)
      : random_(seed), pairs_(num_rows * num_used * n_embd), weights_(num_rows * num_used) {
    batch_ = {.num_rows = num_rows, .num_used = num_used, .n_embd = n_embd};
    Fill(pairs_);
    Fill(weights_);
    batch_.weights = weights_.data();
    pointers_.assign(num_parts, std::vector<const float*>(num_rows * num_used, nullptr));
    for (std::size_t p = 0; p < num_rows * num_used && num_parts > 0; ++p) {
      pointers_[random_() % num_parts][p] = pairs_.data() + p * n_embd;
    }
    for (const auto& pointers : pointers_) {
      parts_.push_back({.form = PartForm::kPairs, .pairs = pointers.data()});
    }
    for (std::size_t s = 0; s < num_sums; ++s) {
      Fill(sums_.emplace_back(num_rows * n_embd));
      parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(random_() % (parts_.size() + 1)),
                    {.form = PartForm::kSums, .sums = sums_.back().data()});
    }
  }

  std::vector<float> Combine(std::size_t team) const {
    std::vector<float> out(batch_.num_rows * batch_.n_embd, NAN);
    for (std::size_t i = team; i-- > 0;) {
      CombineParts(batch_, parts_, {.index = i, .count = team}, out.data());
    }
    return out;
  }

  // In double, without regard to order.
  std::vector<double> Exact() const {
    std::vector<double> out(batch_.num_rows * batch_.n_embd);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i / batch_.n_embd;
      for (std::size_t s = 0; s < batch_.num_used && !pointers_.empty(); ++s) {
        const std::size_t pair = row * batch_.num_used + s;
        out[i] += static_cast<double>(weights_[pair]) *
                  static_cast<double>(pairs_[pair * batch_.n_embd + i % batch_.n_embd]);
      }
      for (const auto& sums : sums_) out[i] += static_cast<double>(sums[i]);
    }
    return out;
  }

  // The documented operations one by one; volatile keeps the product from being fused.
  std::vector<float> Documented() const {
    std::vector<float> out(batch_.num_rows * batch_.n_embd);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i / batch_.n_embd;
      float sum = 0;
      for (std::size_t s = 0; s < batch_.num_used && !pointers_.empty(); ++s) {
        const std::size_t pair = row * batch_.num_used + s;
        volatile float product = weights_[pair] * pairs_[pair * batch_.n_embd + i % batch_.n_embd];
        sum += product;
      }
      for (const ExpertPart& part : parts_) {
        if (part.form == PartForm::kSums) sum += part.sums[i];
      }
      out[i] = sum;
    }
    return out;
  }

  ExpertBatch batch_;
  std::vector<ExpertPart> parts_;

 private:
  void Fill(std::vector<float>& values) {
    std::uniform_real_distribution<float> distribution(-1, 1);
    for (float& value : values) value = distribution(random_);
  }

  std::mt19937 random_;
  std::vector<float> pairs_;  // [num_rows, num_used, n_embd]
  std::vector<float> weights_;
  std::vector<std::vector<const float*>> pointers_;
  std::vector<std::vector<float>> sums_;
};

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

TEST(CombineParts, AgreesWithDoublePrecision) {
  for (const std::size_t n_embd : {1, 7, 64, 130}) {
    const Batch batch(5, 8, n_embd, 3, 2, 1);
    const std::vector<float> out = batch.Combine(1);
    const std::vector<double> exact = batch.Exact();
    for (std::size_t i = 0; i < out.size(); ++i) {
      // 10 terms of magnitude up to 1: each operation errs by at most half an ulp of 16.
      EXPECT_NEAR(static_cast<double>(out[i]), exact[i], 20 * std::ldexp(1.0, -21)) << i;
    }
  }
}

TEST(CombineParts, RoundsEachProductBeforeItIsAdded) {
  const Batch batch(9, 6, 203, 3, 1, 2);
  ExpectSameBits(batch.Combine(1), batch.Documented());
}

TEST(CombineParts, DoesNotDependOnTheTeamSize) {
  for (const std::size_t num_rows : {1, 2, 33}) {
    const Batch batch(num_rows, 4, 75, 2, 1, 3);
    const std::vector<float> alone = batch.Combine(1);
    for (const std::size_t team : {2, 3, 7, 16, 400}) ExpectSameBits(alone, batch.Combine(team));
  }
}

TEST(CombineParts, DoesNotDependOnWhichOwnerHoldsAPair) {
  const Batch one(6, 5, 40, 1, 0, 4);
  // The same values: the seed's numbers are drawn before the pairs are shared out.
  const Batch four(6, 5, 40, 4, 0, 4);
  ExpectSameBits(one.Combine(1), four.Combine(2));
}

TEST(CombineParts, AddsSumsAfterThePairsInTheOrderOfTheParts) {
  const float pair = 1e8f;
  const float* pairs[] = {&pair};
  const float weight = 1;
  const float first = -1e8f;
  const float second = 1;
  const ExpertBatch batch{.num_rows = 1, .num_used = 1, .n_embd = 1, .weights = &weight};
  const ExpertPart parts[] = {{.form = PartForm::kSums, .sums = &first},
                              {.form = PartForm::kSums, .sums = &second},
                              {.form = PartForm::kPairs, .pairs = pairs}};
  float out = NAN;
  CombineParts(batch, parts, {}, &out);
  EXPECT_EQ(out, 1);  // any other order of these gives 0
  const ExpertPart swapped[] = {parts[1], parts[0], parts[2]};
  CombineParts(batch, swapped, {}, &out);
  EXPECT_EQ(out, 0);
}

TEST(CombineParts, WritesZeroWhereNobodyComputedAnything) {
  Batch batch(3, 2, 20, 0, 0, 5);
  batch.parts_ = {{.form = PartForm::kPairs}, {.form = PartForm::kSums}};
  ExpectSameBits(batch.Combine(2), std::vector<float>(60, 0.0f));
}

TEST(CombineParts, DoesNothingForABatchWithoutRows) {
  const Batch batch(0, 8, 64, 2, 1, 6);
  float out = 3;
  CombineParts(batch.batch_, batch.parts_, {.index = 0, .count = 2}, &out);
  EXPECT_EQ(out, 3);
}

}  // namespace
}  // namespace moe
