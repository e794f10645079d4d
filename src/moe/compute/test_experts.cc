#include "moe/compute/test_experts.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "moe/plan/plan.h"

namespace moe {

namespace {

// Random rows that matrices are put together from at random: encoding each row of each matrix would
// take seconds for some types.
struct EncodedRows {
  static constexpr std::size_t kCount = 96;

  EncodedRows(ggml_type type, std::size_t row_width, std::mt19937& random)
      : encoded(kCount * ggml_row_size(type, static_cast<std::int64_t>(row_width))),
        decoded(kCount * row_width) {
    const float deviation = 1.5f / std::sqrt(static_cast<float>(row_width));
    if (TakesAnyCodes(type)) {
      FillWithCodes(type, deviation, random);
    } else {
      std::normal_distribution<float> normal(0.0f, deviation);
      for (float& value : decoded) value = normal(random);
      ggml_quantize_chunk(type, decoded.data(), encoded.data(), 0, kCount,
                          static_cast<std::int64_t>(row_width), nullptr);
    }
    if (type == GGML_TYPE_F32) {
      std::memcpy(encoded.data(), decoded.data(), encoded.size());
      return;
    }
    ggml_get_type_traits(type)->to_float(encoded.data(), decoded.data(),
                                         static_cast<std::int64_t>(decoded.size()));
  }

  // The search tables of these types take seconds to make, but every bit pattern is a value: blocks
  // of a half-precision scale and random codes.
  static bool TakesAnyCodes(ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S ||
           type == GGML_TYPE_IQ3_XXS || type == GGML_TYPE_IQ3_S;
  }

  void FillWithCodes(ggml_type type, float deviation, std::mt19937& random) {
    const std::size_t block_bytes = ggml_type_size(type);
    const ggml_fp16_t scale = ggml_fp32_to_fp16(deviation / 50.0f);
    for (std::byte& byte : encoded) byte = static_cast<std::byte>(random());
    for (std::size_t at = 0; at < encoded.size(); at += block_bytes) {
      std::memcpy(encoded.data() + at, &scale, sizeof(scale));
    }
  }

  std::vector<std::byte> encoded;
  std::vector<float> decoded;
};

}  // namespace

TestExpertShape ShapeOfType(int type) {
  TestExpertShape shape;
  shape.gate_type = shape.up_type = shape.down_type = type;
  return shape;
}

TestExperts::TestExperts(const TestExpertShape& shape, std::uint32_t seed)
    : shape_(shape), random_(seed), weights_(std::make_shared<ExpertWeights>()) {
  weights_->num_experts = shape.num_experts;
  for (std::size_t l = 0; l < shape.num_layers; ++l) {
    const std::string block = "blk." + std::to_string(l);
    LayerWeights layer;
    layer.gate = Add(block + ".gate", shape.gate_type, shape.fused ? 2 * shape.n_ff : shape.n_ff,
                     shape.n_embd);
    if (!shape.fused) layer.up = Add(block + ".up", shape.up_type, shape.n_ff, shape.n_embd);
    layer.down = Add(block + ".down", shape.down_type, shape.n_embd, shape.n_ff);
    weights_->layers.push_back(std::move(layer));
  }
}

ExpertMatrix TestExperts::Add(const std::string& name, int type, std::size_t num_rows,
                              std::size_t row_width) {
  const ggml_type weight_type = static_cast<ggml_type>(type);
  ExpertMatrix matrix{.tensor = name, .type = type, .row_width = row_width, .num_rows = num_rows};
  matrix.row_bytes = ggml_row_size(weight_type, static_cast<std::int64_t>(row_width));
  matrix.expert_bytes = num_rows * matrix.row_bytes;
  const std::size_t rows = shape_.num_experts * num_rows;

  const EncodedRows pool(weight_type, row_width, random_);
  auto stored = std::make_unique<Matrix>();
  stored->encoded.resize(rows * matrix.row_bytes);
  stored->decoded.resize(rows * row_width);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t from = random_() % EncodedRows::kCount;
    std::copy_n(pool.encoded.data() + from * matrix.row_bytes, matrix.row_bytes,
                stored->encoded.data() + r * matrix.row_bytes);
    std::copy_n(pool.decoded.data() + from * row_width, row_width,
                stored->decoded.data() + r * row_width);
  }
  matrix.data = stored->encoded.data();
  if (shape_.scales) {
    std::uniform_real_distribution<float> factor(0.5f, 2.0f);
    for (std::size_t e = 0; e < shape_.num_experts; ++e) {
      matrix.scales.push_back(factor(random_));
      float* values = stored->decoded.data() + e * num_rows * row_width;
      for (std::size_t i = 0; i < num_rows * row_width; ++i) values[i] *= matrix.scales[e];
    }
  }
  matrices_.push_back(std::move(stored));
  return matrix;
}

