// The expert node and its kernels on the rows, ids and weights of real forward passes of quantised
// models: in either layout they are as close to double precision as ggml's own operations.
#include <gtest/gtest.h>

#include <cstdint>
#include <format>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forward_fixture.h"
#include "moe/compute/ggml_node.h"
#include "moe/compute/projection.h"
#include "moe/compute/reference_compute.h"
#include "moe/compute/swiglu.h"
#include "moe/compute/test_experts.h"
#include "support/test_models.h"

namespace {

constexpr std::size_t kTokens = 64;
constexpr double kAllowed = 1.2;  // times ggml's error

// A batch with its own memory.
struct RecordedBatch {
  explicit RecordedBatch(const moe::ExpertBatch& of)
      : shape(of),
        rows(of.rows, of.rows + of.num_rows * of.n_embd),
        ids(of.ids, of.ids + of.num_rows * of.num_used),
        weights(of.weights, of.weights + of.num_rows * of.num_used) {}

  moe::ExpertBatch batch() const {
    moe::ExpertBatch batch = shape;
    batch.rows = rows.data();
    batch.ids = ids.data();
    batch.weights = weights.data();
    return batch;
  }

  moe::ExpertBatch shape;
  std::vector<float> rows;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

// Keeps every batch that another object computes.
class RecordingCompute final : public moe::MoeExpertCompute {
 public:
  explicit RecordingCompute(std::unique_ptr<moe::MoeExpertCompute> compute)
      : compute_(std::move(compute)) {}

  base::Result<void> Begin(const moe::ExpertBatch& batch) override {
    batches_.emplace_back(batch);
    return compute_->Begin(batch);
  }
  void Prepare(moe::TeamThread thread) override { compute_->Prepare(thread); }
  void Expand(moe::TeamThread thread) override { compute_->Expand(thread); }
  void Reduce(moe::TeamThread thread) override { compute_->Reduce(thread); }
  base::Result<void> Finish() override { return compute_->Finish(); }
  moe::ExpertPart part(std::size_t index) const override { return compute_->part(index); }
  std::size_t num_parts() const override { return compute_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override { return compute_->num_pairs(index); }

  const std::vector<RecordedBatch>& batches() const { return batches_; }

 private:
  std::unique_ptr<moe::MoeExpertCompute> compute_;
  std::vector<RecordedBatch> batches_;
};

// What encoded weights mean.
class DecodedExperts final : public moe::FloatExpertWeights {
 public:
  explicit DecodedExperts(const moe::ExpertWeights& weights)
      : num_experts_(weights.num_experts), n_ff_(weights.layers.front().n_ff()) {
    for (const moe::LayerWeights& layer : weights.layers) {
      layers_.push_back({Decode(layer.gate), Decode(*layer.up), Decode(layer.down)});
    }
  }

  std::size_t n_ff() const override { return n_ff_; }
  std::span<const float> Gate(moe::LayerId layer, moe::ExpertId expert) const override {
    return Of(layers_[layer.index()].gate, expert);
  }
  std::span<const float> Up(moe::LayerId layer, moe::ExpertId expert) const override {
    return Of(layers_[layer.index()].up, expert);
  }
  std::span<const float> Down(moe::LayerId layer, moe::ExpertId expert) const override {
    return Of(layers_[layer.index()].down, expert);
  }

 private:
  struct Layer {
    std::vector<float> gate, up, down;  // [num_experts, ...]
  };

  std::vector<float> Decode(const moe::ExpertMatrix& matrix) const {
    std::vector<float> values(num_experts_ * matrix.num_rows * matrix.row_width);
    ggml_get_type_traits(static_cast<ggml_type>(matrix.type))
        ->to_float(matrix.data, values.data(), static_cast<std::int64_t>(values.size()));
    return values;
  }
  std::span<const float> Of(const std::vector<float>& all, moe::ExpertId expert) const {
    const std::size_t size = all.size() / num_experts_;
    return std::span(all).subspan(expert.index() * size, size);
  }

