// "fakemoe": a second, tiny model family for tests. Unlike qwen35moe it has no shared expert, no
// recurrent state, one dense layer before the routed ones (so that a LayerId is not a block number)
// and its own tensor names; its gate and up are separate in even blocks and fused in odd ones.
#pragma once

#include <cstdint>

#include "model/family.h"
#include "support/gguf_bytes.h"

namespace test_support {

struct FakeModelOptions {
  std::uint32_t num_blocks = 4;  // block 0 has no experts
  std::uint32_t num_experts = 6;
  std::uint32_t experts_per_token = 2;
  std::uint32_t n_embd = 32;
  std::uint32_t n_ff = 64;
  int expert_type = 0;  // a ggml_type
};

// The file, with zeros for weights.
GgufBytes FakeModelBytes(const FakeModelOptions& options = {});

// Errors: kCorruptModel when a key or an expert tensor is missing.
base::Result<model::ModelDescription> DescribeFakeModel(const gg::GgufFile& file);

inline constexpr model::ModelFamily kFakeFamily = {"fakemoe", &DescribeFakeModel};

}  // namespace test_support
