#include "model/qwen35moe/attention_nodes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

const float* FloatsAt(const ggml_tensor* tensor, std::size_t offset) {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(tensor->data) + offset);
}

// Queries that share a pass over keys and values: at most as many as an array holds, fewer where
// their scores would leave the second cache, yet enough for a tile of the kernels.
constexpr std::size_t kMostQueries = 128;
constexpr std::size_t kFewestQueries = 8;
constexpr std::size_t kScores = std::size_t{1} << 18;

std::size_t QueriesAtOnce(std::size_t num_cells) {
  return std::clamp(kScores / kernels::ScoreStride(num_cells), kFewestQueries, kMostQueries);
}

std::size_t Position(const ggml_tensor* positions, std::size_t row) {
  return static_cast<std::size_t>(static_cast<const std::int32_t*>(positions->data)[row]);
}

}  // namespace

bool AttentionNodes::Supports(const Hparams& hparams) {
  return hparams.head_dim % kernels::kHeadGranule == 0 && hparams.head_dim <= kernels::kMaxHeadDim;
}

AttentionNodes::AttentionNodes(const Hparams& hparams, const State& state, std::size_t layer,
                               std::vector<SlotRun> runs)
    : num_heads_(hparams.num_heads),
      num_kv_heads_(hparams.num_kv_heads),
      head_dim_(hparams.head_dim),
      scale_(hparams.attention_scale),
      cells_per_slot_(state.size().cells_per_slot),
      state_(state.layer(layer)),
      runs_(std::move(runs)) {
  ES_CHECK(Supports(hparams) && num_heads_ % num_kv_heads_ == 0);
}

ggml_tensor* AttentionNodes::Build(ggml_context* context, const Inputs& inputs,
                                   std::vector<ggml_tensor*>* on_cpu) const {
  void* self = const_cast<AttentionNodes*>(this);  // ggml passes a mutable pointer
  std::array<ggml_tensor*, 3> stored = {inputs.keys, inputs.values, inputs.positions};
  ggml_tensor* store = ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, stored.data(),
                                      static_cast<int>(stored.size()), &AttentionNodes::RunStore,
                                      GGML_N_TASKS_MAX, self);
  ggml_set_name(store, "attention store");
  on_cpu->push_back(store);
  std::array<ggml_tensor*, 4> sources = {inputs.queries, inputs.gate, inputs.positions, store};
  ggml_tensor* result =
      ggml_custom_4d(context, GGML_TYPE_F32, static_cast<std::int64_t>(num_heads_ * head_dim_),
                     inputs.queries->ne[2], 1, 1, sources.data(), static_cast<int>(sources.size()),
                     &AttentionNodes::RunAttend, GGML_N_TASKS_MAX, self);
  ggml_set_name(result, "attend");
  on_cpu->push_back(result);
  return result;
}

kernels::AttentionCache AttentionNodes::Cache(std::size_t slot) const {
  const std::size_t offset = state_.keys->nb[1] * cells_per_slot_ * slot;
  const auto at = [&](const ggml_tensor* tensor) {
    return static_cast<std::byte*>(tensor->data) + offset;
  };
  return {.type = state_.keys->type == GGML_TYPE_F16 ? kernels::CacheType::kF16
                                                     : kernels::CacheType::kF32,
          .width = num_kv_heads_ * head_dim_,
          .keys = at(state_.keys),
          .values = at(state_.values)};
}

void AttentionNodes::RunStore(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& nodes = *static_cast<const AttentionNodes*>(self);
  const ggml_tensor* keys = result->src[0];
  const ggml_tensor* values = result->src[1];
  std::size_t row = 0;
  for (const SlotRun& run : nodes.runs_) {
    for (std::size_t i = 0; i < run.num_rows(); ++i, ++row) {
      if (row % static_cast<std::size_t>(num_threads) != static_cast<std::size_t>(thread)) continue;
      nodes.Cache(run.first_slot + i / run.rows_per_slot)
          .Store(Position(result->src[2], row), FloatsAt(keys, row * keys->nb[2]),
                 FloatsAt(values, row * values->nb[1]));
    }
  }
}

void AttentionNodes::RunAttend(ggml_tensor* result, int thread, int num_threads, void* self) {
  const auto& nodes = *static_cast<const AttentionNodes*>(self);
  const std::size_t a_row = nodes.num_heads_ / nodes.num_kv_heads_;
  const std::size_t block = std::max<std::size_t>(1, kMostQueries / a_row);
  // With fewer blocks of rows than threads the queries of a row are shared as well.
  std::size_t num_blocks = 0;
  for (const SlotRun& run : nodes.runs_) {
    num_blocks += run.num_slots * ((run.rows_per_slot + block - 1) / block) * nodes.num_kv_heads_;
  }
  const auto threads = static_cast<std::size_t>(num_threads);
  const std::size_t shares = (threads + num_blocks - 1) / num_blocks;
  // Neighbouring parts go to different threads: later rows see more cells.
  std::size_t index = 0;
  std::size_t slot_row = 0;
  for (const SlotRun& run : nodes.runs_) {
    for (std::size_t i = 0; i < run.num_slots; ++i, slot_row += run.rows_per_slot) {
      for (std::size_t row = 0; row < run.rows_per_slot; row += block) {
        const std::size_t rows = std::min<std::size_t>(block, run.rows_per_slot - row);
        const std::size_t queries = rows * a_row;
        for (std::size_t head = 0; head < nodes.num_kv_heads_; ++head) {
          for (std::size_t share = 0; share < shares; ++share, ++index) {
            if (index % threads != static_cast<std::size_t>(thread)) continue;
            nodes.AttendPart({.slot = run.first_slot + i,
                              .first_row = slot_row + row,
                              .kv_head = head,
                              .first_query = queries * share / shares,
                              .end_query = queries * (share + 1) / shares},
                             result);
          }
        }
      }
    }
  }
}

void AttentionNodes::AttendPart(const Part& part, ggml_tensor* result) const {
  if (part.first_query == part.end_query) return;
  const ggml_tensor* queries = result->src[0];
  const ggml_tensor* gate = result->src[1];
  const std::size_t a_row = num_heads_ / num_kv_heads_;
  const auto cells_of = [&](std::size_t query) {
    return Position(result->src[2], part.first_row + query / a_row) + 1;
  };
  const std::size_t at_once = QueriesAtOnce(cells_of(part.end_query - 1));
  // Grows with the context and then stays.
  static thread_local std::vector<float> scores;
  std::array<kernels::AttentionQuery, kMostQueries> work;
  for (std::size_t first = part.first_query; first < part.end_query; first += at_once) {
    const std::size_t count = std::min(at_once, part.end_query - first);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t row = part.first_row + (first + i) / a_row;
      const std::size_t head = part.kv_head * a_row + (first + i) % a_row;
      work[i] = {.query = FloatsAt(queries, row * queries->nb[2] + head * queries->nb[1]),
                 .gate = FloatsAt(gate, row * gate->nb[2] + head * gate->nb[1]),
                 .out = static_cast<float*>(result->data) + (row * num_heads_ + head) * head_dim_,
                 .num_cells = cells_of(first + i)};
    }
    const std::size_t needed = count * kernels::ScoreStride(cells_of(first + count - 1));
    if (scores.size() < needed) scores.resize(needed);
    kernels::Attend()(
        Cache(part.slot),
        {.first_channel = part.kv_head * head_dim_, .head_dim = head_dim_, .scale = scale_},
        {work.data(), count}, scores.data());
  }
}

}  // namespace model::qwen35moe
