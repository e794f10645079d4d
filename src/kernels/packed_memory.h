// Memory that packed weights lie in: anonymous, in huge pages where the system has them. Nothing of
// it is there before it is touched. Move-only; the address stays the same when the owner is moved.
#pragma once

#include <cstddef>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"

namespace kernels {

class PackedMemory {
 public:
  // No memory: data() is nullptr.
  PackedMemory() = default;
  // Zeroed. Errors: kCapacity when the system has no room for `size`.
  static base::Result<PackedMemory> Allocate(base::Bytes size);

  // Starts at a huge page.
  std::byte* data() const;

  // Gives the whole pages of a part of such memory back to the system; nobody reads the part any
  // more.
  static void GiveBack(const std::byte* first, base::Bytes size);

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::byte* mapping) const;
  };

  std::unique_ptr<std::byte, Unmap> mapping_;
};

}  // namespace kernels
