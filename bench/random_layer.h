// One layer of random experts and a batch of rows for it, for benchmarks of owners.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"

namespace bench {

struct LayerShape {
  std::size_t n_embd = 0;
  std::size_t n_ff = 0;
  std::size_t num_experts = 0;  // even
  std::size_t num_used = 0;
};

struct RandomLayer {
  RandomLayer(const LayerShape& shape, ggml_type type, ggml_type down_type, std::size_t num_rows);

  std::vector<std::byte> gate, up, down;
  std::shared_ptr<moe::ExpertWeights> weights;  // of the one layer; they lie in the vectors above
  std::vector<float> rows;                      // [num_rows, n_embd]
  std::vector<std::int32_t> ids;                // [num_rows, num_used], distinct in a row
  std::vector<float> routed;                    // [num_rows, num_used]
  moe::ExpertBatch batch;
};

}  // namespace bench
