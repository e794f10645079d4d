// The search behind the policy `balanced`: better owners under a cost model, within capacities.
//
// From a start it takes the best step there is until none gains anything: units of a layer go to
// another target, change places with units of that target, or come in where units of another layer
// make room. Steps are of many units first and of single ones last. What is found is then shaken
// at random (a fixed seed) and improved again while the budget lasts. The same request gives the
// same owners. Internal to src/moe/plan; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "moe/plan/cost_model.h"
#include "moe/plan/plan.h"

namespace moe {

class OwnerSearch {
 public:
  // Precondition: what ExpertSplitPlan::Make checks of a request of the policy `balanced`. What the
  // request points to outlives the search.
  explicit OwnerSearch(const PlanRequest& request);

  // `start` is [num_layers * num_experts], layer major, within the capacities. Returns owners that
  // cost no more. Evaluates about `budget` layer costs at most.
  std::vector<std::uint8_t> Improve(std::span<const std::uint8_t> start, std::size_t budget);

 private:
  // `count` units of `layer` go from one target to another and `back` units return; both are
  // positions in the targets' lists of the layer's units, hottest first.
  struct Step {
    double gain = 0;  // what it takes off the score
    std::size_t layer = 0;
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t back_first = 0;
    std::size_t back = 0;
  };
  struct Exchange {
    Step step;
    std::optional<Step> room;  // taken before it
    double gain = 0;
  };
  // What each target owns of one layer.
  struct Lists {
    std::vector<std::vector<std::uint32_t>> ranks;  // [targets], hottest first
    std::vector<std::vector<double>> sums;          // [targets][units + 1]: shares before a unit
  };

  std::uint8_t& owner(std::size_t layer, std::size_t rank) {
    return owners_[layer * num_experts_ + rank];
  }
  const Step& move(std::size_t layer, std::size_t from, std::size_t to) const {
    return moves_[(layer * num_targets_ + from) * num_targets_ + to];
  }
  std::int64_t Bytes(const Step& step) const {
    return unit_bytes_[step.layer] * static_cast<std::int64_t>(step.count);
  }
  bool HasRoom(std::size_t target, std::int64_t bytes, std::int64_t freed = 0) const {
    return unbounded_[target] || bytes <= free_[target] + freed;
  }

  void Load(std::span<const std::uint8_t> owners);
  std::vector<std::uint8_t> Owners() const;
  double Cost() const;
  void Own(std::size_t layer, std::size_t rank, std::size_t target);

  // The steps of a layer, anew.
  void ListUnits(std::size_t layer);
  void Refresh(std::size_t layer);
  void RefreshAll();
  Step BestMove(std::size_t layer, std::size_t from, std::size_t to);
  Step BestSwap(std::size_t layer);
  void TrySwaps(Step& best);
  double ScoreWith(std::size_t layer, std::size_t from, std::size_t to, double share,
                   std::ptrdiff_t units);

  std::optional<Exchange> BestExchange() const;
  void ConsiderMoves(Exchange& best) const;
  void ConsiderExchanges(std::size_t target, Exchange& best) const;
  void Apply(const Step& step);
  void Descend(std::size_t chunk, double smoothing);
  void DescendAll();
  // Changes a few owners at random.
  void Shake();

  const PlanRequest& request_;
  std::size_t num_layers_ = 0;
  std::size_t num_experts_ = 0;
  std::size_t num_targets_ = 0;
  std::vector<LayerCost> costs_;          // [layers]
  std::vector<std::int64_t> unit_bytes_;  // [layers]
  std::vector<bool> unbounded_;           // [targets]
  std::vector<std::uint32_t> experts_;    // [layers, ranks]: the expert of each rank
  std::vector<double> shares_;            // [layers, ranks], falling

  std::vector<std::uint8_t> owners_;  // [layers, ranks]
  // [targets]: bytes still free; below 0 only between the two halves of an exchange.
  std::vector<std::int64_t> free_;
  std::vector<std::vector<OwnerLoad>> loads_;  // [layers][targets]
  std::vector<double> scores_;                 // [layers]
  std::vector<Step> moves_;                    // [layers, targets, targets]
  std::vector<Step> swaps_;                    // [layers]
  Lists lists_;                                // of the layer listed last
  std::vector<OwnerLoad> trial_;
  std::size_t chunk_ = 1;
  double smoothing_ = 0;
  std::size_t num_scores_ = 0;
  std::size_t budget_ = 0;
  std::mt19937_64 random_;
};

}  // namespace moe
