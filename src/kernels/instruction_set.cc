#include "kernels/instruction_set.h"

#include <hwy/targets.h>

#include <array>
#include <cstddef>

namespace kernels {
namespace {

struct Sets {
  std::array<InstructionSet, 3> all{InstructionSet::kBaseline};
  std::size_t size = 1;

  Sets() {
    const auto supported = hwy::SupportedTargets() & (HWY_TARGETS);
    if (supported & HWY_AVX2) all[size++] = InstructionSet::kAvx2;
    if (supported & HWY_AVX3_DL) all[size++] = InstructionSet::kAvx512Vnni;
  }
};

}  // namespace

std::string_view InstructionSetName(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512Vnni:
      return "avx512_vnni";
  }
  return "unknown";
}

std::span<const InstructionSet> AvailableInstructionSets() {
  static const Sets sets;
  return {sets.all.data(), sets.size};
}

InstructionSet BestInstructionSet() { return AvailableInstructionSets().back(); }

}  // namespace kernels
