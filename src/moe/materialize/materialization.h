// ExpertSplitMaterialization: which slices of the model file each target loads, in what order.
//
// The storage-facing view of a placement. A unit is stored as two or three slices, one of each of
// its layer's stacks (gate, up and down, or a fused gate_up and down). Each target's slices are
// listed in file order, so that a load reads forward and neighbours are read as one extent.
// Nothing is opened or read here. Immutable after Make, shared by const pointer; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/runtime/runtime.h"
#include "moe/target/ids.h"

namespace moe {

enum class ExpertProjection { kGate, kUp, kDown, kGateUp };

// "gate", "up", "down" or "gate_up".
std::string_view ExpertProjectionName(ExpertProjection projection);

// One projection of one unit: where it lies in the file and where it belongs.
struct ExpertSlice {
  LayerId layer{};
  ExpertProjection projection = ExpertProjection::kGate;
  ExpertId expert{};
  TargetId owner{};
  LocalId local{};           // its index in the owner's stack of this layer
  std::size_t shard = 0;     // index of the file that holds it
  std::uint64_t offset = 0;  // of its first byte in that file
  base::Bytes bytes;

  friend bool operator==(const ExpertSlice&, const ExpertSlice&) = default;
};

// A gapless run of bytes of one file: slices [first_slice, first_slice + num_slices) of its list.
struct FileExtent {
  std::size_t shard = 0;
  std::uint64_t offset = 0;
  base::Bytes bytes;
  std::size_t first_slice = 0;
  std::size_t num_slices = 0;

  friend bool operator==(const FileExtent&, const FileExtent&) = default;
};

struct LoadList {
  std::vector<ExpertSlice> slices;  // ascending by (shard, offset)
  std::vector<FileExtent> extents;  // the same bytes, as few runs as possible, in the same order
  base::Bytes bytes;                // their sum
};

class ExpertSplitMaterialization {
 public:
  // `stacks` is [runtime->num_layers()]; `primary` is one of the runtime's targets. Errors:
  // kCorruptModel, naming the tensor, when the stacks are of another number of layers, a stack is
  // empty, reaches beyond the largest file offset or overlaps another one.
  static base::Result<std::shared_ptr<const ExpertSplitMaterialization>> Make(
      ExpertStacks stacks, std::shared_ptr<const ExpertSplitRuntime> runtime, TargetId primary);

  // What `target` loads; empty when it owns nothing. Precondition: a target of the runtime.
  const LoadList& load(TargetId target) const { return loads_[target.index()]; }
  // The primary's own load: what lies beside the dense part.
  TargetId primary() const { return primary_; }
  const LoadList& on_primary() const { return load(primary_); }
  // Everything that is not on the primary, of all owners together, in file order. Extents may span
  // slices of several owners.
  const LoadList& off_primary() const { return off_primary_; }

  const ExpertStacks& stacks() const { return stacks_; }
  const ExpertSplitRuntime& runtime() const { return *runtime_; }
  const std::shared_ptr<const ExpertSplitRuntime>& shared_runtime() const { return runtime_; }

 private:
  ExpertSplitMaterialization() = default;

  ExpertStacks stacks_;
  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  TargetId primary_;
  std::vector<LoadList> loads_;  // [num_targets]
  LoadList off_primary_;
};

}  // namespace moe