std::span<const float> TestExperts::Gate(LayerId layer, ExpertId expert) const {
  const std::size_t count = shape_.n_ff * shape_.n_embd;
  const std::size_t stride = shape_.fused ? 2 * count : count;
  const Matrix& matrix = *matrices_[layer.index() * (shape_.fused ? 2 : 3)];
  return {matrix.decoded.data() + expert.index() * stride, count};
}

std::span<const float> TestExperts::Up(LayerId layer, ExpertId expert) const {
  const std::size_t count = shape_.n_ff * shape_.n_embd;
  if (shape_.fused) return {Gate(layer, expert).data() + count, count};
  return {matrices_[layer.index() * 3 + 1]->decoded.data() + expert.index() * count, count};
}

std::span<const float> TestExperts::Down(LayerId layer, ExpertId expert) const {
  const std::size_t count = shape_.n_ff * shape_.n_embd;
  const Matrix& matrix = *matrices_[shape_.fused ? layer.index() * 2 + 1 : layer.index() * 3 + 2];
  return {matrix.decoded.data() + expert.index() * count, count};
}

std::shared_ptr<const ExpertSplitRuntime> SplitAs(const TestExpertShape& shape,
                                                  std::vector<std::uint8_t> owners) {
  ModelShape model;
  model.identity.architecture = "test";
  model.identity.num_layers = static_cast<std::uint32_t>(shape.num_layers);
  model.identity.num_experts = static_cast<std::uint32_t>(shape.num_experts);
  model.num_experts = model.identity.num_experts;
  model.experts_per_token = 1;
  const base::Bytes third(1000);
  for (std::size_t l = 0; l < shape.num_layers; ++l) {
    model.layers.push_back({.block = static_cast<std::uint32_t>(l),
                            .unit = {.gate = third, .up = third, .down = third}});
  }
  std::vector<PlanTarget> targets;
  for (int t = 0; t <= *std::ranges::max_element(owners); ++t) {
    targets.push_back({.name = "target" + std::to_string(t), .capacity = std::nullopt});
  }
  auto plan = ExpertSplitPlan::FromOwners(model, Hotness::Uniform(model), std::move(targets),
                                          std::move(owners));
  EXPECT_TRUE(plan) << plan.error().message;
  return ExpertSplitRuntime::Make(*plan);
}

TestModel::TestModel(const TestExpertShape& described, std::uint32_t num_used)
    : test_shape(described), experts(std::make_unique<TestExperts>(described)) {
  shape.identity = {.architecture = "test",
                    .name = "random",
                    .num_layers = static_cast<std::uint32_t>(test_shape.num_layers),
                    .num_experts = static_cast<std::uint32_t>(test_shape.num_experts)};
  shape.num_experts = shape.identity.num_experts;
  shape.experts_per_token = num_used;
  std::uint64_t offset = 0;
  const auto stack = [&](const ExpertMatrix& matrix) {
    ExpertStack made{.tensor = matrix.tensor,
                     .type = matrix.type,
                     .row_width = matrix.row_width,
                     .num_rows = matrix.num_rows,
                     .offset = offset,
                     .bytes_per_expert = base::Bytes(matrix.expert_bytes)};
    offset += matrix.expert_bytes * test_shape.num_experts;
    return made;
  };
  for (const LayerWeights& layer : experts->weights()->layers) {
    stacks.push_back({stack(layer.gate), stack(*layer.up), stack(layer.down)});
    const LayerStacks& made = stacks.back();
    shape.layers.push_back({.block = static_cast<std::uint32_t>(shape.layers.size()),
                            .unit = {.gate = made.gate.bytes_per_expert,
                                     .up = made.up->bytes_per_expert,
                                     .down = made.down.bytes_per_expert}});
  }
}

std::shared_ptr<const ExpertSplitRuntime> SplitAtRandom(const TestExpertShape& shape,
                                                        std::size_t num_targets,
                                                        std::uint32_t seed) {
  std::vector<std::uint8_t> owners(shape.num_layers * shape.num_experts);
  for (std::size_t u = 0; u < owners.size(); ++u) {
    owners[u] = static_cast<std::uint8_t>(u % num_targets);
  }
  std::mt19937 random(seed);
  std::shuffle(owners.begin(), owners.end(), random);
  return SplitAs(shape, std::move(owners));
}

