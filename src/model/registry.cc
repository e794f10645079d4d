#include "model/registry.h"

#include <algorithm>
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

base::Result<std::unique_ptr<PlacedBackend>> LoadDense(const DenseLoadRequest& request) {
  auto architecture = request.file->String("general.architecture");
  if (!architecture) return base::Forward(architecture);
  const auto family = std::ranges::find(kFamilies, *architecture, &ModelFamily::architecture);
  if (family == kFamilies.end() || family->load == nullptr) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "models of architecture '{}' can be planned for, but not run yet",
                      *architecture);
  }
  return family->load(request);
}

}  // namespace model
