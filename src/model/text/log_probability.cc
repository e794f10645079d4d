#include "model/text/log_probability.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace model {

LogProbabilities LogProbabilitiesOf(std::span<const float> logits, Token token, std::size_t count) {
  ES_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size());
  const float largest = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  const double log_sum = std::log(sum) + static_cast<double>(largest);
  const auto log_probability = [&](Token t) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(t)]) - log_sum);
  };

  LogProbabilities result;
  result.token = log_probability(token);
  count = std::min(count, logits.size());
  if (count == 0) return result;
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](Token a, Token b) {
                      const float la = logits[static_cast<std::size_t>(a)];
                      const float lb = logits[static_cast<std::size_t>(b)];
                      return la != lb ? la > lb : a < b;
                    });
  for (std::size_t i = 0; i < count; ++i) {
    result.top.push_back({order[i], log_probability(order[i])});
  }
  return result;
}

}  // namespace model