TestBatch::TestBatch(const TestExpertShape& shape, std::size_t num_rows, std::size_t num_used,
                     std::uint32_t seed)
    : num_rows_(num_rows), num_used_(num_used), n_embd_(shape.n_embd) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  rows.resize(num_rows * n_embd_);
  for (float& value : rows) value = normal(random);
  std::vector<std::int32_t> experts(shape.num_experts);
  std::iota(experts.begin(), experts.end(), 0);
  std::uniform_real_distribution<float> weight(0.1f, 1.0f);
  for (std::size_t r = 0; r < num_rows; ++r) {
    std::shuffle(experts.begin(), experts.end(), random);
    ids.insert(ids.end(), experts.begin(), experts.begin() + static_cast<std::ptrdiff_t>(num_used));
    float sum = 0;
    for (std::size_t s = 0; s < num_used; ++s) sum += weights.emplace_back(weight(random));
    for (std::size_t s = 0; s < num_used; ++s) weights[r * num_used + s] /= sum;
  }
}

ExpertBatch TestBatch::batch(LayerId layer) const {
  return {.layer = layer,
          .num_rows = num_rows_,
          .num_used = num_used_,
          .n_embd = n_embd_,
          .rows = rows.data(),
          .ids = ids.data(),
          .weights = weights.data()};
}

ExpertBatch TestBatch::One(std::size_t row, LayerId layer) const {
  return {.layer = layer,
          .num_rows = 1,
          .num_used = num_used_,
          .n_embd = n_embd_,
          .rows = rows.data() + row * n_embd_,
          .ids = ids.data() + row * num_used_,
          .weights = weights.data() + row * num_used_};
}

std::vector<float> RunBatch(std::span<MoeExpertCompute* const> owners, const ExpertBatch& batch,
                            std::size_t num_threads) {
  std::vector<float> out(batch.num_rows * batch.n_embd, NAN);
  std::vector<ExpertPart> parts;
  std::barrier barrier(static_cast<std::ptrdiff_t>(num_threads));
  const auto work = [&](std::size_t index) {
    const TeamThread thread{.index = index, .count = num_threads};
    const auto alone = [&](const auto& step) {
      if (index == 0) {
        for (MoeExpertCompute* owner : owners) step(*owner);
      }
      barrier.arrive_and_wait();
    };
    const auto together = [&](const auto& step) {
      for (MoeExpertCompute* owner : owners) step(*owner);
      barrier.arrive_and_wait();
    };
    alone([&](MoeExpertCompute& owner) {
      const auto begun = owner.Begin(batch);
      EXPECT_TRUE(begun) << begun.error().message;
    });
    together([&](MoeExpertCompute& owner) { owner.Prepare(thread); });
    together([&](MoeExpertCompute& owner) { owner.Expand(thread); });
    together([&](MoeExpertCompute& owner) { owner.Reduce(thread); });
    alone([&](MoeExpertCompute& owner) {
      const auto finished = owner.Finish();
      EXPECT_TRUE(finished) << finished.error().message;
      for (std::size_t p = 0; p < owner.num_parts(); ++p) parts.push_back(owner.part(p));
    });
    CombineParts(batch, parts, thread, out.data());
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back(work, i);
  work(0);
  threads.clear();
  return out;
}

std::vector<float> RunBatch(MoeExpertCompute& owner, const ExpertBatch& batch,
                            std::size_t num_threads) {
  MoeExpertCompute* const owners[] = {&owner};
  return RunBatch(owners, batch, num_threads);
}

std::vector<float> Reference(const FloatExpertWeights& experts, const ExpertBatch& batch) {
  std::vector<float> out;
  for (std::size_t r = 0; r < batch.num_rows; ++r) {
    std::vector<double> sums(batch.n_embd);
    for (std::size_t s = 0; s < batch.num_used; ++s) {
      const std::size_t pair = r * batch.num_used + s;
      const std::vector<double> y =
          ReferenceExpert(experts, batch.layer, ExpertId(static_cast<std::size_t>(batch.ids[pair])),
                          {batch.rows + r * batch.n_embd, batch.n_embd});
      for (std::size_t i = 0; i < y.size(); ++i) {
        sums[i] += static_cast<double>(batch.weights[pair]) * y[i];
      }
    }
    for (const double sum : sums) out.push_back(static_cast<float>(sum));
  }
  return out;
}

double Nmse(std::span<const float> values, std::span<const float> reference) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double expected = static_cast<double>(reference[i]);
    const double difference = static_cast<double>(values[i]) - expected;
    error += difference * difference;
    power += expected * expected;
  }
  return power == 0 ? error : error / power;
}

}  // namespace moe
