#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace kernels {
namespace {

constexpr std::size_t kHeads = 2;  // of keys and values

class AttentionTest : public testing::TestWithParam<std::tuple<InstructionSet, CacheType>> {
 protected:
  void Make(std::size_t head_dim, std::size_t cells) {
    head_dim_ = head_dim;
    width_ = kHeads * head_dim;
    num_cells_ = (cells + 255) / 256 * 256;
    keys_.assign(num_cells_ * width_ * sizeof(float), std::byte{0xff});  // NaN where nothing is
    values_ = keys_;
    cache_ = {.type = std::get<1>(GetParam()),
              .width = width_,
              .keys = keys_.data(),
              .values = values_.data()};
    for (std::size_t cell = 0; cell < cells; ++cell) {
      exact_keys_.push_back(Random(width_));
      exact_values_.push_back(Random(width_));
      cache_.Store(cell, exact_keys_.back().data(), exact_values_.back().data());
    }
  }

  std::vector<float> Random(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    // Halves are exact in F16 as well.
    for (float& value : values) value = std::round(normal(random_) * 64) / 64;
    return values;
  }

  AttentionHead Head(std::size_t index) const {
    return {.first_channel = index * head_dim_,
            .head_dim = head_dim_,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_))};
  }

  // The results of queries that see `seen` cells, `together` a call.
  std::vector<std::vector<float>> Attended(const std::vector<std::size_t>& seen,
                                           std::size_t together, std::size_t head) {
    std::mt19937 keep = random_;
    random_.seed(3);
    std::vector<std::vector<float>> queries, gates;
    std::vector<std::vector<float>> out(seen.size(), std::vector<float>(head_dim_));
    std::vector<AttentionQuery> work;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      queries.push_back(Random(head_dim_));
      gates.push_back(Random(head_dim_));
      work.push_back({queries[i].data(), gates[i].data(), out[i].data(), seen[i]});
    }
    random_ = keep;
    for (std::size_t i = 0; i < work.size(); i += together) {
      const std::size_t count = std::min(together, work.size() - i);
      std::vector<float> scores(count * ScoreStride(std::ranges::max(seen)), -1.0f);
      kernels::Attend(std::get<0>(GetParam()))(cache_, Head(head), {work.data() + i, count},
                                               scores.data());
    }
    queries_ = queries;
    gates_ = gates;
    return out;
  }

  std::vector<double> Reference(std::size_t query, std::size_t seen, std::size_t head) const {
    const std::size_t at = head * head_dim_;
    std::vector<double> scores;
    for (std::size_t c = 0; c < seen; ++c) {
      double sum = 0;
      for (std::size_t i = 0; i < head_dim_; ++i) {
        sum += static_cast<double>(queries_[query][i]) * exact_keys_[c][at + i];
      }
      scores.push_back(sum / std::sqrt(static_cast<double>(head_dim_)));
    }
    const double largest = std::ranges::max(scores);
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - largest);
    std::vector<double> out(head_dim_);
    for (std::size_t i = 0; i < head_dim_; ++i) {
      for (std::size_t c = 0; c < seen; ++c) out[i] += scores[c] * exact_values_[c][at + i];
      out[i] /= total * (1 + std::exp(-static_cast<double>(gates_[query][i])));
    }
    return out;
  }

  std::size_t head_dim_ = 0, width_ = 0, num_cells_ = 0;
  std::mt19937 random_{1};
  std::vector<std::byte> keys_, values_;
  std::vector<std::vector<float>> exact_keys_, exact_values_, queries_, gates_;
  AttentionCache cache_;
};

const std::vector<std::size_t> kSeen = {1,   2,   15,  16,  17,  31,  33,  255, 256, 257,
                                        300, 511, 512, 513, 600, 601, 602, 603, 604, 700};

TEST_P(AttentionTest, IsWhatTheFormulaSays) {
  for (const std::size_t head_dim : {256u, 48u}) {
    exact_keys_.clear();
    exact_values_.clear();
    Make(head_dim, 700);
    for (std::size_t head = 0; head < kHeads; ++head) {
      const auto ours = Attended(kSeen, kSeen.size(), head);
      for (std::size_t q = 0; q < kSeen.size(); ++q) {
        const std::vector<double> exact = Reference(q, kSeen[q], head);
        double error = 0, power = 0;
        for (std::size_t i = 0; i < head_dim; ++i) {
          error += (ours[q][i] - exact[i]) * (ours[q][i] - exact[i]);
          power += exact[i] * exact[i];
        }
        // Shares that are rounded to F16 are off by up to 2^-11, at random.
        const double most = cache_.type == CacheType::kF16 ? 3e-7 : 1e-10;
        EXPECT_LT(error / power, most) << kSeen[q] << " cells, head " << head;
      }
    }
  }
}

TEST_P(AttentionTest, GivesTheSameBitsWhateverElseIsComputed) {
  Make(64, 700);
  const auto whole = Attended(kSeen, kSeen.size(), 1);
  for (const std::size_t together : {1u, 2u, 3u, 8u, 11u}) {
    EXPECT_EQ(Attended(kSeen, together, 1), whole) << together << " at a time";
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  Make(16, 300);
  for (std::size_t c = 0; c < 300; ++c) {
    for (float& x : exact_keys_[c]) x *= 256;
    cache_.Store(c, exact_keys_[c].data(), exact_values_[c].data());
  }
  const std::vector<std::size_t> seen = {300, 299, 100};
  const auto ours = Attended(seen, 3, 0);
  for (std::size_t q = 0; q < seen.size(); ++q) {
    const std::vector<double> exact = Reference(q, seen[q], 0);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(ours[q][i], exact[i], 1e-3) << q;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, AttentionTest,
                         testing::Combine(testing::ValuesIn(AvailableInstructionSets()),
                                          testing::Values(CacheType::kF16, CacheType::kF32)),
                         [](const auto& param) {
                           return std::string(InstructionSetName(std::get<0>(param.param))) +
                                  (std::get<1>(param.param) == CacheType::kF16 ? "_f16" : "_f32");
                         });

}  // namespace
}  // namespace kernels
