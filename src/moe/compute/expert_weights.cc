#include "moe/compute/expert_weights.h"

namespace moe {
namespace {

ExpertMatrix MapStack(const ExpertStack& stack,
                      std::span<const std::span<const std::byte>> shards) {
  ExpertMatrix matrix;
  matrix.tensor = stack.tensor;
  matrix.type = stack.type;
  matrix.row_width = static_cast<std::size_t>(stack.row_width);
  matrix.num_rows = static_cast<std::size_t>(stack.num_rows);
  matrix.expert_bytes = static_cast<std::size_t>(stack.bytes_per_expert.count());
  matrix.row_bytes = matrix.num_rows == 0 ? 0 : matrix.expert_bytes / matrix.num_rows;
  matrix.data = shards[stack.shard].data() + stack.offset;
  return matrix;
}

base::Result<void> CheckMatrix(const ExpertMatrix& matrix, std::size_t row_width,
                               std::size_t num_rows, std::size_t num_experts) {
  if (matrix.row_width != row_width || matrix.num_rows != num_rows || row_width == 0 ||
      num_rows == 0) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "{} has {} rows of {} elements an expert where the layer's other tensors "
                      "need {} of {}",
                      matrix.tensor, matrix.num_rows, matrix.row_width, num_rows, row_width);
  }
  if (matrix.scales.size() > 1 && matrix.scales.size() != num_experts) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "{} has {} scales for {} experts: expected none, one, or one an expert",
                      matrix.tensor, matrix.scales.size(), num_experts);
  }
  return {};
}

}  // namespace

ExpertWeights MapExpertWeights(const ExpertStacks& stacks, std::size_t num_experts,
                               std::span<const std::span<const std::byte>> shards) {
  ExpertWeights weights;
  weights.num_experts = num_experts;
  weights.layers.reserve(stacks.size());
  for (const LayerStacks& stack : stacks) {
    LayerWeights layer;
    layer.gate = MapStack(stack.gate, shards);
    if (stack.up) layer.up = MapStack(*stack.up, shards);
    layer.down = MapStack(stack.down, shards);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

base::Result<void> CheckLayerWeights(const LayerWeights& layer, std::size_t num_experts) {
  const std::size_t n_ff = layer.n_ff();
  const std::size_t gate_rows = layer.up ? n_ff : 2 * n_ff;
  if (auto ok = CheckMatrix(layer.gate, layer.n_embd(), gate_rows, num_experts); !ok) return ok;
  if (layer.up) {
    if (auto ok = CheckMatrix(*layer.up, layer.n_embd(), n_ff, num_experts); !ok) return ok;
  }
  return CheckMatrix(layer.down, n_ff, layer.n_embd(), num_experts);
}

}  // namespace moe
