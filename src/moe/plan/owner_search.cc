#include "moe/plan/owner_search.h"

#include <algorithm>
#include <numeric>

namespace moe {
namespace {

// Of the owners' times, beside the slowest one's: first to find a way, then only to break ties.
constexpr double kSmoothing = 0.05;
constexpr double kTieBreak = 1e-6;
// Of what a layer costs: rounding errors are no gain.
constexpr double kLeastGain = 1e-9;
// Places of a target's list from which a step may take units.
constexpr std::size_t kMovePlaces = 5;
constexpr std::size_t kSwapPlaces = 3;
constexpr std::size_t kShakes = 300;

// A model's units are below 2^63 bytes together (plan/verifier.h); more capacity is never needed.
std::int64_t Signed(base::Bytes bytes) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes.count(), INT64_MAX));
}

// Place number `i` of `places`, spread over [0, last].
std::size_t Place(std::size_t i, std::size_t places, std::size_t last) {
  return places < 2 ? 0 : i * last / (places - 1);
}

}  // namespace

OwnerSearch::OwnerSearch(const PlanRequest& request)
    : request_(request),
      num_layers_(request.shape->layers.size()),
      num_experts_(request.shape->num_experts),
      num_targets_(request.targets.size()),
      experts_(request.shape->num_units()),
      shares_(request.shape->num_units()),
      owners_(request.shape->num_units()),
      free_(num_targets_),
      loads_(num_layers_, std::vector<OwnerLoad>(num_targets_)),
      scores_(num_layers_),
      moves_(num_layers_ * num_targets_ * num_targets_),
      swaps_(num_layers_),
      lists_{.ranks = std::vector<std::vector<std::uint32_t>>(num_targets_),
             .sums = std::vector<std::vector<double>>(num_targets_)} {
  for (const PlanTarget& target : request.targets) unbounded_.push_back(!target.capacity);
  for (std::size_t l = 0; l < num_layers_; ++l) {
    const LayerId layer(l);
    costs_.emplace_back(*request.shape, layer, *request.costs);
    unit_bytes_.push_back(Signed(request.shape->unit_bytes(layer)));
    const auto experts = std::span(experts_).subspan(l * num_experts_, num_experts_);
    std::iota(experts.begin(), experts.end(), 0U);
    const auto share = [&](std::uint32_t e) { return request.hotness->share(layer, ExpertId(e)); };
    std::ranges::stable_sort(experts, std::ranges::greater{}, share);
    std::ranges::transform(experts, shares_.begin() + static_cast<std::ptrdiff_t>(l * num_experts_),
                           share);
  }
}

void OwnerSearch::Load(std::span<const std::uint8_t> owners) {
  for (std::size_t t = 0; t < num_targets_; ++t) {
    free_[t] = Signed(request_.targets[t].capacity.value_or(base::Bytes()));
  }
  for (std::size_t l = 0; l < num_layers_; ++l) {
    for (std::size_t rank = 0; rank < num_experts_; ++rank) {
      const std::size_t unit = l * num_experts_ + rank;
      owners_[unit] = owners[l * num_experts_ + experts_[unit]];
      if (!unbounded_[owners_[unit]]) free_[owners_[unit]] -= unit_bytes_[l];
    }
  }
}

std::vector<std::uint8_t> OwnerSearch::Owners() const {
  std::vector<std::uint8_t> owners(owners_.size());
  for (std::size_t unit = 0; unit < owners.size(); ++unit) {
    owners[unit / num_experts_ * num_experts_ + experts_[unit]] = owners_[unit];
  }
  return owners;
}

double OwnerSearch::Cost() const {
  double sum = 0;
  for (std::size_t l = 0; l < num_layers_; ++l) sum += costs_[l].Score(loads_[l], 0);
  return sum;
}

void OwnerSearch::Own(std::size_t layer, std::size_t rank, std::size_t target) {
  std::uint8_t& now = owner(layer, rank);
  if (!unbounded_[now]) free_[now] += unit_bytes_[layer];
  if (!unbounded_[target]) free_[target] -= unit_bytes_[layer];
  now = static_cast<std::uint8_t>(target);
}

void OwnerSearch::ListUnits(std::size_t layer) {
  for (std::size_t t = 0; t < num_targets_; ++t) {
    lists_.ranks[t].clear();
    lists_.sums[t].assign(1, 0);
  }
  for (std::size_t rank = 0; rank < num_experts_; ++rank) {
    const std::uint8_t t = owner(layer, rank);
    lists_.ranks[t].push_back(static_cast<std::uint32_t>(rank));
    lists_.sums[t].push_back(lists_.sums[t].back() + shares_[layer * num_experts_ + rank]);
  }
}

