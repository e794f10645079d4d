// A slow, double-precision MoeExpertCompute: what every fast one is compared with.
//
// Computes on the team's threads from weights given as floats; every dot product and the SwiGLU are
// double, each result is rounded to float once. One order of summation per pair, so it keeps the
// bit rule of expert_compute.h. For tests and small models; threads as MoeExpertCompute says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/runtime/runtime.h"
#include "moe/target/ids.h"

namespace moe {

// Weights of single experts as floats, row major. Implementations answer for every unit, whoever
// owns it, from any thread; what they return stays valid as long as they live.
class FloatExpertWeights {
 public:
  virtual ~FloatExpertWeights() = default;

  virtual std::size_t n_ff() const = 0;  // width of an expert's hidden layer
  virtual std::span<const float> Gate(LayerId layer, ExpertId expert) const = 0;  // [n_ff, n_embd]
  virtual std::span<const float> Up(LayerId layer, ExpertId expert) const = 0;    // [n_ff, n_embd]
  virtual std::span<const float> Down(LayerId layer, ExpertId expert) const = 0;  // [n_embd, n_ff]
};

class ReferenceCompute final : public MoeExpertCompute {
 public:
  // Computes the pairs whose expert `target` owns in `runtime`; with kSums it returns one weighted
  // sum a row, added in slot order in double, as a device owner may. Never fails.
  ReferenceCompute(std::shared_ptr<const FloatExpertWeights> weights,
                   std::shared_ptr<const ExpertSplitRuntime> runtime, TargetId target,
                   PartForm form = PartForm::kPairs);

  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override;
  std::size_t num_parts() const override { return 1; }
  std::uint64_t num_pairs(std::size_t) const override { return num_pairs_; }

 private:
  bool Owns(std::size_t pair) const;
  void ComputeSum(std::size_t row);

  std::shared_ptr<const FloatExpertWeights> weights_;
  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  TargetId target_;
  PartForm form_;

  ExpertBatch batch_;
  std::uint64_t batch_pairs_ = 0;    // owned pairs of the batch
  std::vector<float> values_;        // [num_rows, num_used, n_embd]; kSums: [num_rows, n_embd]
  std::vector<const float*> pairs_;  // [num_rows, num_used] into values_
  std::uint64_t num_pairs_ = 0;
};

// y = W_down * (silu(W_gate * x) * (W_up * x)) of one unit in double; `row` is [n_embd], the result
// as well. What ReferenceCompute rounds to float.
std::vector<double> ReferenceExpert(const FloatExpertWeights& weights, LayerId layer,
                                    ExpertId expert, std::span<const float> row);

}  // namespace moe
