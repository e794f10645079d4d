// A tiny second model family for tests: other shapes, no shared expert, no state.
//
// 3 layers x 5 experts, top-2, n_embd 12, n_ff 7, random weights in a made-up file of two shards
// whose stacks lie out of order and with gaps. The first layer has a fused gate_up, the second
// stores doubles instead of floats, so that bytes differ between layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/compute/reference_compute.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/materialize/materialization.h"
#include "moe/plan/model_shape.h"
#include "moe/plan/plan.h"
#include "moe/target/target_config.h"

namespace moe {

inline constexpr std::size_t kFakeLayers = 3;
inline constexpr std::size_t kFakeExperts = 5;
inline constexpr std::size_t kFakeUsed = 2;
inline constexpr std::size_t kFakeEmbd = 12;
inline constexpr std::size_t kFakeFf = 7;

// One expert's projections, row major.
struct FakeExpert {
  std::vector<float> gate;  // [n_ff, n_embd]
  std::vector<float> up;    // [n_ff, n_embd]
  std::vector<float> down;  // [n_embd, n_ff]
};

// The model: its file's bytes and what an adapter would say about them.
class FakeFamily final : public FloatExpertWeights {
 public:
  explicit FakeFamily(std::uint32_t seed);

  const ModelShape& shape() const { return shape_; }
  const ExpertStacks& stacks() const { return stacks_; }
  const std::vector<std::byte>& shard(std::size_t index) const { return shards_[index]; }
  static bool fused(LayerId layer) { return layer.index() == 0; }
  static std::size_t element_size(LayerId layer) { return layer.index() == 1 ? 8 : 4; }

  // The weights as they were before they were stored.
  std::size_t n_ff() const override { return kFakeFf; }
  std::span<const float> Gate(LayerId layer, ExpertId expert) const override;
  std::span<const float> Up(LayerId layer, ExpertId expert) const override;
  std::span<const float> Down(LayerId layer, ExpertId expert) const override;

 private:
  const FakeExpert& expert(LayerId layer, ExpertId expert) const {
    return experts_[layer.index() * kFakeExperts + expert.index()];
  }
  ExpertStack Store(LayerId layer, const std::string& name, std::size_t shard,
                    std::vector<float> FakeExpert::* first,
                    std::vector<float> FakeExpert::* second);

  std::vector<FakeExpert> experts_;  // [layers, experts]
  std::vector<std::vector<std::byte>> shards_;
  ExpertStacks stacks_;
  ModelShape shape_;
};

// What one target holds after it loaded its list: a stack per layer and projection, indexed by
// local id. Reads go from the router's id through the runtime's local id.
class LoadedTarget final : public FloatExpertWeights {
 public:
  LoadedTarget(const FakeFamily& family,
               std::shared_ptr<const ExpertSplitMaterialization> materialization, TargetId target);

  // Breaks it: the stack entries of two local ids of a layer change places.
  void Swap(LayerId layer, LocalId a, LocalId b);

  std::size_t n_ff() const override { return kFakeFf; }
  std::span<const float> Gate(LayerId layer, ExpertId expert) const override;
  std::span<const float> Up(LayerId layer, ExpertId expert) const override;
  std::span<const float> Down(LayerId layer, ExpertId expert) const override;

 private:
  const FakeExpert& at(LayerId layer, ExpertId expert) const;

  std::shared_ptr<const ExpertSplitMaterialization> materialization_;
  std::vector<std::vector<FakeExpert>> stacks_;  // [layers][num_local]
};

// A batch of random rows, ids (distinct in a row) and weights.
class FakeBatch {
 public:
  FakeBatch(LayerId layer, std::size_t num_rows, std::uint32_t seed);
  // Every slot of every row goes to one of `experts`.
  FakeBatch(LayerId layer, std::size_t num_rows, std::uint32_t seed, std::vector<ExpertId> experts);

  const ExpertBatch& batch() const { return batch_; }
  // All phases on a team of `team` in turn (no thread is started), then CombineParts.
  base::Result<std::vector<float>> Run(MoeExpertCompute& compute, std::size_t team) const;

 private:
  std::vector<float> rows_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  ExpertBatch batch_;
};

// A plan with owners drawn at random among the targets of `config`.
ExpertSplitPlan RandomPlan(const FakeFamily& family, const ExpertSplitTargetConfig& config,
                           std::mt19937& random);
// A plan with these owners, [layers * experts].
ExpertSplitPlan PlanOf(const FakeFamily& family, const ExpertSplitTargetConfig& config,
                       std::vector<std::uint8_t> owners);
ExpertSplitTargetConfig ConfigOf(const std::string& list);

}  // namespace moe
