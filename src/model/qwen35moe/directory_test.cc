#include "model/qwen35moe/directory.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/qwen35moe/hparams.h"
#include "support/qwen35moe_bytes.h"

namespace model::qwen35moe {
namespace {

using test_support::AsBytes;
using test_support::GgufBytes;
using test_support::Qwen35MoeBytes;
using test_support::Qwen35MoeOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

gg::GgufFile Parse(const GgufBytes& bytes) {
  auto file = gg::GgufFile::Parse(AsBytes(bytes.Build()), "m.gguf");
  EXPECT_TRUE(file) << file.error().message;
  return *std::move(file);
}

std::string Refusal(const GgufBytes& bytes) {
  auto model = Describe(Parse(bytes));
  if (model) return "accepted";
  EXPECT_EQ(model.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(model.error().message, HasSubstr("m.gguf"));
  EXPECT_THAT(model.error().message, Not(HasSubstr("\n")));
  return model.error().message;
}

std::string RefusedWith(std::string_view key, std::uint32_t value) {
  return Refusal(Qwen35MoeBytes().Number(key, value));
}

TEST(Qwen35MoeHparamsTest, ResolvesKeysAndDefaults) {
  auto hparams = ReadHparams(Parse(Qwen35MoeBytes()));
  ASSERT_TRUE(hparams) << hparams.error().message;
  EXPECT_EQ(hparams->num_layers, 4U);
  EXPECT_THAT(hparams->recurrent, ElementsAre(true, false, true, false));
  EXPECT_EQ(hparams->num_vocab, 20U);
  EXPECT_EQ(hparams->head_dim, 32U);
  EXPECT_FLOAT_EQ(hparams->attention_scale, 1.0F / std::sqrt(32.0F));
  EXPECT_EQ(hparams->rope.num_dims, 8U);
  EXPECT_THAT(hparams->rope.sections, ElementsAre(2, 1, 1, 0));
  EXPECT_FLOAT_EQ(hparams->rope.freq_base, 1e7F);
  EXPECT_EQ(hparams->rope.freq_scale, 1.0F);
  EXPECT_EQ(hparams->rope.original_context, 512U);
  EXPECT_EQ(hparams->rope.ext_factor, 0.0F);
  EXPECT_EQ(hparams->conv_channels(), 128U);
  EXPECT_EQ(hparams->conv_state_size(), 3U * 128U);
  EXPECT_EQ(hparams->delta_state_size(), 4U * 16U * 16U);
  EXPECT_EQ(hparams->expert_weights_scale, 1.0F);
}

TEST(Qwen35MoeHparamsTest, ReadsLayerKindsFromTheFile) {
  auto hparams = ReadHparams(
      Parse(Qwen35MoeBytes().Numbers("qwen35moe.attention.recurrent_layers", {0, 1, 1, 0})));
  ASSERT_TRUE(hparams) << hparams.error().message;
  EXPECT_THAT(hparams->recurrent, ElementsAre(false, true, true, false));
  EXPECT_THAT(Refusal(Qwen35MoeBytes().Numbers("qwen35moe.attention.recurrent_layers", {0, 1})),
              HasSubstr("one flag a block"));
}

TEST(Qwen35MoeHparamsTest, ReadsYarn) {
  auto hparams =
      ReadHparams(Parse(Qwen35MoeBytes()
                            .Text("qwen35moe.rope.scaling.type", "yarn")
                            .Real("qwen35moe.rope.scaling.factor", 4.0F)
                            .Number("qwen35moe.rope.scaling.original_context_length", 128)));
  ASSERT_TRUE(hparams) << hparams.error().message;
  EXPECT_EQ(hparams->rope.freq_scale, 0.25F);
  EXPECT_EQ(hparams->rope.ext_factor, 1.0F);
  EXPECT_EQ(hparams->rope.original_context, 128U);
  EXPECT_THAT(Refusal(Qwen35MoeBytes().Text("qwen35moe.rope.scaling.type", "lo\nng")),
              HasSubstr("expected none, linear or yarn"));
}

TEST(Qwen35MoeHparamsTest, RefusesMissingAndImpossibleKeys) {
  EXPECT_THAT(Refusal(GgufBytes()
                          .Text("general.architecture", "qwen35moe")
                          .Tensor("token_embd.weight", GGML_TYPE_F32, {4, 4})),
              HasSubstr("qwen35moe.block_count is missing"));
  EXPECT_THAT(RefusedWith("qwen35moe.nextn_predict_layers", 4),
              HasSubstr("nextn_predict_layers is 4"));
  EXPECT_THAT(Refusal(Qwen35MoeBytes().Real("qwen35moe.attention.scale", NAN)),
              HasSubstr("a finite number"));
}

TEST(Qwen35MoeDirectoryTest, DescribesUnitsAndStacks) {
  const GgufBytes bytes = Qwen35MoeBytes({.expert_type = GGML_TYPE_Q8_0});
  const gg::GgufFile file = Parse(bytes);
  auto model = Describe(file);
  ASSERT_TRUE(model) << model.error().message;
  const moe::ModelIdentity& identity = model->shape.identity;
  EXPECT_EQ(identity.architecture, "qwen35moe");
  EXPECT_EQ(identity.name, "Tiny");
  EXPECT_EQ(identity.quantisation, "Q4_K_M");
  EXPECT_EQ(identity.directory_hash, file.DirectoryHash());
  EXPECT_EQ(model->shape.num_units(), 32U);
  EXPECT_EQ(model->shape.experts_per_token, 2U);
  // Q8_0 takes 34 bytes for 32 elements; the layers differ in type.
  EXPECT_EQ(model->shape.layers[0].unit.gate, base::Bytes(64 * 32 / 32 * 34));
  EXPECT_EQ(model->shape.layers[1].unit.down, base::Bytes(64 * 32 * 4));
  ASSERT_EQ(model->stacks.size(), 4U);
  const moe::ExpertStack& down = model->stacks[2].down;
  EXPECT_EQ(down.tensor, "blk.2.ffn_down_exps.weight");
  EXPECT_EQ(down.type, GGML_TYPE_Q8_0);
  EXPECT_EQ(down.row_width, 32U);
  EXPECT_EQ(down.num_rows, 64U);
  EXPECT_EQ(down.offset, file.FindTensor(down.tensor)->offset);
  EXPECT_EQ(down.bytes_per_expert * 8, file.FindTensor(down.tensor)->bytes);
  EXPECT_TRUE(down.scale.empty());
}

TEST(Qwen35MoeDirectoryTest, FusedGateUpIsOneStackOfTheSameBytes) {
  auto separate = Describe(Parse(Qwen35MoeBytes()));
  auto fused = Describe(Parse(Qwen35MoeBytes({.fused_gate_up = true})));
  ASSERT_TRUE(separate);
  ASSERT_TRUE(fused) << fused.error().message;
  EXPECT_FALSE(fused->stacks[0].up);
  EXPECT_EQ(fused->stacks[0].gate.num_rows, 64U);
  EXPECT_EQ(fused->shape.layers[0].unit.up, base::Bytes());
  EXPECT_EQ(fused->shape.total_bytes(), separate->shape.total_bytes());
}

TEST(Qwen35MoeDirectoryTest, SkipsNextnLayersAndTheirExperts) {
  auto plain = Describe(Parse(Qwen35MoeBytes()));
  auto with = Describe(Parse(Qwen35MoeBytes({.num_nextn_layers = 1})));
  ASSERT_TRUE(with) << with.error().message;
  EXPECT_EQ(with->shape.num_units(), plain->shape.num_units());
  EXPECT_EQ(with->dense.weights, plain->dense.weights);
}

TEST(Qwen35MoeDirectoryTest, AcceptsTiedOutputAndOptionalTensors) {
  auto plain = Describe(Parse(Qwen35MoeBytes()));
  auto tied = Describe(Parse(Qwen35MoeBytes({.tied_output = true})));
  ASSERT_TRUE(tied) << tied.error().message;
  EXPECT_EQ(plain->dense.weights - tied->dense.weights, base::Bytes(64 * 20 * 4));
  auto optional = Describe(Parse(Qwen35MoeBytes({.optional_tensors = true})));
  ASSERT_TRUE(optional) << optional.error().message;
  EXPECT_EQ(optional->stacks[0].down.scale, "blk.0.ffn_down_exps.scale");
}

TEST(Qwen35MoeDirectoryTest, NamesAnyTensorThatIsMissing) {
  const gg::GgufFile whole = Parse(Qwen35MoeBytes());
  for (const gg::GgufTensor& tensor : whole.tensors()) {
    if (tensor.name == "output.weight") continue;
    GgufBytes bytes = Qwen35MoeBytes();
    ASSERT_TRUE(bytes.DropTensor(tensor.name));
    EXPECT_THAT(Refusal(bytes), HasSubstr("tensor " + tensor.name)) << "missing";
  }
}

TEST(Qwen35MoeDirectoryTest, NamesAnyTensorOfAnotherShapeOrType) {
  const gg::GgufFile whole = Parse(Qwen35MoeBytes());
  for (const gg::GgufTensor& tensor : whole.tensors()) {
    for (const bool reshape : {true, false}) {
      if (tensor.name == "token_embd.weight" && reshape) continue;  // it tells the vocabulary
      GgufBytes bytes = Qwen35MoeBytes();
      ASSERT_TRUE(bytes.DropTensor(tensor.name));
      auto shape = tensor.shape;
      shape.back() += reshape ? 1 : 0;
      bytes.Tensor(tensor.name, reshape ? tensor.type : GGML_TYPE_I32, shape);
      EXPECT_THAT(Refusal(bytes), HasSubstr("tensor " + tensor.name + " has")) << reshape;
    }
  }
}

TEST(Qwen35MoeDirectoryTest, RefusesTensorsOfALayerThatItDoesNotKnow) {
  EXPECT_THAT(Refusal(Qwen35MoeBytes().Tensor("blk.1.ffn_gate_exps.bias", GGML_TYPE_F32, {32, 8})),
              HasSubstr("blk.1.ffn_gate_exps.bias is not known"));
  EXPECT_EQ(Refusal(Qwen35MoeBytes().Tensor("v.patch_embd.weight", GGML_TYPE_F32, {8})),
            "accepted");
}

TEST(Qwen35MoeDirectoryTest, CountsCachesOfTheRightLayersOnly) {
  auto model = Describe(Parse(Qwen35MoeBytes()));
  ASSERT_TRUE(model);
  const DenseNeeds needs =
      NeedsOf(model->dense, {.context = 100, .num_sequences = 3, .kv_type = GGML_TYPE_F16});
  EXPECT_EQ(needs.kv_cache, base::Bytes(std::uint64_t{2} * 2 * 32 * 2 * 300));
  EXPECT_EQ(needs.state, base::Bytes(4 * (3 * 128 + 4 * 16 * 16) * 2 * 3));
  const DenseNeeds quantised =
      NeedsOf(model->dense, {.context = 100, .num_sequences = 3, .kv_type = GGML_TYPE_Q8_0});
  EXPECT_EQ(quantised.kv_cache, base::Bytes(std::uint64_t{2} * 2 * 34 * 300));
  EXPECT_GT(needs.compute, base::Bytes(4 * 512 * 300 * 2));
}

}  // namespace
}  // namespace model::qwen35moe
