#include "moe/profile/routing_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <span>

namespace moe {
namespace {

// Of the uniform router, for means and a deviation.
constexpr std::size_t kNumDraws = 128;
// Up to so many selections they are drawn one by one; counts of more are about normal.
constexpr double kExactSelections = 1 << 14;
constexpr double kDeviations = 4;
// Layers whose sums differ by less, by the rounding of a merge, share a null.
constexpr double kSameSum = 1e-3;

std::size_t HotExperts(double fraction, std::size_t num_experts) {
  const double experts = std::ceil(fraction * static_cast<double>(num_experts) - 1e-9);
  return std::max<std::size_t>(1, static_cast<std::size_t>(experts));
}

struct Figures {
  std::array<double, kHotFractions.size()> shares{};
  double entropy = 0;
};

// Of counts that are not all 0; sorts them.
Figures FiguresOf(std::span<double> counts) {
  std::ranges::sort(counts, std::greater{});
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  Figures figures;
  for (std::size_t i = 0; i < kHotFractions.size(); ++i) {
    const auto hot = counts.first(HotExperts(kHotFractions[i], counts.size()));
    figures.shares[i] = std::accumulate(hot.begin(), hot.end(), 0.0) / sum;
  }
  for (const double count : counts) {
    if (count > 0) figures.entropy -= count / sum * std::log2(count / sum);
  }
  return figures;
}

// A router that selects every expert equally often, for as many tokens as a layer of a profile saw.
class UniformRouter {
 public:
  UniformRouter(std::size_t num_experts, double num_tokens, double num_selections)
      : num_used_(std::clamp<std::size_t>(
            static_cast<std::size_t>(std::llround(num_selections / num_tokens)), 1, num_experts)),
        num_tokens_(std::max(1.0, std::round(num_selections / static_cast<double>(num_used_)))),
        counts_(num_experts),
        order_(num_experts) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  // Counts of one text, [num_experts].
  std::span<double> Draw() {
    if (num_tokens_ * static_cast<double>(num_used_) <= kExactSelections) {
      DrawSelections();
    } else {
      DrawNormal();
    }
    return counts_;
  }

 private:
  void DrawSelections() {
    std::ranges::fill(counts_, 0.0);
    for (double token = 0; token < num_tokens_; ++token) {
      for (std::size_t slot = 0; slot < num_used_; ++slot) {
        const std::size_t other = slot + random_() % (order_.size() - slot);
        std::swap(order_[slot], order_[other]);
        counts_[order_[slot]] += 1;
      }
    }
  }

  // Each count is binomial; together they have a fixed sum.
  void DrawNormal() {
    const auto n = static_cast<double>(counts_.size());
    const double p = static_cast<double>(num_used_) / n;
    const double mean = num_tokens_ * p;
    const double deviation = n > 1 ? std::sqrt(mean * (1 - p) * n / (n - 1)) : 0;
    for (double& count : counts_) count = normal_(random_);
    const double offset = std::accumulate(counts_.begin(), counts_.end(), 0.0) / n;
    for (double& count : counts_) count = std::max(0.0, mean + deviation * (count - offset));
  }

  std::size_t num_used_;
  double num_tokens_;
  std::vector<double> counts_;
  std::vector<std::size_t> order_;
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
};

struct Null {
  double num_selections = 0;  // what it was made for
  Figures mean;
  double entropy_deviation = 0;
};

Null MakeNull(std::size_t num_experts, double num_tokens, double num_selections) {
  UniformRouter router(num_experts, num_tokens, num_selections);
  Null null{.num_selections = num_selections};
  double squares = 0;
  for (std::size_t draw = 0; draw < kNumDraws; ++draw) {
    const Figures figures = FiguresOf(router.Draw());
    for (std::size_t i = 0; i < figures.shares.size(); ++i)
      null.mean.shares[i] += figures.shares[i];
    null.mean.entropy += figures.entropy;
    squares += figures.entropy * figures.entropy;
  }
  constexpr auto kDraws = static_cast<double>(kNumDraws);
  for (double& share : null.mean.shares) share /= kDraws;
  null.mean.entropy /= kDraws;
  const double variance = squares / kDraws - null.mean.entropy * null.mean.entropy;
  null.entropy_deviation = std::sqrt(std::max(0.0, variance));
  return null;
}

// Rounding errors of the entropies are no finding.
bool IsBelow(double entropy, double mean, double deviation) {
  return entropy < mean - kDeviations * deviation - 1e-9 * std::max(1.0, mean);
}

LayerRouting CompareLayer(const Figures& figures, const Null& null, std::size_t num_experts) {
  LayerRouting layer;
  for (std::size_t i = 0; i < kHotFractions.size(); ++i) {
    layer.hottest[i] = {.fraction = kHotFractions[i],
                        .num_experts = HotExperts(kHotFractions[i], num_experts),
                        .share = figures.shares[i],
                        .uniform_share = null.mean.shares[i]};
  }
  layer.entropy = figures.entropy;
  layer.uniform_entropy = null.mean.entropy;
  layer.beyond_uniform = IsBelow(layer.entropy, layer.uniform_entropy, null.entropy_deviation);
  return layer;
}

// Of a layer that nothing was selected in.
Null EvenNull(std::size_t num_experts) {
  Null null;
  for (std::size_t i = 0; i < kHotFractions.size(); ++i) {
    null.mean.shares[i] = static_cast<double>(HotExperts(kHotFractions[i], num_experts)) /
                          static_cast<double>(num_experts);
  }
  null.mean.entropy = std::log2(static_cast<double>(num_experts));
  return null;
}

LayerRouting MeanOf(const std::vector<LayerRouting>& layers) {
  LayerRouting mean;
  const auto count = static_cast<double>(layers.size());
  for (const LayerRouting& layer : layers) {
    for (std::size_t i = 0; i < kHotFractions.size(); ++i) {
      mean.hottest[i].fraction = layer.hottest[i].fraction;
      mean.hottest[i].num_experts = layer.hottest[i].num_experts;
      mean.hottest[i].share += layer.hottest[i].share / count;
      mean.hottest[i].uniform_share += layer.hottest[i].uniform_share / count;
    }
    mean.entropy += layer.entropy / count;
    mean.uniform_entropy += layer.uniform_entropy / count;
    mean.beyond_uniform = mean.beyond_uniform || layer.beyond_uniform;
  }
  return mean;
}

}  // namespace

RoutingReport ReportRouting(const RoutingProfile& profile) {
  const std::size_t num_experts = profile.model().num_experts;
  const auto num_tokens = static_cast<double>(profile.num_tokens());
  RoutingReport report;
  Null null;
  double variance = 0;  // of the sum of the layers' entropies
  for (const std::vector<std::uint64_t>& layer : profile.counts()) {
    std::vector<double> counts(layer.begin(), layer.end());
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (sum == 0) {
      const Null even = EvenNull(num_experts);
      report.layers.push_back(CompareLayer(even.mean, even, num_experts));
      continue;
    }
    if (std::abs(sum - null.num_selections) > kSameSum * sum) {
      null = MakeNull(num_experts, num_tokens, sum);
    }
    variance += null.entropy_deviation * null.entropy_deviation;
    report.layers.push_back(CompareLayer(FiguresOf(counts), null, num_experts));
  }
  report.mean = MeanOf(report.layers);
  const auto num_layers = static_cast<double>(report.layers.size());
  if (IsBelow(report.mean.entropy, report.mean.uniform_entropy, std::sqrt(variance) / num_layers)) {
    report.mean.beyond_uniform = true;
  }
  return report;
}

}  // namespace moe
