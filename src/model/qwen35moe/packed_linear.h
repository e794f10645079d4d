// Matrices of the dense part that kernels::MatrixKernel multiplies on the CPU.
//
// Packed at load they lie one after the other in memory of their own; until then, or where there is
// no memory for that, they are used where the file is mapped, with the same results. Immutable
// after Pack; any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <stop_token>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "kernels/matrix_kernel.h"
#include "kernels/packed_memory.h"

namespace model::qwen35moe {

// One matrix [num_outputs, kernel.row_width()].
struct PackedLinear {
  kernels::MatrixKernel kernel;
  std::size_t num_outputs = 0;
  const std::byte* file = nullptr;    // [num_outputs] rows as the file has them
  const std::byte* packed = nullptr;  // [num_strips(), kernel.strip_bytes()]; set by Pack

  std::size_t num_strips() const { return kernels::MatrixKernel::NumStrips(num_outputs); }
  std::size_t bytes() const { return num_strips() * kernel.strip_bytes(); }
};

struct PackOptions {
  std::size_t num_threads = 1;  // the caller's is one of them
  // Bytes of the file's layout that are packed, of all; by the caller's thread. May be empty.
  std::function<void(base::Bytes done, base::Bytes total)> progress;
  std::stop_token stop;  // noticed within a MiB of weights
  // Seam: where the packed form gets its memory.
  std::function<base::Result<kernels::PackedMemory>(base::Bytes)> allocate =
      kernels::PackedMemory::Allocate;
};

// Owns packed matrices. Collects them first (Add), then packs all at once.
class PackedLinears {
 public:
  // `file` must outlive the matrices as long as they are not packed.
  explicit PackedLinears(const gg::GgufFile& file) : file_(&file) {}

  // Whether `tensor` is a matrix of a type and width that can be packed.
  static bool Supports(const gg::GgufTensor& tensor);
  // The address stays; its `packed` is set by Pack. Matrices that are used together should be added
  // one after the other. Precondition: Supports(tensor); not after Pack.
  const PackedLinear* Add(const gg::GgufTensor& tensor);

  // What Pack takes or, where packed(), took.
  base::Bytes bytes() const { return base::Bytes(total_bytes_); }
  bool packed() const { return memory_.data() != nullptr; }
  std::size_t size() const { return matrices_.size(); }

  // Packs everything and gives the mapped pages of the packed tensors back to the kernel. Once.
  // Errors: kCapacity when there is no memory for it; kCancelled. After an error nothing is left of
  // the packed form, and no matrix has one.
  base::Result<void> Pack(const PackOptions& options);

 private:
  struct Entry {
    PackedLinear linear;
    const gg::GgufTensor* source = nullptr;
    std::size_t offset = 0;  // in memory_
  };
  // Strips of one matrix that one thread packs in one go.
  struct Piece {
    std::size_t matrix = 0;
    std::size_t first_strip = 0;
    std::size_t end_strip = 0;
  };
  std::vector<Piece> CutIntoPieces() const;
  // Bytes of the file's layout.
  base::Bytes PackPiece(const Piece& piece, std::byte* base) const;
  void PackPieces(std::byte* base, const PackOptions& options) const;
  void ReleaseSource(const Entry& entry) const;

  const gg::GgufFile* file_;
  std::deque<Entry> matrices_;
  std::size_t total_bytes_ = 0;
  kernels::PackedMemory memory_;
};

}  // namespace model::qwen35moe