  std::size_t num_experts_;
  std::size_t n_ff_;
  std::vector<Layer> layers_;
};

// [num_vectors, num_rows] in double, rounded once.
std::vector<float> ExactProducts(std::span<const float> matrix, std::size_t width,
                                 std::span<const float> vectors) {
  std::vector<float> products;
  for (std::size_t v = 0; v < vectors.size(); v += width) {
    for (std::size_t row = 0; row < matrix.size(); row += width) {
      double sum = 0;
      for (std::size_t i = 0; i < width; ++i) sum += double{matrix[row + i]} * vectors[v + i];
      products.push_back(static_cast<float>(sum));
    }
  }
  return products;
}

std::vector<float> Multiply(const moe::Projection& projection, moe::ExpertId expert,
                            std::size_t num_rows, std::size_t width,
                            const std::vector<float>& vectors) {
  const std::size_t count = vectors.size() / width;
  moe::AlignedBuffer converted, panels;
  const kernels::MatrixKernel& kernel = projection.kernel();
  EXPECT_TRUE(converted.Grow(count * kernel.quantized_bytes()));
  EXPECT_TRUE(panels.Grow(kernel.PanelBytes(count)));
  std::vector<const std::byte*> pointers;
  for (std::size_t v = 0; v < count; ++v) {
    std::byte* to = converted.bytes() + v * kernel.quantized_bytes();
    kernel.QuantizeRow(vectors.data() + v * width, to);
    pointers.push_back(to);
  }
  kernel.BuildPanels(pointers.data(), count, panels.bytes());
  std::vector<float> products(count * num_rows);
  projection.Multiply(expert, 0, num_rows, pointers.data(), count, panels.bytes(), products.data(),
                      num_rows);
  return products;
}

class RecordedBatchesTest : public testing::TestWithParam<const char*> {
 protected:
  // A forward pass of the model of this type and seed; what its layers' experts were given.
  void Record(int seed) {
    const std::string path = test::ModelPath(std::format("quantised/{}-{}", GetParam(), seed));
    model_ = test::ForwardModel::Load(path, {.repack = moe::Repack::kOff});
    ASSERT_NE(model_, nullptr);
    weights_ = model_->backend().expert_weights();
    const std::vector<std::uint8_t> owned(weights_->layers.size() * weights_->num_experts, 1);
    auto packed = moe::PackedExperts::Make({.weights = weights_.get(), .owned = owned});
    ASSERT_TRUE(packed) << packed.error().message;
    packed_ = *packed;
    auto recorder = std::make_shared<RecordingCompute>(MakeHost(nullptr));
    model_->backend().SetExperts(recorder);
    ASSERT_FALSE(model_->Logits(model_->Tokens(kTokens)).empty());
    batches_ = recorder->batches();
    ASSERT_EQ(batches_.size(), weights_->layers.size());
    decoded_ = std::make_unique<DecodedExperts>(*weights_);
  }

  std::unique_ptr<moe::HostCompute> MakeHost(std::shared_ptr<const moe::PackedExperts> packed) {
    auto host = moe::HostCompute::Make({.weights = weights_, .packed = std::move(packed)});
    EXPECT_TRUE(host) << host.error().message;
    return *std::move(host);
  }

  // The rows of the batch that the layer's expert 0 computes.
  std::vector<float> RowsOfFirstExpert(const RecordedBatch& recorded) const {
    std::vector<float> rows;
    const std::size_t used = recorded.shape.num_used;
    for (std::size_t pair = 0; pair < recorded.ids.size(); ++pair) {
      if (recorded.ids[pair] != 0) continue;
      const float* row = recorded.rows.data() + pair / used * recorded.shape.n_embd;
      rows.insert(rows.end(), row, row + recorded.shape.n_embd);
    }
    return rows;
  }

