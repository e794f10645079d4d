#include "base/bytes.h"

#include <array>
#include <format>

namespace base {

std::string FormatBytes(Bytes bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < Bytes::KiB(1)) return std::format("{} B", bytes.count());
  double value = static_cast<double>(bytes.count()) / 1024.0;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return std::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace base
