// PackedExperts: a CPU's experts in the layout of kernels::MatrixKernel, copied at load.
//
// Each owned expert of a packed layer is one contiguous run: strips of gate, of up, of down. A
// layer whose types have no kernel is left out, for others to refuse. The file's pages are given
// back while packing, so that memory holds about one copy of the experts all the time. Immutable
// once made; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "kernels/matrix_kernel.h"
#include "kernels/packed_memory.h"
#include "moe/compute/expert_weights.h"
#include "moe/target/ids.h"

namespace moe {

struct PackRequest {
  const ExpertWeights* weights = nullptr;
  std::span<const std::uint8_t> owned;  // [num_layers, num_experts]: 1 for what to pack
  std::size_t num_threads = 1;          // the caller's is one of them
  // The weights of experts [first, first + count) of a layer are read no more. Called by any of the
  // threads, several at once, for single experts as they are done and again for each run of
  // neighbours when their layer is. May be empty.
  std::function<void(LayerId layer, std::size_t first, std::size_t count)> release;
  // Bytes of the file's layout that are packed, of all; by the caller's thread. May be empty.
  std::function<void(base::Bytes done, base::Bytes total)> progress;
  std::stop_token stop;  // noticed within a MiB of weights
  // Seam: where the copy gets its memory.
  std::function<base::Result<kernels::PackedMemory>(base::Bytes)> allocate =
      kernels::PackedMemory::Allocate;
};

class PackedExperts {
 public:
  // One projection of a layer; fused gate_up is two.
  struct Matrix {
    kernels::MatrixKernel kernel;
    std::size_t num_rows = 0;
    std::size_t offset = 0;  // of its strips in an expert's run
  };

  struct Layer {
    Matrix gate;
    Matrix up;
    Matrix down;
    std::size_t run_bytes = 0;
    std::vector<const std::byte*> runs;  // [num_experts], nullptr for experts that are not packed
  };

  // Bytes of one expert's run; nullopt for a layer that cannot be packed.
  static std::optional<base::Bytes> RunBytes(const LayerWeights& layer);

  // Errors: kCapacity when there is no memory for the copy; kCancelled; kCorruptModel naming the
  // tensor that does not fit its layer. After an error nothing is left of the copy.
  static base::Result<std::shared_ptr<const PackedExperts>> Make(const PackRequest& request);

  // All runs of both, where they are; keeps both alive. Precondition: of the same model, and no
  // expert is in both.
  static std::shared_ptr<const PackedExperts> Join(std::shared_ptr<const PackedExperts> first,
                                                   std::shared_ptr<const PackedExperts> second);

  // `packed` without those of the copies that it was joined of that hold nothing of `owned`
  // ([num_layers, num_experts]: 1 for owned); nullptr when nothing is left.
  static std::shared_ptr<const PackedExperts> Keep(std::shared_ptr<const PackedExperts> packed,
                                                   std::span<const std::uint8_t> owned);

  // As Keep, and of the copies that stay the runs of `owned` alone.
  static std::shared_ptr<const PackedExperts> Only(std::shared_ptr<const PackedExperts> packed,
                                                   std::span<const std::uint8_t> owned);

  // Gives back the memory of the runs that are here and not in `left`, which Only made of this; may
  // be nullptr. Precondition: nobody reads them any more.
  void GiveBackAllBut(const PackedExperts* left) const;

  // nullptr when the layer stays in the file's layout.
  const Layer* layer(LayerId id) const {
    return layers_[id.index()] ? &*layers_[id.index()] : nullptr;
  }
  base::Bytes bytes() const { return bytes_; }

 private:
  using Copies = std::vector<std::shared_ptr<const PackedExperts>>;

  PackedExperts() = default;
  // The copies that `packed` was joined of, or itself.
  static Copies CopiesOf(const std::shared_ptr<const PackedExperts>& packed);
  // Whether the run lies in this copy's own memory.
  bool Holds(const std::byte* run) const;
  // Layouts of layers, without memory yet. Experts' runs are counted in bytes_.
  base::Result<void> LayOut(const PackRequest& request);
  base::Result<void> Allocate(const PackRequest& request);

  kernels::PackedMemory memory_;
  Copies joined_;  // whose memory it uses
  std::vector<std::optional<Layer>> layers_;
  base::Bytes bytes_;
};

}  // namespace moe
