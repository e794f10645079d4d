// A number of bytes that never wraps.
//
// Sums saturate at the largest value and differences at zero, because devices report what they
// like: unified memory may show more bytes free than in total. Values; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <string>

namespace base {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}

  static constexpr Bytes Max() { return Bytes(std::numeric_limits<std::uint64_t>::max()); }
  static constexpr Bytes KiB(std::uint64_t n) { return Bytes(1024) * n; }
  static constexpr Bytes MiB(std::uint64_t n) { return KiB(1024) * n; }
  static constexpr Bytes GiB(std::uint64_t n) { return MiB(1024) * n; }

  constexpr std::uint64_t count() const { return count_; }

  friend constexpr Bytes operator+(Bytes a, Bytes b) {
    std::uint64_t sum = 0;
    return __builtin_add_overflow(a.count_, b.count_, &sum) ? Max() : Bytes(sum);
  }
  friend constexpr Bytes operator-(Bytes a, Bytes b) {
    return a.count_ > b.count_ ? Bytes(a.count_ - b.count_) : Bytes();
  }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) {
    std::uint64_t product = 0;
    return __builtin_mul_overflow(a.count_, n, &product) ? Max() : Bytes(product);
  }
  constexpr Bytes& operator+=(Bytes b) { return *this = *this + b; }
  constexpr Bytes& operator-=(Bytes b) { return *this = *this - b; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

 private:
  std::uint64_t count_ = 0;
};

// For people: "512 B", "1.5 KiB", "20.0 GiB"; one decimal from KiB up.
std::string FormatBytes(Bytes bytes);

}  // namespace base
