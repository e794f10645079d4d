#include "model/qwen35moe/node_timer.h"

#include <ggml-cpp.h>
#include <gtest/gtest.h>

namespace model::qwen35moe {
namespace {

class NodeTimerTest : public testing::Test {
 protected:
  ggml_context_ptr context_{ggml_init(
      {.mem_size = 16 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true})};
  ggml_tensor* x_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, 8);
};

TEST_F(NodeTimerTest, NodesAreCountedByOperationAndWeightWithoutTheLayer) {
  ggml_tensor* weight = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, 8, 4);
  ggml_set_name(weight, "blk.17.ffn_gate_inp.weight");
  EXPECT_EQ(NodeKind(ggml_mul_mat(context_.get(), weight, x_)), "MUL_MAT ffn_gate_inp");
  ggml_set_name(weight, "output.weight");
  EXPECT_EQ(NodeKind(ggml_mul_mat(context_.get(), weight, x_)), "MUL_MAT output");
}

TEST_F(NodeTimerTest, NodesWithoutWeightsAreCountedByOperation) {
  EXPECT_EQ(NodeKind(ggml_soft_max(context_.get(), x_)), "SOFT_MAX");
  EXPECT_EQ(NodeKind(ggml_silu(context_.get(), x_)), "SILU");
}

TEST_F(NodeTimerTest, CustomNodesAreCountedByTheirName) {
  ggml_tensor* node = ggml_custom_4d(
      context_.get(), GGML_TYPE_F32, 1, 1, 1, 1, &x_, 1, [](ggml_tensor*, int, int, void*) {}, 1,
      nullptr);
  ggml_set_name(node, "experts expand");
  EXPECT_EQ(NodeKind(node), "experts expand");
}

TEST(WeightKindTest, KeepsWhatIsNoLayerAndNoWeight) {
  EXPECT_EQ(WeightKind("blk."), "");
  EXPECT_EQ(WeightKind("blk.3"), "");
  EXPECT_EQ(WeightKind("token_embd.weight"), "token_embd");
  EXPECT_EQ(WeightKind("blk.3.ssm_a"), "ssm_a");
}

}  // namespace
}  // namespace model::qwen35moe
