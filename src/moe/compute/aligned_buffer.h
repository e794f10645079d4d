// Scratch memory that starts at a cache line and only grows. One owner; no locking.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace moe {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  // At least `bytes`; the contents are lost when it grows. False when there is no memory, and the
  // buffer is then empty.
  [[nodiscard]] bool Grow(std::size_t bytes) {
    if (bytes <= size_) return true;
    data_.reset();
    size_ = 0;
    data_.reset(
        static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment), std::nothrow)));
    if (data_ == nullptr) return false;
    size_ = bytes;
    return true;
  }

  std::size_t size() const { return size_; }
  std::byte* bytes() const { return data_.get(); }
  // Uninitialised; only for trivial types.
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }

 private:
  struct Free {
    void operator()(std::byte* data) const {
      ::operator delete(data, std::align_val_t(kAlignment));
    }
  };

  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace moe
