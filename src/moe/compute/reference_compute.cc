#include "moe/compute/reference_compute.h"

#include <cmath>
#include <utility>

namespace moe {
namespace {

template <class T>
double Dot(std::span<const float> matrix, std::size_t row, std::span<const T> vector) {
  const std::span<const float> weights = matrix.subspan(row * vector.size(), vector.size());
  double sum = 0;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    sum += static_cast<double>(weights[i]) * static_cast<double>(vector[i]);
  }
  return sum;
}

}  // namespace

std::vector<double> ReferenceExpert(const FloatExpertWeights& weights, LayerId layer,
                                    ExpertId expert, std::span<const float> row) {
  const std::span<const float> gate = weights.Gate(layer, expert);
  const std::span<const float> up = weights.Up(layer, expert);
  const std::span<const float> down = weights.Down(layer, expert);
  std::vector<double> hidden(weights.n_ff());
  for (std::size_t f = 0; f < hidden.size(); ++f) {
    const double g = Dot(gate, f, row);
    hidden[f] = g / (1.0 + std::exp(-g)) * Dot(up, f, row);
  }
  std::vector<double> result(row.size());
  for (std::size_t c = 0; c < result.size(); ++c) {
    result[c] = Dot(down, c, std::span<const double>(hidden));
  }
  return result;
}

ReferenceCompute::ReferenceCompute(std::shared_ptr<const FloatExpertWeights> weights,
                                   std::shared_ptr<const ExpertSplitRuntime> runtime,
                                   TargetId target, PartForm form)
    : weights_(std::move(weights)), runtime_(std::move(runtime)), target_(target), form_(form) {}

bool ReferenceCompute::Owns(std::size_t pair) const {
  const ExpertId expert(static_cast<std::size_t>(batch_.ids[pair]));
  return runtime_->place(batch_.layer, expert).owner == target_;
}

base::Result<void> ReferenceCompute::Begin(const ExpertBatch& batch) {
  batch_ = batch;
  const std::size_t num_pairs = batch.num_rows * batch.num_used;
  const bool pairs = form_ == PartForm::kPairs;
  values_.assign((pairs ? num_pairs : batch.num_rows) * batch.n_embd, 0.0f);
  pairs_.assign(pairs ? num_pairs : 0, nullptr);
  batch_pairs_ = 0;
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    if (!Owns(pair)) continue;
    ++batch_pairs_;
    if (pairs) pairs_[pair] = values_.data() + pair * batch.n_embd;
  }
  num_pairs_ += batch_pairs_;
  return {};
}

void ReferenceCompute::Prepare(TeamThread) {}
void ReferenceCompute::Expand(TeamThread) {}

void ReferenceCompute::Reduce(TeamThread thread) {
  if (form_ == PartForm::kSums) {
    for (std::size_t row = thread.index; row < batch_.num_rows; row += thread.count) {
      ComputeSum(row);
    }
    return;
  }
  for (std::size_t pair = thread.index; pair < pairs_.size(); pair += thread.count) {
    if (pairs_[pair] == nullptr) continue;
    const std::size_t row = pair / batch_.num_used;
    const std::vector<double> result = ReferenceExpert(
        *weights_, batch_.layer, ExpertId(static_cast<std::size_t>(batch_.ids[pair])),
        {batch_.rows + row * batch_.n_embd, batch_.n_embd});
    float* out = values_.data() + pair * batch_.n_embd;
    for (const double value : result) *out++ = static_cast<float>(value);
  }
}

void ReferenceCompute::ComputeSum(std::size_t row) {
  std::vector<double> sum(batch_.n_embd);
  for (std::size_t slot = 0; slot < batch_.num_used; ++slot) {
    const std::size_t pair = row * batch_.num_used + slot;
    if (!Owns(pair)) continue;
    const std::vector<double> result = ReferenceExpert(
        *weights_, batch_.layer, ExpertId(static_cast<std::size_t>(batch_.ids[pair])),
        {batch_.rows + row * batch_.n_embd, batch_.n_embd});
    for (std::size_t c = 0; c < sum.size(); ++c) {
      sum[c] += static_cast<double>(batch_.weights[pair]) * result[c];
    }
  }
  float* out = values_.data() + row * batch_.n_embd;
  for (const double value : sum) *out++ = static_cast<float>(value);
}

base::Result<void> ReferenceCompute::Finish() { return {}; }

ExpertPart ReferenceCompute::part(std::size_t) const {
  ExpertPart part{.form = form_};
  if (batch_pairs_ == 0) return part;
  if (form_ == PartForm::kPairs) {
    part.pairs = pairs_.data();
  } else {
    part.sums = values_.data();
  }
  return part;
}

}  // namespace moe
