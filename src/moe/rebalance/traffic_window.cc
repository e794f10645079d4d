#include "moe/rebalance/traffic_window.h"

#include <cmath>

#include "base/check.h"

namespace moe {
namespace {

// Faded counts keep three digits behind the point when they become whole numbers.
constexpr double kScale = 1000;

}  // namespace

TrafficWindow::TrafficWindow(const ModelShape& shape, double half_life_tokens)
    : num_experts_(shape.num_experts),
      num_used_(shape.experts_per_token),
      half_life_tokens_(half_life_tokens),
      counts_(shape.num_units()) {
  ES_CHECK(half_life_tokens > 0);
}

void TrafficWindow::Observe(const RoutingProfile& total) {
  const std::uint64_t before = last_ ? last_->num_tokens() : 0;
  ES_CHECK(total.num_tokens() >= before && total.counts().size() * num_experts_ == counts_.size());
  const auto fresh = static_cast<double>(total.num_tokens() - before);
  if (fresh == 0) return;
  const double fade = std::exp2(-fresh / half_life_tokens_);
  tokens_ = tokens_ * fade + fresh;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const std::size_t layer = i / num_experts_;
    const std::size_t expert = i % num_experts_;
    const std::uint64_t old = last_ ? last_->counts()[layer][expert] : 0;
    counts_[i] = counts_[i] * fade + static_cast<double>(total.counts()[layer][expert] - old);
  }
  last_ = total;
}

double TrafficWindow::share(LayerId layer, ExpertId expert) const {
  if (tokens_ == 0) return 0;
  return count(layer, expert) / (tokens_ * static_cast<double>(num_used_));
}

Hotness TrafficWindow::HotnessNow(const ModelShape& shape) const {
  std::vector<std::vector<std::uint64_t>> counts(shape.layers.size());
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts[i / num_experts_].push_back(
        static_cast<std::uint64_t>(std::llround(counts_[i] * kScale)));
  }
  return Hotness::FromCounts(shape, counts);
}

}  // namespace moe
