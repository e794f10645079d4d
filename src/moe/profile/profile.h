// RoutingProfile: how often a model's router selected each expert while it read some text.
// What it says of a router is in moe/profile/routing_report.h.
//
// A value. Collecting (CountStep) is for one thread at a time; everything else may be read from
// any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/target/ids.h"

namespace moe {

class RoutingProfile {
 public:
  // Largest count and number of tokens: what a JSON reader keeps exactly.
  static constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 53;

  // Nothing counted yet. `text` names what will be read, for people.
  RoutingProfile(ModelIdentity model, std::string text);

  // The selections of one step, as the routers gave them: `ids` has a line for each layer, all of
  // one length, that begins with [num_tokens, num_used] ids, each expert at most once a token; what
  // lies behind them is ignored. Allocates nothing. Errors: kDeviceFailure, with nothing counted,
  // for an id that is no expert of the model, naming it and the layer.
  base::Result<void> CountStep(std::span<const std::int32_t> ids, std::size_t num_tokens,
                               std::size_t num_used);

  // A profile from known counts, [num_layers][num_experts]. Errors: kInvalidInput, naming layer and
  // expert, for other dimensions, a count above `num_tokens` or a number above kMaxCount.
  static base::Result<RoutingProfile> FromCounts(ModelIdentity model, std::string text,
                                                 std::uint64_t num_tokens,
                                                 std::vector<std::vector<std::uint64_t>> counts);

  // The model that was running. Its quantisation and directory_hash are for information.
  const ModelIdentity& model() const { return model_; }
  const std::string& text() const { return text_; }
  std::uint64_t num_tokens() const { return num_tokens_; }
  // [num_layers][num_experts]
  const std::vector<std::vector<std::uint64_t>>& counts() const { return counts_; }

 private:
  ModelIdentity model_;
  std::string text_;
  std::uint64_t num_tokens_ = 0;
  std::vector<std::vector<std::uint64_t>> counts_;
};

struct WeightedProfile {
  const RoutingProfile* profile = nullptr;
  double weight = 1;  // above 0; 2 counts as if the text had been read twice
};

// Counts and tokens times their weights, added and rounded to the nearest; `text` becomes
// "a + 2*b". Model: the first one's. Errors: kInvalidInput for no profiles, a weight that is not
// above 0 and finite, or sums beyond kMaxCount or below one token; kCorruptModel for profiles of
// different models (both named).
base::Result<RoutingProfile> MergeProfiles(std::span<const WeightedProfile> profiles);

// Whether the profile may be used for `model`: it must agree in architecture, numbers of layers and
// experts, and shape_hash. Returns a note for people when quantisation or name differ, else empty.
// Errors: kCorruptModel, naming both models and the remedy.
base::Result<std::string> CheckProfileModel(const RoutingProfile& profile,
                                            const ModelIdentity& model);

// The planner's view. Precondition: CheckProfileModel accepts the profile for `shape.identity`.
Hotness HotnessOf(const RoutingProfile& profile, const ModelShape& shape);

}  // namespace moe