// The layer's score when units of this share go from one target to another.
double OwnerSearch::ScoreWith(std::size_t layer, std::size_t from, std::size_t to, double share,
                              std::ptrdiff_t units) {
  trial_ = loads_[layer];
  trial_[from].share = std::max(0.0, trial_[from].share - share);
  trial_[to].share += share;
  trial_[from].units = static_cast<std::uint32_t>(trial_[from].units - units);
  trial_[to].units = static_cast<std::uint32_t>(trial_[to].units + units);
  ++num_scores_;
  return costs_[layer].Score(trial_, smoothing_);
}

OwnerSearch::Step OwnerSearch::BestMove(std::size_t layer, std::size_t from, std::size_t to) {
  const std::size_t count = std::min(chunk_, lists_.ranks[from].size());
  Step best{.gain = -1e300, .layer = layer, .from = from, .to = to, .count = count};
  if (count == 0) return best;
  const std::vector<double>& sums = lists_.sums[from];
  const std::size_t last = lists_.ranks[from].size() - count;
  const std::size_t places = std::min(kMovePlaces, last + 1);
  for (std::size_t i = 0; i < places; ++i) {
    const std::size_t first = Place(i, places, last);
    const double gain =
        scores_[layer] - ScoreWith(layer, from, to, sums[first + count] - sums[first],
                                   static_cast<std::ptrdiff_t>(count));
    if (gain > best.gain) {
      best.gain = gain;
      best.first = first;
    }
  }
  return best;
}

// The best of as many units for as many between the step's two targets, when it beats the step.
void OwnerSearch::TrySwaps(Step& best) {
  const std::size_t size[] = {lists_.ranks[best.from].size(), lists_.ranks[best.to].size()};
  const std::size_t count = std::min({chunk_, size[0], size[1]});
  if (count == 0) return;
  const std::size_t from = best.from;
  const std::size_t to = best.to;
  const std::size_t last[] = {size[0] - count, size[1] - count};
  const std::size_t places[] = {std::min(kSwapPlaces, last[0] + 1),
                                std::min(kSwapPlaces, last[1] + 1)};
  for (std::size_t i = 0; i < places[0]; ++i) {
    for (std::size_t j = 0; j < places[1]; ++j) {
      const std::size_t there = Place(i, places[0], last[0]);
      const std::size_t back = Place(j, places[1], last[1]);
      const double share = lists_.sums[from][there + count] - lists_.sums[from][there] -
                           (lists_.sums[to][back + count] - lists_.sums[to][back]);
      const double gain = scores_[best.layer] - ScoreWith(best.layer, from, to, share, 0);
      if (gain > best.gain) {
        best = {.gain = gain,
                .layer = best.layer,
                .from = from,
                .to = to,
                .first = there,
                .count = count,
                .back_first = back,
                .back = count};
      }
    }
  }
}

OwnerSearch::Step OwnerSearch::BestSwap(std::size_t layer) {
  Step best{.layer = layer};
  for (std::size_t from = 0; from < num_targets_; ++from) {
    for (std::size_t to = from + 1; to < num_targets_; ++to) {
      Step step{.gain = best.gain, .layer = layer, .from = from, .to = to};
      TrySwaps(step);
      if (step.gain > best.gain) best = step;
    }
  }
  return best;
}

void OwnerSearch::Refresh(std::size_t layer) {
  ListUnits(layer);
  for (std::size_t t = 0; t < num_targets_; ++t) {
    loads_[layer][t] = {.share = lists_.sums[t].back(),
                        .units = static_cast<std::uint32_t>(lists_.ranks[t].size())};
  }
  scores_[layer] = costs_[layer].Score(loads_[layer], smoothing_);
  for (std::size_t from = 0; from < num_targets_; ++from) {
    for (std::size_t to = 0; to < num_targets_; ++to) {
      if (from == to) continue;
      moves_[(layer * num_targets_ + from) * num_targets_ + to] = BestMove(layer, from, to);
    }
  }
  swaps_[layer] = BestSwap(layer);
}

void OwnerSearch::RefreshAll() {
  for (std::size_t l = 0; l < num_layers_; ++l) Refresh(l);
}

void OwnerSearch::ConsiderMoves(Exchange& best) const {
  for (std::size_t l = 0; l < num_layers_; ++l) {
    if (swaps_[l].gain > best.gain) best = {.step = swaps_[l], .room = {}, .gain = swaps_[l].gain};
    for (std::size_t from = 0; from < num_targets_; ++from) {
      for (std::size_t to = 0; to < num_targets_; ++to) {
        const Step& step = move(l, from, to);
        if (from == to || step.gain <= best.gain) continue;
        if (!HasRoom(to, Bytes(step))) continue;
        best = {.step = step, .room = {}, .gain = step.gain};
      }
    }
  }
}

