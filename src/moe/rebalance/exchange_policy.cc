#include "moe/rebalance/exchange_policy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace moe {
namespace {

// Of one layer at once: what comes after them is better seen by fresh counts.
constexpr std::size_t kMostOfALayer = 8;

struct Candidate {
  UnitExchange exchange;
  double gain = 0;  // per byte moved
};

// One layer while exchanges are chosen for it.
class LayerSearch {
 public:
  LayerSearch(const ExchangeRequest& request, LayerId layer)
      : request_(request),
        layer_(layer),
        owners_(request.units->owners.begin() +
                    static_cast<std::ptrdiff_t>(layer.index() * num_experts()),
                request.units->owners.begin() +
                    static_cast<std::ptrdiff_t>((layer.index() + 1) * num_experts())),
        used_(num_experts(), false) {
    if (request.costs == nullptr) return;
    cost_.emplace(*request.shape, layer, *request.costs);
    loads_.resize(request.units->targets.size());
    for (std::size_t e = 0; e < num_experts(); ++e) {
      loads_[owners_[e]].share += Share(e);
      ++loads_[owners_[e]].units;
    }
  }

  // The best exchange there is, which is then made here; nothing when none is worth it.
  std::optional<Candidate> Next() {
    std::optional<Candidate> best;
    const std::size_t num_targets = request_.units->targets.size();
    for (std::size_t to = 0; to < num_targets; ++to) {
      for (std::size_t from = 0; from < num_targets; ++from) {
        // In list order only the earlier target gets the hotter one.
        if ((!cost_ && from < to) || !request_.units->Exchangeable(from, to)) continue;
        Offer(from, to, best);
      }
    }
    if (best) Make(best->exchange);
    return best;
  }

 private:
  std::size_t num_experts() const { return request_.shape->num_experts; }
  double Count(std::size_t expert) const {
    return request_.traffic->count(layer_, ExpertId(expert));
  }
  double Share(std::size_t expert) const {
    return request_.traffic->share(layer_, ExpertId(expert));
  }

  // The owner's hottest or coldest expert that was not exchanged yet.
  template <class Better>
  std::optional<std::size_t> Extreme(std::size_t owner, const Better& better) const {
    std::optional<std::size_t> found;
    for (std::size_t e = 0; e < num_experts(); ++e) {
      if (owners_[e] != owner || used_[e]) continue;
      if (!found || better(Count(e), Count(*found))) found = e;
    }
    return found;
  }

  void Offer(std::size_t from, std::size_t to, std::optional<Candidate>& best) const {
    const auto hot = Extreme(from, std::greater<>());
    const auto cold = Extreme(to, std::less<>());
    if (!hot || !cold || !Differ(Count(*hot), Count(*cold))) return;
    const double gain = cost_ ? TimeGain(*hot, *cold) : UseGain(*hot, *cold);
    const auto bytes = 2 * static_cast<double>(request_.shape->unit_bytes(layer_).count());
    if (gain <= 0 || (best && gain / bytes <= best->gain)) return;
    best = {.exchange = {layer_, ExpertId(*hot), ExpertId(*cold)}, .gain = gain / bytes};
  }

  bool Differ(double hot, double cold) const {
    const double by = hot - cold;
    return by > request_.rules.hysteresis * hot &&
           by > request_.rules.deviations * std::sqrt(hot + cold);
  }

  // Uses in the horizon beyond those that the move costs.
  double UseGain(std::size_t hot, std::size_t cold) const {
    const double uses = (Share(hot) - Share(cold)) *
                        static_cast<double>(request_.shape->experts_per_token) *
                        request_.rules.horizon_tokens;
    return (uses - kUsesOfAMove) * static_cast<double>(request_.shape->unit_bytes(layer_).count());
  }

  // Seconds in the horizon beyond those that the move costs.
  double TimeGain(std::size_t hot, std::size_t cold) const {
    std::vector<OwnerLoad> loads = loads_;
    Shift(loads, owners_[hot], owners_[cold], Share(hot) - Share(cold));
    const CostModel& costs = *request_.costs;
    const double saved =
        cost_->Seconds(loads_).Weighted(costs) - cost_->Seconds(loads).Weighted(costs);
    const double speed = std::min(costs.speeds[owners_[hot]].decode_bytes_per_second,
                                  costs.speeds[owners_[cold]].decode_bytes_per_second);
    const double move = 2 * static_cast<double>(request_.shape->unit_bytes(layer_).count()) / speed;
    // `saved` is of a generated token and the prompt tokens that come with it.
    return saved * request_.rules.horizon_tokens / (1 + costs.prompt_tokens_per_generated) - move;
  }

  static void Shift(std::vector<OwnerLoad>& loads, std::size_t from, std::size_t to, double share) {
    loads[from].share -= share;
    loads[to].share += share;
  }

  void Make(const UnitExchange& exchange) {
    const std::size_t hot = exchange.first.index();
    const std::size_t cold = exchange.second.index();
    if (cost_) Shift(loads_, owners_[hot], owners_[cold], Share(hot) - Share(cold));
    std::swap(owners_[hot], owners_[cold]);
    used_[hot] = used_[cold] = true;
  }

  const ExchangeRequest& request_;
  LayerId layer_;
  std::vector<std::uint8_t> owners_;  // [num_experts]
  std::vector<bool> used_;            // [num_experts]
  std::optional<LayerCost> cost_;
  std::vector<OwnerLoad> loads_;  // [targets]; with costs
};

}  // namespace

std::vector<UnitExchange> ChooseExchanges(const ExchangeRequest& request) {
  if (request.traffic->tokens() < request.rules.min_tokens) return {};
  std::vector<Candidate> candidates;
  for (std::size_t l = 0; l < request.shape->layers.size(); ++l) {
    if (std::ranges::contains(request.units->fixed_layers, LayerId(l))) continue;
    LayerSearch search(request, LayerId(l));
    for (std::size_t i = 0; i < kMostOfALayer; ++i) {
      const auto next = search.Next();
      if (!next) break;
      candidates.push_back(*next);
    }
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::gain);
  std::vector<UnitExchange> chosen;
  base::Bytes moved;
  for (const Candidate& candidate : candidates) {
    moved += request.shape->unit_bytes(candidate.exchange.layer) * 2;
    if (!chosen.empty() && moved > request.budget) break;
    chosen.push_back(candidate.exchange);
  }
  return chosen;
}

}  // namespace moe
