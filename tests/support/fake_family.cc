#include "support/fake_family.h"

#include <ggml.h>

#include <format>
#include <string>
#include <utility>

namespace test_support {
namespace {

base::Result<moe::ExpertStack> FindStack(const gg::GgufFile& file, const std::string& name,
                                         std::uint32_t num_experts) {
  const gg::GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr || tensor->shape.size() != 3 || tensor->shape[2] != num_experts) {
    return base::Fail(base::ErrorKind::kCorruptModel, "'{}': tensor {} is missing or misshapen",
                      file.name(), name);
  }
  return moe::ExpertStack{.tensor = name,
                          .type = tensor->type,
                          .row_width = tensor->shape[0],
                          .num_rows = tensor->shape[1],
                          .shard = tensor->shard,
                          .offset = tensor->offset,
                          .bytes_per_expert = base::Bytes(tensor->bytes.count() / num_experts)};
}

base::Result<moe::LayerStacks> FindLayer(const gg::GgufFile& file, std::uint32_t block,
                                         std::uint32_t num_experts) {
  const std::string prefix = std::format("layers.{}.experts.", block);
  moe::LayerStacks stacks;
  auto gate = FindStack(file, prefix + (block % 2 == 0 ? "gate" : "gate_up"), num_experts);
  if (!gate) return base::Forward(gate);
  stacks.gate = *std::move(gate);
  if (block % 2 == 0) {
    auto up = FindStack(file, prefix + "up", num_experts);
    if (!up) return base::Forward(up);
    stacks.up = *std::move(up);
  }
  auto down = FindStack(file, prefix + "down", num_experts);
  if (!down) return base::Forward(down);
  stacks.down = *std::move(down);
  return stacks;
}

}  // namespace

GgufBytes FakeModelBytes(const FakeModelOptions& options) {
  GgufBytes bytes;
  bytes.Text("general.architecture", "fakemoe").Text("general.name", "Fake");
  bytes.Number("fakemoe.blocks", options.num_blocks).Number("fakemoe.experts", options.num_experts);
  bytes.Number("fakemoe.top_k", options.experts_per_token);
  bytes.Tensor("embedding", GGML_TYPE_F32, {options.n_embd, 16});
  const std::uint64_t n_embd = options.n_embd;
  const std::uint64_t n_ff = options.n_ff;
  for (std::uint32_t block = 0; block < options.num_blocks; ++block) {
    const std::string prefix = std::format("layers.{}.", block);
    bytes.Tensor(prefix + "router", GGML_TYPE_F32, {n_embd, options.num_experts});
    if (block == 0) continue;
    const auto stack = [&](const char* name, std::uint64_t width, std::uint64_t rows) {
      bytes.Tensor(prefix + "experts." + name, options.expert_type,
                   {width, rows, options.num_experts});
    };
    stack("down", n_ff, n_embd);
    if (block % 2 == 0) {
      stack("up", n_embd, n_ff);
      stack("gate", n_embd, n_ff);
    } else {
      stack("gate_up", n_embd, 2 * n_ff);
    }
  }
  return bytes;
}

base::Result<model::ModelDescription> DescribeFakeModel(const gg::GgufFile& file) {
  auto identity = model::ReadIdentity(file);
  if (!identity) return base::Forward(identity);
  auto blocks = file.Uint32("fakemoe.blocks");
  if (!blocks) return base::Forward(blocks);
  auto experts = file.Uint32("fakemoe.experts");
  if (!experts) return base::Forward(experts);
  auto top_k = file.Uint32("fakemoe.top_k");
  if (!top_k) return base::Forward(top_k);

  model::ModelDescription description;
  base::Bytes expert_bytes;
  for (std::uint32_t block = 1; block < *blocks; ++block) {
    auto stacks = FindLayer(file, block, *experts);
    if (!stacks) return base::Forward(stacks);
    const base::Bytes up = stacks->up ? stacks->up->bytes_per_expert : base::Bytes();
    description.shape.layers.push_back(
        {block, {stacks->gate.bytes_per_expert, up, stacks->down.bytes_per_expert}});
    expert_bytes += description.shape.layers.back().unit.total() * *experts;
    description.stacks.push_back(*std::move(stacks));
  }
  for (const gg::GgufTensor& tensor : file.tensors()) description.dense.weights += tensor.bytes;
  description.dense.weights -= expert_bytes;
  description.shape.identity = *std::move(identity);
  description.shape.identity.num_layers = *blocks - 1;
  description.shape.identity.num_experts = *experts;
  description.shape.num_experts = *experts;
  description.shape.experts_per_token = *top_k;
  return description;
}

}  // namespace test_support
