// What the planner knows of a model: how many units there are and how many bytes each takes.
//
// Filled by a model family's adapter from the file's tensor directory. Plain values, no ggml; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "moe/target/ids.h"

namespace moe {

// Which model a plan or profile was made for.
struct ModelIdentity {
  std::string architecture;       // general.architecture of the model file
  std::string name;               // general.name, or empty
  std::string quantisation;       // general.file_type by name, for example "Q4_K_M"
  std::uint32_t num_layers = 0;   // layers with routed experts
  std::uint32_t num_experts = 0;  // routed experts a layer
  // Over every tensor's name, type and shape, in file order: the same for two files only when they
  // hold the same tensors in the same quantisation.
  std::uint64_t directory_hash = 0;
  // Over every tensor's name and shape without its type, sorted by name: the same for every
  // quantisation of one model.
  std::uint64_t shape_hash = 0;

  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// File bytes of one expert of one layer. With a fused gate_up tensor `gate` holds both and `up` is
// zero.
struct UnitBytes {
  base::Bytes gate;
  base::Bytes up;
  base::Bytes down;

  base::Bytes total() const { return gate + up + down; }
  friend bool operator==(const UnitBytes&, const UnitBytes&) = default;
};

struct LayerShape {
  std::uint32_t block = 0;  // the layer's number in the file's tensor names ("blk.7.")
  UnitBytes unit;           // the same for every expert of the layer

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

struct ModelShape {
  ModelIdentity identity;
  std::uint32_t num_experts = 0;        // routed experts a layer, at least 1
  std::uint32_t experts_per_token = 0;  // the router's top-k, 1 to num_experts
  std::vector<LayerShape> layers;       // [identity.num_layers], in block order

  std::size_t num_units() const { return layers.size() * num_experts; }
  base::Bytes unit_bytes(LayerId layer) const { return layers[layer.index()].unit.total(); }
  // All units of the model.
  base::Bytes total_bytes() const {
    base::Bytes sum;
    for (const LayerShape& layer : layers) sum += layer.unit.total() * num_experts;
    return sum;
  }
};

}  // namespace moe
