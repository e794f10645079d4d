#include "moe/compute/release_pages.h"

namespace moe {

void ReleaseExpertPages(const gg::GgufFile* file, const LayerStacks& layer, std::size_t first,
                        std::size_t count) {
  if (file == nullptr) return;
  const auto release = [&](const ExpertStack& stack) {
    const std::size_t bytes = stack.bytes_per_expert.count();
    file->shards()[stack.shard].ReleasePages(stack.offset + first * bytes, count * bytes);
  };
  release(layer.gate);
  if (layer.up) release(*layer.up);
  release(layer.down);
}

void ReleaseExpertPages(const gg::GgufFile* file, const LayerStacks& layer,
                        std::span<const std::size_t> experts) {
  for (std::size_t i = 0; i < experts.size();) {
    const std::size_t first = i;
    while (i < experts.size() && experts[i] - experts[first] == i - first) ++i;
    ReleaseExpertPages(file, layer, experts[first], i - first);
  }
}

}  // namespace moe
