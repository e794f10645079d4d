#include "model/qwen35moe/expert_nodes.h"

#include <span>
#include <utility>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

moe::ExpertBatch BatchOf(const ggml_tensor* node, moe::LayerId layer) {
  const ggml_tensor* rows = node->src[0];
  const ggml_tensor* ids = node->src[1];
  const ggml_tensor* weights = node->src[2];
  return {.layer = layer,
          .num_rows = static_cast<std::size_t>(rows->ne[1]),
          .num_used = static_cast<std::size_t>(ids->ne[0]),
          .n_embd = static_cast<std::size_t>(rows->ne[0]),
          .rows = static_cast<const float*>(rows->data),
          .ids = static_cast<const std::int32_t*>(ids->data),
          .weights = static_cast<const float*>(weights->data)};
}

}  // namespace

ExpertNodes::ExpertNodes(std::size_t num_layers) : nodes_(num_layers) {
  for (std::size_t i = 0; i < num_layers; ++i) nodes_[i] = {this, moe::LayerId(i)};
}

template <ExpertNodes::Phase phase>
void ExpertNodes::Run(ggml_tensor* result, int thread, int num_threads, void* node) {
  const auto& [owner, layer] = *static_cast<const Node*>(node);
  const moe::TeamThread member{static_cast<std::size_t>(thread),
                               static_cast<std::size_t>(num_threads)};
  if constexpr (phase == Phase::kBegin) {
    if (thread == 0 && !owner->error_) owner->Begin(result, layer);
  } else if constexpr (phase == Phase::kFinish) {
    if (thread == 0 && owner->in_flight_) owner->Finish();
  } else if constexpr (phase == Phase::kCombine) {
    if (!owner->error_) owner->Combine(result, member);
  } else if (owner->in_flight_) {
    if constexpr (phase == Phase::kPrepare) owner->compute_->Prepare(member);
    if constexpr (phase == Phase::kExpand) owner->compute_->Expand(member);
    if constexpr (phase == Phase::kReduce) owner->compute_->Reduce(member);
  }
}

ggml_tensor* ExpertNodes::BuildBegin(ggml_context* context, moe::LayerId layer,
                                     const Sources& sources, std::vector<ggml_tensor*>* on_cpu) {
  std::array<ggml_tensor*, 3> args = {sources.rows, sources.ids, sources.weights};
  ggml_tensor* begin =
      ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, args.data(), static_cast<int>(args.size()),
                     &Run<Phase::kBegin>, 1, &nodes_[layer.index()]);
  ggml_set_name(begin, "experts begin");
  on_cpu->push_back(begin);
  return begin;
}

ggml_tensor* ExpertNodes::BuildRest(ggml_context* context, moe::LayerId layer,
                                    const Sources& sources, ggml_tensor* begin,
                                    std::vector<ggml_tensor*>* on_cpu) {
  ggml_tensor* previous = begin;
  // The allocator keeps the sources until the last node that names them: all do, since a compute
  // object may read them from Begin to the end of Combine.
  const auto append = [&](const char* name, ggml_custom_op_t run, int num_tasks, std::int64_t width,
                          std::int64_t height) {
    std::array<ggml_tensor*, 4> args = {sources.rows, sources.ids, sources.weights, previous};
    previous =
        ggml_custom_4d(context, GGML_TYPE_F32, width, height, 1, 1, args.data(),
                       static_cast<int>(args.size()), run, num_tasks, &nodes_[layer.index()]);
    ggml_set_name(previous, name);
    on_cpu->push_back(previous);
  };
  append("experts prepare", &Run<Phase::kPrepare>, GGML_N_TASKS_MAX, 1, 1);
  append("experts expand", &Run<Phase::kExpand>, GGML_N_TASKS_MAX, 1, 1);
  append("experts reduce", &Run<Phase::kReduce>, GGML_N_TASKS_MAX, 1, 1);
  append("experts finish", &Run<Phase::kFinish>, 1, 1, 1);
  append("experts combine", &Run<Phase::kCombine>, GGML_N_TASKS_MAX, sources.rows->ne[0],
         sources.rows->ne[1]);
  return previous;
}

void ExpertNodes::StartStep() {
  error_.reset();
  in_flight_ = false;
}

base::Result<void> ExpertNodes::EndStep() {
  if (in_flight_) Finish();
  if (error_) return std::unexpected(*std::exchange(error_, std::nullopt));
  return {};
}

void ExpertNodes::Begin(const ggml_tensor* result, moe::LayerId layer) {
  ES_CHECK(compute_ != nullptr);
  batch_ = BatchOf(result, layer);
  base::Result<void> begun = compute_->Begin(batch_);
  if (begun) {
    in_flight_ = true;
  } else {
    error_ = std::move(begun.error());
  }
}

void ExpertNodes::Finish() {
  in_flight_ = false;
  base::Result<void> finished = compute_->Finish();
  if (!finished) {
    error_ = std::move(finished.error());
    return;
  }
  parts_.clear();
  for (std::size_t i = 0; i < compute_->num_parts(); ++i) parts_.push_back(compute_->part(i));
}

void ExpertNodes::Combine(const ggml_tensor* result, moe::TeamThread thread) const {
  moe::CombineParts(batch_, parts_, thread, static_cast<float*>(result->data));
}

}  // namespace model::qwen35moe
