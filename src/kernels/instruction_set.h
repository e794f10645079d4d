// Which vector instructions the kernels of this folder use.
//
// Every kernel is compiled for each of them; the best one that the machine has is picked at run
// time. Values; any thread.
#pragma once

#include <span>
#include <string_view>

namespace kernels {

enum class InstructionSet {
  kBaseline,    // what every machine of the architecture has (x86-64: SSE2; Arm: Neon)
  kAvx2,        // AVX2, FMA, F16C
  kAvx512Vnni,  // AVX-512 with VNNI: Ice Lake, Zen 4 and later
};

// For logs and test names, for example "avx512_vnni".
std::string_view InstructionSetName(InstructionSet set);

// Those that this build has and this machine can run, worst first; never empty.
std::span<const InstructionSet> AvailableInstructionSets();

// The last one of AvailableInstructionSets().
InstructionSet BestInstructionSet();

}  // namespace kernels
