// What a placement is expected to cost, by which the policy `balanced` decides and `plan --compare`
// judges. Values; any thread.
//
// A layer's owners work at the same time, so its routed experts take as long as the slowest of
// them. For a batch of `rows` rows an owner whose units draw the share S of the layer's traffic
// computes rows * experts_per_token * S units' worth of weights and is expected to take
//
//     min(1, rows * experts_per_token * S) * layer_seconds + bytes / bytes_per_second
//
// The first factor bounds the chance that any of its units is selected. The primary's layer_seconds
// is what it costs to leave its graph: it is paid on top of the slowest owner in every layer that
// the primary does not own alone, and nowhere else. Attention and the rest of the dense part are
// the same under every placement and not in here.
//
// docs/placement.md explains the model for people.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/target/ids.h"

namespace moe {

// How fast one target computes experts. All above 0 but layer_seconds, which may be 0.
struct TargetSpeed {
  // Bytes of expert weights a second, computing one row at a time.
  double decode_bytes_per_second = 0;
  // The same in a batch of CostModel::prompt_rows rows, where a weight counts once for every row
  // that uses it.
  double prompt_bytes_per_second = 0;
  // For taking part in a layer at all: handing rows over and collecting the results.
  double layer_seconds = 0;

  friend bool operator==(const TargetSpeed&, const TargetSpeed&) = default;
};

struct CostModel {
  std::vector<TargetSpeed> speeds;  // [targets], in list order
  TargetId primary;
  std::uint32_t prompt_rows = 512;         // of a prompt's batch
  double prompt_tokens_per_generated = 1;  // how prompts and generated tokens are weighted
};

// What one target owns of a layer.
struct OwnerLoad {
  double share = 0;         // of the layer's traffic, 0 to 1
  std::uint32_t units = 0;  // experts
};

// Seconds that the routed experts take.
struct ExpectedSeconds {
  double decode = 0;  // of a generated token
  double prompt = 0;  // of a token of a prompt

  // Of a generated token and the prompt tokens that come with it.
  double Weighted(const CostModel& costs) const {
    return decode + costs.prompt_tokens_per_generated * prompt;
  }
};

// The cost of one layer as a function of what each target owns of it.
class LayerCost {
 public:
  // Precondition: `costs` has a speed for each target.
  LayerCost(const ModelShape& shape, LayerId layer, const CostModel& costs);

  // `loads` is [targets] and covers the layer.
  ExpectedSeconds Seconds(std::span<const OwnerLoad> loads) const;

  // ExpectedSeconds::Weighted, plus `smoothing` times the Euclidean norm of the owners' times: that
  // tells a search in which direction a tie of several slowest owners can be broken.
  double Score(std::span<const OwnerLoad> loads, double smoothing) const;

 private:
  struct Owner {
    double decode = 0;  // seconds a token when it draws all of the layer's traffic
    double prompt = 0;
    double fixed = 0;  // seconds a batch that it takes part in; 0 for the primary
  };
  // Seconds a token.
  struct Phase {
    double slowest = 0;
    double squares = 0;
  };
  Phase Decode(std::span<const OwnerLoad> loads) const;
  Phase Prompt(std::span<const OwnerLoad> loads) const;
  double LeaveSeconds(std::span<const OwnerLoad> loads) const {
    return loads[primary_].units == num_experts_ ? 0 : leave_;
  }

  std::vector<Owner> owners_;
  std::size_t primary_ = 0;
  std::uint32_t num_experts_ = 0;
  double num_used_ = 0;
  double rows_ = 0;
  double prompt_weight_ = 0;
  double leave_ = 0;  // seconds a batch for leaving the primary's graph
};

// Of all layers. `owners` is [num_layers * num_experts], layer major, an index into the targets.
ExpectedSeconds ExpectSeconds(const ModelShape& shape, const Hotness& hotness,
                              std::span<const std::uint8_t> owners, const CostModel& costs);

// The target that computes weights fastest, one row at a time; of equal ones the first.
TargetId FastestTarget(const CostModel& costs);

}  // namespace moe
