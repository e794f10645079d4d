#include "random_layer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

namespace bench {
namespace {

std::size_t RowBytes(ggml_type type, std::size_t row_width) {
  return ggml_row_size(type, static_cast<std::int64_t>(row_width));
}

// The encoded weights of one projection: a few random rows in random order.
std::vector<std::byte> RandomRows(ggml_type type, std::size_t num_rows, std::size_t row_width,
                                  std::mt19937& random) {
  constexpr std::size_t kPool = 64;
  std::normal_distribution<float> normal(0, 1.5f / std::sqrt(static_cast<float>(row_width)));
  std::vector<float> values(kPool * row_width);
  for (float& value : values) value = normal(random);
  const std::size_t row_bytes = RowBytes(type, row_width);
  std::vector<std::byte> pool(kPool * row_bytes);
  ggml_quantize_chunk(type, values.data(), pool.data(), 0, kPool,
                      static_cast<std::int64_t>(row_width), nullptr);
  std::vector<std::byte> rows(num_rows * row_bytes);
  for (std::size_t r = 0; r < num_rows; ++r) {
    std::copy_n(pool.data() + random() % kPool * row_bytes, row_bytes, rows.data() + r * row_bytes);
  }
  return rows;
}

moe::ExpertMatrix Matrix(std::string name, ggml_type type, std::size_t num_rows,
                         std::size_t row_width, const std::vector<std::byte>& data) {
  const std::size_t row_bytes = RowBytes(type, row_width);
  return {.tensor = std::move(name),
          .type = type,
          .row_width = row_width,
          .num_rows = num_rows,
          .row_bytes = row_bytes,
          .expert_bytes = num_rows * row_bytes,
          .data = data.data()};
}

}  // namespace

RandomLayer::RandomLayer(const LayerShape& shape, ggml_type type, ggml_type down_type,
                         std::size_t num_rows) {
  std::mt19937 random(1);
  gate = RandomRows(type, shape.num_experts * shape.n_ff, shape.n_embd, random);
  up = RandomRows(type, shape.num_experts * shape.n_ff, shape.n_embd, random);
  down = RandomRows(down_type, shape.num_experts * shape.n_embd, shape.n_ff, random);
  weights = std::make_shared<moe::ExpertWeights>();
  weights->num_experts = shape.num_experts;
  weights->layers.push_back({.gate = Matrix("gate", type, shape.n_ff, shape.n_embd, gate),
                             .up = Matrix("up", type, shape.n_ff, shape.n_embd, up),
                             .down = Matrix("down", down_type, shape.n_embd, shape.n_ff, down)});
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < num_rows * shape.n_embd; ++i) rows.push_back(normal(random));
  for (std::size_t i = 0; i < num_rows; ++i) {
    // An odd step through an even number of experts comes back late.
    const std::size_t first = random() % shape.num_experts;
    const std::size_t step = 1 + 2 * (random() % (shape.num_experts / 2));
    for (std::size_t s = 0; s < shape.num_used; ++s) {
      ids.push_back(static_cast<std::int32_t>((first + s * step) % shape.num_experts));
      routed.push_back(1.0f / static_cast<float>(shape.num_used));
    }
  }
  batch = {.layer = moe::LayerId(0),
           .num_rows = num_rows,
           .num_used = shape.num_used,
           .n_embd = shape.n_embd,
           .rows = rows.data(),
           .ids = ids.data(),
           .weights = routed.data()};
}

}  // namespace bench
