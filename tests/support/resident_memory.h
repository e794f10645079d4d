// Memory of this process that is resident and no file's.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/bytes.h"

namespace test {

// After the allocator has given back what it keeps. Fails the running test and returns 0 where the
// kernel does not say.
inline base::Bytes ResidentAnonymous() {
  ::malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(256, '\n')) {
    std::uint64_t kib = 0;
    if (key == "RssAnon:" && status >> kib) return base::Bytes::KiB(kib);
  }
  ADD_FAILURE() << "no RssAnon";
  return {};
}

}  // namespace test
