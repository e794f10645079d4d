#include "moe/compute/repack.h"

#include <algorithm>

namespace moe {

base::Bytes PackingMargin(base::Bytes packed) {
  return std::max(base::Bytes(packed.count() / 10), base::Bytes::MiB(256));
}

bool FitsPacked(std::string_view what, base::Bytes packed, base::Bytes untouched,
                const PackingMemory& memory, const base::Log& log) {
  const base::Bytes need = packed + untouched + PackingMargin(packed);
  const base::Bytes available = memory.available().value_or(base::Bytes());
  if (need <= available) return true;
  log.Info("{} used as the file has them: packed they need {}, {} is available", what,
           base::FormatBytes(need), base::FormatBytes(available));
  return false;
}

Repack RepackInMemory(Repack wanted, base::Bytes experts, const PackingMemory& memory,
                      const base::Log& log) {
  if (wanted == Repack::kOff || experts == base::Bytes()) return wanted;
  return FitsPacked("weights on the CPU are", experts, {}, memory, log) ? wanted : Repack::kOff;
}

}  // namespace moe
