// Random experts of any weight type, and a team of threads, for tests of owners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/reference_compute.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/plan/model_shape.h"
#include "moe/runtime/runtime.h"

namespace moe {

struct TestExpertShape {
  std::size_t num_layers = 1;
  std::size_t num_experts = 6;
  std::size_t n_embd = 512;
  std::size_t n_ff = 256;
  bool fused = false;
  // Factors an expert on the outputs of gate, up and down.
  bool scales = false;
  int gate_type = 0;
  int up_type = 0;
  int down_type = 0;
};

TestExpertShape ShapeOfType(int type);

// Random weights encoded in the shape's types; as floats they are what the encoded ones decode to.
class TestExperts final : public FloatExpertWeights {
 public:
  explicit TestExperts(const TestExpertShape& shape, std::uint32_t seed = 1);

  const TestExpertShape& shape() const { return shape_; }
  std::shared_ptr<const ExpertWeights> weights() const { return weights_; }

  std::size_t n_ff() const override { return shape_.n_ff; }
  std::span<const float> Gate(LayerId layer, ExpertId expert) const override;
  std::span<const float> Up(LayerId layer, ExpertId expert) const override;
  std::span<const float> Down(LayerId layer, ExpertId expert) const override;

 private:
  struct Matrix {
    std::vector<std::byte> encoded;
    std::vector<float> decoded;  // [num_experts, num_rows, row_width], scaled
  };

  ExpertMatrix Add(const std::string& name, int type, std::size_t num_rows, std::size_t row_width);

  TestExpertShape shape_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Matrix>> matrices_;  // gate, [up,] down of each layer
  std::shared_ptr<ExpertWeights> weights_;
};

// The experts with stacks and sizes as a file of them would have them; not fused.
struct TestModel {
  TestModel(const TestExpertShape& described, std::uint32_t num_used);

  TestExpertShape test_shape;
  std::unique_ptr<TestExperts> experts;
  ModelShape shape;
  ExpertStacks stacks;
};

// Random owners: every one of the targets owns some expert of some layer.
std::shared_ptr<const ExpertSplitRuntime> SplitAtRandom(const TestExpertShape& shape,
                                                        std::size_t num_targets,
                                                        std::uint32_t seed = 3);
// `owners` is [num_layers * num_experts].
std::shared_ptr<const ExpertSplitRuntime> SplitAs(const TestExpertShape& shape,
                                                  std::vector<std::uint8_t> owners);

// Random rows, distinct random experts for each, and weights that sum to one.
class TestBatch {
 public:
  TestBatch(const TestExpertShape& shape, std::size_t num_rows, std::size_t num_used,
            std::uint32_t seed = 2);

  ExpertBatch batch(LayerId layer = LayerId(0)) const;
  // Row `row` alone.
  ExpertBatch One(std::size_t row, LayerId layer = LayerId(0)) const;
  std::size_t num_rows() const { return num_rows_; }

  std::vector<float> rows;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

 private:
  std::size_t num_rows_ = 0;
  std::size_t num_used_ = 0;
  std::size_t n_embd_ = 0;
};

// All phases of one batch by `num_threads` real threads with a barrier between phases; the owners'
// parts are combined in their order. A failed Begin or Finish is a failed expectation.
std::vector<float> RunBatch(std::span<MoeExpertCompute* const> owners, const ExpertBatch& batch,
                            std::size_t num_threads = 1);
std::vector<float> RunBatch(MoeExpertCompute& owner, const ExpertBatch& batch,
                            std::size_t num_threads = 1);

// The weighted sums in double, rounded once.
std::vector<float> Reference(const FloatExpertWeights& experts, const ExpertBatch& batch);

// Sum of squared errors over the sum of squares.
double Nmse(std::span<const float> values, std::span<const float> reference);

}  // namespace moe
