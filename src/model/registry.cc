#include "model/registry.h"

#include <array>

#include "model/qwen35moe/directory.h"

namespace model {
namespace {

constexpr std::array kFamilies = {qwen35moe::kFamily};

}  // namespace

std::span<const ModelFamily> Families() { return kFamilies; }

base::Result<ModelDescription> DescribeModel(const gg::GgufFile& file) {
  return DescribeModel(file, kFamilies);
}

}  // namespace model
