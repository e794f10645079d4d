// Whether weights that the CPU computes with are copied at load into the layout of its kernels
// (kernels/matrix_kernel.h). One choice for the dense part and the experts. Values; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"
#include "gg/host_memory.h"
#include "kernels/packed_memory.h"

namespace moe {

// Both layouts give the same bits.
enum class Repack {
  kAuto,  // where the copy fits in the host's available memory with room to spare
  kOff,   // weights are used where the file is mapped
};

// The host's memory as packing sees it. Tests put their own in its place.
struct PackingMemory {
  // What can be had; nullopt is unknown and packs nothing.
  std::function<std::optional<base::Bytes>()> available = [] { return gg::AvailableHostMemory(); };
  std::function<base::Result<kernels::PackedMemory>(base::Bytes)> allocate =
      kernels::PackedMemory::Allocate;
};

// What packing leaves free beside everything that is counted: other programs grow.
base::Bytes PackingMargin(base::Bytes packed);

// Whether `packed` bytes fit beside `untouched`, the memory that the program will still take, and
// the margin. If not, the log gets one line that says so of `what` ("experts on the CPU are").
bool FitsPacked(std::string_view what, base::Bytes packed, base::Bytes untouched,
                const PackingMemory& memory, const base::Log& log);

// What `wanted` comes to for a model whose CPU owners have `experts` bytes of units in the file.
// Packed, they are no smaller: where they cannot fit, nothing is packed, and the log says so. A
// model larger than memory is read as it is needed, and a copy of its dense part would delay its
// start and take memory from the experts.
Repack RepackInMemory(Repack wanted, base::Bytes experts, const PackingMemory& memory,
                      const base::Log& log);

}  // namespace moe