// A move to `target`, which is full, with one of another layer that makes room there.
void OwnerSearch::ConsiderExchanges(std::size_t target, Exchange& best) const {
  const Step* in = nullptr;
  for (std::size_t l = 0; l < num_layers_; ++l) {
    for (std::size_t from = 0; from < num_targets_; ++from) {
      if (from == target) continue;
      const Step& step = move(l, from, target);
      if (step.count > 0 && (in == nullptr || step.gain > in->gain)) in = &step;
    }
  }
  if (in == nullptr || in->gain <= best.gain) return;
  const std::int64_t bytes_in = Bytes(*in);
  for (std::size_t l = 0; l < num_layers_; ++l) {
    if (l == in->layer) continue;
    for (std::size_t to = 0; to < num_targets_; ++to) {
      if (to == target) continue;
      const Step& out = move(l, target, to);
      if (out.count == 0 || in->gain + out.gain <= best.gain) continue;
      const std::int64_t bytes_out = Bytes(out);
      if (!HasRoom(target, bytes_in, bytes_out)) continue;
      if (!HasRoom(to, bytes_out, to == in->from ? bytes_in : 0)) continue;
      best = {.step = *in, .room = out, .gain = in->gain + out.gain};
    }
  }
}

std::optional<OwnerSearch::Exchange> OwnerSearch::BestExchange() const {
  const double score = std::accumulate(scores_.begin(), scores_.end(), 0.0);
  const double least = kLeastGain * score;
  Exchange best{.step = {}, .room = {}, .gain = least};
  ConsiderMoves(best);
  for (std::size_t t = 0; t < num_targets_; ++t) {
    if (!unbounded_[t]) ConsiderExchanges(t, best);
  }
  if (best.gain <= least) return std::nullopt;
  return best;
}

void OwnerSearch::Apply(const Step& step) {
  ListUnits(step.layer);
  for (std::size_t i = 0; i < step.back; ++i) {
    Own(step.layer, lists_.ranks[step.to][step.back_first + i], step.from);
  }
  for (std::size_t i = 0; i < step.count; ++i) {
    Own(step.layer, lists_.ranks[step.from][step.first + i], step.to);
  }
}

void OwnerSearch::Descend(std::size_t chunk, double smoothing) {
  chunk_ = chunk;
  smoothing_ = smoothing;
  RefreshAll();
  while (num_scores_ < budget_) {
    const std::optional<Exchange> exchange = BestExchange();
    if (!exchange) return;
    if (exchange->room) Apply(*exchange->room);
    Apply(exchange->step);
    if (exchange->room) Refresh(exchange->room->layer);
    Refresh(exchange->step.layer);
  }
}

void OwnerSearch::DescendAll() {
  for (std::size_t chunk = num_experts_; chunk > 1; chunk = (chunk + 3) / 4) {
    Descend(chunk, kSmoothing);
  }
  Descend(1, kSmoothing);
  Descend(1, kTieBreak);
}

void OwnerSearch::Shake() {
  const auto below = [this](std::size_t n) { return static_cast<std::size_t>(random_() % n); };
  for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
    const std::size_t layer = below(num_layers_);
    const std::size_t rank = below(num_experts_);
    const std::size_t other_layer = below(num_layers_);
    const std::size_t other_rank = below(num_experts_);
    const std::size_t from = owner(layer, rank);
    const std::size_t to = below(2) == 0 ? below(num_targets_) : owner(other_layer, other_rank);
    if (from == to) continue;
    if (HasRoom(to, unit_bytes_[layer])) {
      Own(layer, rank, to);
    } else if (owner(other_layer, other_rank) == to &&
               HasRoom(to, unit_bytes_[layer], unit_bytes_[other_layer]) &&
               HasRoom(from, unit_bytes_[other_layer], unit_bytes_[layer])) {
      Own(other_layer, other_rank, from);
      Own(layer, rank, to);
    }
  }
}

std::vector<std::uint8_t> OwnerSearch::Improve(std::span<const std::uint8_t> start,
                                               std::size_t budget) {
  random_.seed(1);
  num_scores_ = 0;
  budget_ = budget;
  Load(start);
  smoothing_ = 0;
  RefreshAll();
  std::vector<std::uint8_t> best(start.begin(), start.end());
  double best_cost = Cost();
  const auto keep = [&] {
    const double cost = Cost();
    if (cost >= best_cost) return false;
    best_cost = cost;
    best = Owners();
    return true;
  };
  DescendAll();
  keep();
  for (std::size_t shake = 0; shake < kShakes && num_scores_ < budget_; ++shake) {
    Shake();
    Descend(1, kSmoothing);
    Descend(1, kTieBreak);
    if (!keep()) Load(best);
  }
  return best;
}

}  // namespace moe
