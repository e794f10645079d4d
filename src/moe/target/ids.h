// Index types of the substrate. An id of one kind cannot be passed for another.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace moe {

template <class Tag>
struct Id {
  std::uint32_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::size_t index) : value(static_cast<std::uint32_t>(index)) {}
  constexpr std::size_t index() const { return value; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

// Position among the layers that have routed experts (ModelShape::layers), not the block number.
using LayerId = Id<struct LayerTag>;
// The router's number of an expert within its layer.
using ExpertId = Id<struct ExpertTag>;
// Position in the ordered target list.
using TargetId = Id<struct TargetTag>;

}  // namespace moe
