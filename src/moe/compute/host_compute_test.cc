#include "moe/compute/host_compute.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <ranges>

#include "gg/devices.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

gg::CpuTraits LoadedTraits() {
  static_cast<void>(gg::DiscoverDevices());  // loads the backends
  auto traits = gg::CpuTraits::Loaded();
  EXPECT_TRUE(traits) << traits.error().message;
  return traits ? *traits : gg::CpuTraits::Portable();
}

std::unique_ptr<HostCompute> MakeHost(const TestExperts& experts,
                                      gg::CpuTraits traits = LoadedTraits()) {
  auto host = HostCompute::Make({.weights = experts.weights(), .traits = std::move(traits)});
  EXPECT_TRUE(host) << host.error().message;
  return std::move(*host);
}

std::string TypeName(int type) { return ggml_type_name(static_cast<ggml_type>(type)); }

void ExpectSameBits(std::span<const float> a, std::span<const float> b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << what << ", element " << i << ": " << a[i] << " and " << b[i];
  }
}

// The same node by ggml's own operations on its CPU backend.
class GgmlNode {
 public:
  GgmlNode(const TestExperts& experts, const ExpertBatch& batch)
      : context_(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true})),
        backend_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
    const LayerWeights& layer = experts.weights()->layers[batch.layer.index()];
    const auto used = static_cast<std::int64_t>(batch.num_used);
    const auto rows = static_cast<std::int64_t>(batch.num_rows);
    ggml_context* ctx = context_.get();
    ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, Int(batch.n_embd), 1, rows);
    ggml_tensor* ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, rows);
    ggml_tensor* weights = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, used, rows);
    const std::size_t num_experts = experts.shape().num_experts;
    ggml_tensor* gate = Stack(layer.gate, num_experts);
    ggml_tensor* up = Stack(*layer.up, num_experts);
    ggml_tensor* down = Stack(layer.down, num_experts);
    ggml_tensor* hidden = ggml_swiglu_split(ctx, ggml_mul_mat_id(ctx, gate, x, ids),
                                            ggml_mul_mat_id(ctx, up, x, ids));
    ggml_tensor* y = ggml_mul(ctx, ggml_mul_mat_id(ctx, down, hidden, ids), weights);
    ggml_tensor* sum = nullptr;
    for (std::size_t s = 0; s < batch.num_used; ++s) {
      ggml_tensor* slot = ggml_view_2d(ctx, y, y->ne[0], y->ne[2], y->nb[2], s * y->nb[1]);
      sum = sum == nullptr ? ggml_cont(ctx, slot) : ggml_add(ctx, sum, slot);
    }
    ggml_cgraph* graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, sum);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(ctx, backend_.get()));
    Set(x, batch.rows);
    Set(ids, batch.ids);
    Set(weights, batch.weights);
    Set(gate, layer.gate.data);
    Set(up, layer.up->data);
    Set(down, layer.down.data);
    EXPECT_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
    result_.resize(batch.num_rows * batch.n_embd);
    ggml_backend_tensor_get(sum, result_.data(), 0, result_.size() * sizeof(float));
  }

  const std::vector<float>& result() const { return result_; }

 private:
  static std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }
  static void Set(ggml_tensor* tensor, const void* data) {
    ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
  }
  ggml_tensor* Stack(const ExpertMatrix& matrix, std::size_t num_experts) const {
    return ggml_new_tensor_3d(context_.get(), static_cast<ggml_type>(matrix.type),
                              Int(matrix.row_width), Int(matrix.num_rows), Int(num_experts));
  }

  ggml_context_ptr context_;
  ggml_backend_ptr backend_;
  ggml_backend_buffer_ptr buffer_;
  std::vector<float> result_;
};

class HostComputeOfType : public testing::TestWithParam<int> {};

TEST_P(HostComputeOfType, IsAsCloseToDoublePrecisionAsGgmlsOwnOperations) {
  const TestExperts experts(ShapeOfType(GetParam()));
  const TestBatch batch(experts.shape(), 9, 3);
  const std::vector<float> reference = Reference(experts, batch.batch());
  const auto host = MakeHost(experts);
  const double ours = Nmse(RunBatch(*host, batch.batch(), 2), reference);
  const double ggmls = Nmse(GgmlNode(experts, batch.batch()).result(), reference);
  RecordProperty("nmse", std::to_string(ours));
  EXPECT_LE(ours, 1.2 * ggmls + 1e-13) << "ggml: " << ggmls;
  EXPECT_LE(ours, 5e-3);  // neither of both is nonsense
  EXPECT_EQ(host->num_pairs(0), 27u);
}

TEST_P(HostComputeOfType, GivesTheSameBitsForOneRowOrManyOnAnyNumberOfThreads) {
  const TestExperts experts(ShapeOfType(GetParam()));
  // 120 pairs: threads take parts of experts; a row alone is shared row by row.
  const TestBatch batch(experts.shape(), 40, 3);
  const auto host = MakeHost(experts);
  const std::vector<float> expected = RunBatch(*host, batch.batch(), 1);
  for (const std::size_t threads : {2, 3, 5}) {
    ExpectSameBits(RunBatch(*host, batch.batch(), threads), expected,
                   std::to_string(threads) + " threads");
  }
  const std::size_t n_embd = experts.shape().n_embd;
  for (std::size_t row = 0; row < batch.num_rows(); row += 13) {
    const std::span<const float> of_row(expected.data() + row * n_embd, n_embd);
    for (const std::size_t threads : {1, 3}) {
      ExpectSameBits(RunBatch(*host, batch.One(row), threads), of_row,
                     "row " + std::to_string(row) + " alone");
    }
  }
}

TEST_P(HostComputeOfType, PortableKernelsDecodeExactly) {
  const TestExperts experts(ShapeOfType(GetParam()));
  const TestBatch batch(experts.shape(), 3, 2);
  const auto host = MakeHost(experts, gg::CpuTraits::Portable());
  EXPECT_LE(Nmse(RunBatch(*host, batch.batch(), 2), Reference(experts, batch.batch())), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Types, HostComputeOfType,
                         testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                         GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K,
                                         GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                         GGML_TYPE_Q6_K, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ4_XS,
                                         GGML_TYPE_MXFP4),
                         [](const auto& of) { return TypeName(of.param); });

}  // namespace
}  // namespace moe
