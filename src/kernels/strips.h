// Packing and products of each weight type, for each instruction set. Internal to this folder.
#pragma once

#include "kernels/instruction_set.h"
#include "kernels/matrix_kernel.h"

namespace kernels {

// Precondition for all: `set` is one of AvailableInstructionSets().
StripFunctions Q4KStrips(InstructionSet set);
StripFunctions Q5KStrips(InstructionSet set);
StripFunctions Q6KStrips(InstructionSet set);
StripFunctions Q3KStrips(InstructionSet set);
StripFunctions Q2KStrips(InstructionSet set);
StripFunctions Iq4XsStrips(InstructionSet set);
StripFunctions Iq2XxsStrips(InstructionSet set);
StripFunctions Iq2XsStrips(InstructionSet set);  // IQ2_S as well
StripFunctions Iq3XxsStrips(InstructionSet set);
StripFunctions Iq3SStrips(InstructionSet set);
StripFunctions Iq1SStrips(InstructionSet set);
StripFunctions Iq1MStrips(InstructionSet set);
StripFunctions TernaryStrips(InstructionSet set);  // TQ1_0, TQ2_0
StripFunctions Q80Strips(InstructionSet set);
StripFunctions Q51Strips(InstructionSet set);
StripFunctions Q50Strips(InstructionSet set);
StripFunctions Q41Strips(InstructionSet set);
StripFunctions Q40Strips(InstructionSet set);
StripFunctions Q20Strips(InstructionSet set);
StripFunctions Q10Strips(InstructionSet set);
StripFunctions Iq4NlStrips(InstructionSet set);
StripFunctions Mxfp4Strips(InstructionSet set);
StripFunctions Nvfp4Strips(InstructionSet set);
StripFunctions F32Strips(InstructionSet set);
StripFunctions F16Strips(InstructionSet set);
StripFunctions Bf16Strips(InstructionSet set);

PackStripFunction PackQ4K(InstructionSet set);
PackStripFunction PackQ5K(InstructionSet set);
PackStripFunction PackQ6K(InstructionSet set);
PackStripFunction PackQ3K(InstructionSet set);
PackStripFunction PackQ2K(InstructionSet set);
PackStripFunction PackIq4Xs(InstructionSet set);
PackStripFunction PackIq3S(InstructionSet set);
PackStripFunction PackIq3Xxs(InstructionSet set);
PackStripFunction PackIq2S(InstructionSet set);
PackStripFunction PackIq2Xs(InstructionSet set);
PackStripFunction PackIq2Xxs(InstructionSet set);
PackStripFunction PackIq1M(InstructionSet set);
PackStripFunction PackIq1S(InstructionSet set);
PackStripFunction PackTq20(InstructionSet set);
PackStripFunction PackTq10(InstructionSet set);
PackStripFunction PackQ80(InstructionSet set);
PackStripFunction PackQ51(InstructionSet set);
PackStripFunction PackQ50(InstructionSet set);
PackStripFunction PackQ41(InstructionSet set);
PackStripFunction PackQ40(InstructionSet set);
PackStripFunction PackQ20(InstructionSet set);
PackStripFunction PackQ10(InstructionSet set);
PackStripFunction PackIq4Nl(InstructionSet set);
PackStripFunction PackMxfp4(InstructionSet set);
PackStripFunction PackNvfp4(InstructionSet set);
PackStripFunction PackWords(InstructionSet set);   // F32
PackStripFunction PackHalves(InstructionSet set);  // F16, BF16

// Null where the instruction set has none.
FileRowFunction Tq20FileRow(InstructionSet set);
FileRowFunction Tq10FileRow(InstructionSet set);

QuantizeFunction Quantize256(InstructionSet set);
QuantizeFunction Quantize32(InstructionSet set);
QuantizeFunction RoundToFloat16(InstructionSet set);
QuantizeFunction RoundToBfloat16(InstructionSet set);
QuantizeFunction KeepFloats();

}  // namespace kernels
