#include "model/map_experts.h"

#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace model {
namespace {

std::vector<float> ReadFloats(const gg::GgufFile& file, const std::string& name) {
  const gg::GgufTensor* tensor = name.empty() ? nullptr : file.FindTensor(name);
  if (tensor == nullptr) return {};
  const std::span<const std::byte> bytes = file.Data(*tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace

std::shared_ptr<const moe::ExpertWeights> MapExperts(const gg::GgufFile& file,
                                                     const ModelDescription& description) {
  std::vector<std::span<const std::byte>> shards;
  for (const base::MappedFile& shard : file.shards()) shards.push_back(shard.bytes());
  auto experts = std::make_shared<moe::ExpertWeights>(
      moe::MapExpertWeights(description.stacks, description.shape.num_experts, shards));
  for (std::size_t i = 0; i < experts->layers.size(); ++i) {
    const moe::LayerStacks& stacks = description.stacks[i];
    moe::LayerWeights& layer = experts->layers[i];
    layer.gate.scales = ReadFloats(file, stacks.gate.scale);
    if (layer.up) layer.up->scales = ReadFloats(file, stacks.up->scale);
    layer.down.scales = ReadFloats(file, stacks.down.scale);
  }
  return experts;
}

}  // namespace model
