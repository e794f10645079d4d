// Model shapes for tests of the placement substrate.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/plan/model_shape.h"

namespace moe {

// A model whose layer l has units of unit_bytes[l] bytes (split over gate, up and down).
inline ModelShape TestShape(const std::vector<std::uint64_t>& unit_bytes, std::uint32_t num_experts,
                            std::uint32_t experts_per_token = 1) {
  ModelShape shape;
  shape.identity = {.architecture = "testmoe",
                    .name = "Test",
                    .quantisation = "Q4_K_M",
                    .num_layers = static_cast<std::uint32_t>(unit_bytes.size()),
                    .num_experts = num_experts,
                    .directory_hash = 0x0123456789abcdef,
                    .shape_hash = 0xfedcba9876543210};
  shape.num_experts = num_experts;
  shape.experts_per_token = experts_per_token;
  for (const std::uint64_t bytes : unit_bytes) {
    const std::uint64_t third = bytes / 3;
    shape.layers.push_back({.block = static_cast<std::uint32_t>(shape.layers.size()),
                            .unit = {.gate = base::Bytes(third),
                                     .up = base::Bytes(third),
                                     .down = base::Bytes(bytes - 2 * third)}});
  }
  return shape;
}

}  // namespace moe
