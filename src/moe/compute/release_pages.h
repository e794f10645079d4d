// Gives back the file's pages of experts whose weights were copied elsewhere. Any thread.
#pragma once

#include <cstddef>
#include <span>

#include "gg/gguf_file.h"
#include "moe/materialize/expert_stacks.h"

namespace moe {

// Of experts [first, first + count) of a layer. `file` may be nullptr: then nothing is done.
void ReleaseExpertPages(const gg::GgufFile* file, const LayerStacks& layer, std::size_t first,
                        std::size_t count);
// Of these experts, ascending: by runs of neighbours, whose pages go wholly.
void ReleaseExpertPages(const gg::GgufFile* file, const LayerStacks& layer,
                        std::span<const std::size_t> experts);

}  // namespace moe