  // Every kernel of expert 0 of the layer, in both layouts with the same bits.
  void CheckKernels(const RecordedBatch& recorded) const {
    const moe::LayerId layer = recorded.shape.layer;
    const moe::LayerWeights& weights = weights_->layers[layer.index()];
    const moe::PackedExperts::Layer* packed = packed_->layer(layer);
    ASSERT_NE(packed, nullptr) << "no packed kernel";
    const std::vector<float> rows = RowsOfFirstExpert(recorded);
    ASSERT_GE(rows.size(), 8 * weights.n_embd()) << "too few rows to tell";
    constexpr moe::ExpertId kFirst(0);
    const auto exact_gate = ExactProducts(decoded_->Gate(layer, kFirst), weights.n_embd(), rows);
    const auto exact_up = ExactProducts(decoded_->Up(layer, kFirst), weights.n_embd(), rows);
    std::vector<float> hidden(exact_gate.size());
    moe::SwiGlu(exact_gate.data(), exact_up.data(), hidden.data(), hidden.size());
    const auto exact_down = ExactProducts(decoded_->Down(layer, kFirst), weights.n_ff(), hidden);

    moe::GgmlNode node(weights, weights_->num_experts);
    const auto check = [&](const moe::ExpertMatrix& matrix,
                           const moe::PackedExperts::Matrix& packed_matrix,
                           const std::vector<float>& vectors, const std::vector<float>& exact) {
      const double ggmls = moe::Nmse(node.Multiply(matrix, kFirst, vectors), exact);
      const auto mapped = moe::Projection::Mapped(matrix, 0);
      ASSERT_TRUE(mapped) << mapped.error().message;
      const auto from_file = Multiply(*mapped, kFirst, matrix.num_rows, matrix.row_width, vectors);
      EXPECT_LE(moe::Nmse(from_file, exact), kAllowed * ggmls) << matrix.tensor;
      const auto from_packed = Multiply(moe::Projection::Packed(*packed, packed_matrix, matrix),
                                        kFirst, matrix.num_rows, matrix.row_width, vectors);
      EXPECT_EQ(from_file, from_packed) << matrix.tensor;
    };
    check(weights.gate, packed->gate, rows, exact_gate);
    check(*weights.up, packed->up, rows, exact_up);
    check(weights.down, packed->down, hidden, exact_down);
  }

  std::unique_ptr<test::ForwardModel> model_;
  std::shared_ptr<const moe::ExpertWeights> weights_;
  std::shared_ptr<const moe::PackedExperts> packed_;
  std::unique_ptr<DecodedExperts> decoded_;
  std::vector<RecordedBatch> batches_;  // one a layer
};

TEST_P(RecordedBatchesTest, AreComputedAsCloselyAsByGgml) {
  for (const int seed : {1, 2, 3}) {
    SCOPED_TRACE(std::format("seed {}", seed));
    ASSERT_NO_FATAL_FAILURE(Record(seed));
    const auto mapped = MakeHost(nullptr);
    const auto packed = MakeHost(packed_);
    for (const RecordedBatch& recorded : batches_) {
      const moe::LayerId layer = recorded.shape.layer;
      SCOPED_TRACE(std::format("layer {}", layer.index()));
      const std::vector<float> exact = moe::Reference(*decoded_, recorded.batch());
      moe::GgmlNode node(weights_->layers[layer.index()], weights_->num_experts);
      const double ggmls = moe::Nmse(node.Compute(recorded.batch()), exact);
      EXPECT_GT(ggmls, 1e-10) << "not quantised";
      EXPECT_LT(ggmls, 1e-3) << "another node";
      EXPECT_LE(moe::Nmse(moe::RunBatch(*mapped, recorded.batch(), 2), exact), kAllowed * ggmls);
      EXPECT_LE(moe::Nmse(moe::RunBatch(*packed, recorded.batch(), 2), exact), kAllowed * ggmls);
      CheckKernels(recorded);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RecordedBatchesTest,
                         testing::Values("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0",
                                         "iq2_xxs", "iq4_xs", "mxfp4"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
