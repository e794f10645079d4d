// Quantised matrices of the dense part in the layout of kernels::MatrixKernel.
//
// They lie one after the other in anonymous memory of their own, in huge pages where the kernel
// gives them, packed once at load. Immutable after Pack; any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "kernels/matrix_kernel.h"

namespace model::qwen35moe {

// One matrix [num_outputs, kernel.row_width()].
struct PackedLinear {
  kernels::MatrixKernel kernel;
  std::size_t num_outputs = 0;
  const std::byte* packed = nullptr;  // [num_strips(), kernel.strip_bytes()]; set by Pack

  std::size_t num_strips() const { return kernels::MatrixKernel::NumStrips(num_outputs); }
  std::size_t bytes() const { return num_strips() * kernel.strip_bytes(); }
};

// Gives mapped memory back.
struct UnmapMemory {
  std::size_t size = 0;
  void operator()(std::byte* address) const;
};

// Owns packed matrices. Collects them first (Add), then packs all at once.
class PackedLinears {
 public:
  // `file` must outlive the call of Pack.
  explicit PackedLinears(const gg::GgufFile& file) : file_(&file) {}

  // Whether `tensor` is a matrix of a type and width that can be packed.
  static bool Supports(const gg::GgufTensor& tensor);
  // The address stays; its `packed` is set by Pack. Matrices that are used together should be added
  // one after the other. Precondition: Supports(tensor); not after Pack.
  const PackedLinear* Add(const gg::GgufTensor& tensor);

  // What Pack takes, or took.
  base::Bytes bytes() const { return base::Bytes(total_bytes_); }
  std::size_t size() const { return matrices_.size(); }

  // Packs everything with up to `num_threads` threads and gives the mapped pages of the packed
  // tensors back to the kernel. Once. Errors: kCapacity when there is no memory for it.
  base::Result<void> Pack(std::size_t num_threads);

 private:
  struct Entry {
    PackedLinear linear;
    const gg::GgufTensor* source = nullptr;
    std::size_t offset = 0;  // in memory_
  };
  void PackPieces(std::byte* base, std::size_t num_threads) const;
  void ReleaseSource(const Entry& entry) const;

  const gg::GgufFile* file_;
  std::deque<Entry> matrices_;
  std::size_t total_bytes_ = 0;
  std::unique_ptr<std::byte, UnmapMemory> memory_;
};

}  // namespace model::qwen35moe
