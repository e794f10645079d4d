// The products of each weight type, for each instruction set. Internal to this folder.
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
StripFunctions Q80Strips(InstructionSet set);
StripFunctions Q40Strips(InstructionSet set);
StripFunctions Iq4NlStrips(InstructionSet set);
StripFunctions Mxfp4Strips(InstructionSet set);

QuantizeFunction Quantize256(InstructionSet set);
QuantizeFunction Quantize32(InstructionSet set);

}  // namespace kernels
