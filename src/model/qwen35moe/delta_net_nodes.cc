#include "model/qwen35moe/delta_net_nodes.h"

#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

kernels::DeltaNetShape ShapeOf(const Hparams& hparams) {
  return {.head_dim = hparams.state_dim,
          .key_heads = hparams.num_key_heads,
          .value_heads = hparams.num_value_heads,
          .taps = hparams.conv_kernel,
          .norm_epsilon = hparams.norm_epsilon};
}

const float* Floats(const ggml_tensor* tensor) { return static_cast<const float*>(tensor->data); }

// The rows of `tensor` from `first` on.
kernels::ConstRows RowsFrom(const ggml_tensor* tensor, std::size_t first) {
  const std::size_t stride = tensor->nb[1] / sizeof(float);
  return {Floats(tensor) + first * stride, stride};
}
kernels::Rows ResultFrom(ggml_tensor* tensor, std::size_t first) {
  const std::size_t stride = tensor->nb[1] / sizeof(float);
  return {static_cast<float*>(tensor->data) + first * stride, stride};
}

// What `slot` has of a tensor whose outermost dimension is the slots.
float* OfSlot(const ggml_tensor* tensor, int slot_dimension, std::size_t slot) {
  return static_cast<float*>(tensor->data) + tensor->nb[slot_dimension] / sizeof(float) * slot;
}

// Calls visit(slot, first_row, num_rows) for every slot of the runs.
template <class Visit>
void ForEachSlot(const std::vector<SlotRun>& runs, const Visit& visit) {
  std::size_t row = 0;
  for (const SlotRun& run : runs) {
    for (std::size_t i = 0; i < run.num_slots; ++i) {
      visit(run.first_slot + i, row, std::size_t{run.rows_per_slot});
      row += run.rows_per_slot;
    }
  }
}

// This thread's part of `count` heads.
std::pair<std::size_t, std::size_t> HeadsOf(std::size_t count, int thread, int num_threads) {
  const auto index = static_cast<std::size_t>(thread);
  const auto threads = static_cast<std::size_t>(num_threads);
  return {count * index / threads, count * (index + 1) / threads};
}

}  // namespace

bool DeltaNetNodes::Supports(const Hparams& hparams) {
  return hparams.state_dim % kernels::kDeltaHeadGranule == 0 && hparams.conv_kernel >= 2;
}

DeltaNetNodes::DeltaNetNodes(const Hparams& hparams, const DeltaNetWeights& weights,
                             const LayerState& state, std::vector<SlotRun> runs)
    : shape_(ShapeOf(hparams)), weights_(&weights), state_(state), runs_(std::move(runs)) {
  ES_CHECK(Supports(hparams));
  ES_CHECK(weights.conv_by_tap.size() == shape_.taps * shape_.channels());
}

ggml_tensor* DeltaNetNodes::Build(ggml_context* context, const Inputs& inputs,
                                  std::vector<ggml_tensor*>* on_cpu) const {
  void* self = const_cast<DeltaNetNodes*>(this);  // ggml passes a mutable pointer
  const std::int64_t num_rows = inputs.mixed->ne[1];
  ggml_tensor* mixed = inputs.mixed;
  ggml_tensor* convolved =
      ggml_custom_4d(context, GGML_TYPE_F32, mixed->ne[0], num_rows, 1, 1, &mixed, 1,
                     &DeltaNetNodes::RunConvolution, GGML_N_TASKS_MAX, self);
  ggml_set_name(convolved, "delta convolve");
  on_cpu->push_back(convolved);
  std::array<ggml_tensor*, 4> sources = {convolved, inputs.gate, inputs.alpha, inputs.beta};
  ggml_tensor* result = ggml_custom_4d(context, GGML_TYPE_F32, inputs.gate->ne[0], num_rows, 1, 1,
                                       sources.data(), static_cast<int>(sources.size()),
                                       &DeltaNetNodes::RunRule, GGML_N_TASKS_MAX, self);
  ggml_set_name(result, "delta rule");
  on_cpu->push_back(result);
  return result;
}

void DeltaNetNodes::RunConvolution(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& nodes = *static_cast<const DeltaNetNodes*>(self);
  const auto [first, end] = HeadsOf(nodes.shape_.num_heads(), thread, num_threads);
  const kernels::DeltaConvolveFunction convolve = kernels::DeltaConvolve();
  ForEachSlot(nodes.runs_, [&, first, end](std::size_t slot, std::size_t row, std::size_t rows) {
    convolve(nodes.shape_,
             {.kernel = nodes.weights_->conv_by_tap.data(),
              .window = OfSlot(nodes.state_.window, 2, slot),
              .num_rows = rows,
              .in = RowsFrom(result->src[0], row),
              .out = ResultFrom(result, row)},
             first, end);
  });
}

void DeltaNetNodes::RunRule(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& nodes = *static_cast<const DeltaNetNodes*>(self);
  const auto [first, end] = HeadsOf(nodes.shape_.value_heads, thread, num_threads);
  const kernels::DeltaRuleFunction run = kernels::RunDeltaRule();
  ForEachSlot(nodes.runs_, [&, first, end](std::size_t slot, std::size_t row, std::size_t rows) {
    run(nodes.shape_,
        {.state = OfSlot(nodes.state_.delta, 1, slot),
         .num_rows = rows,
         .qkv = RowsFrom(result->src[0], row),
         .alpha = RowsFrom(result->src[2], row),
         .beta = RowsFrom(result->src[3], row),
         .gate = RowsFrom(result->src[1], row),
         .decay = Floats(nodes.weights_->a),
         .decay_bias = Floats(nodes.weights_->dt_bias),
         .norm = Floats(nodes.weights_->norm),
         .out = ResultFrom(result, row)},
        first, end);
  });
}

}  // namespace model::qwen35moe
