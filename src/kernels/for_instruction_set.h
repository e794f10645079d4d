// Chooses among a function's versions for the instruction sets. Internal to this folder, included
// after Highway's headers.
//
// `return ES_KERNELS_FOR(set, Q4K)();` calls the Q4K of the per-target namespace that `set` names.
#pragma once

#include "kernels/instruction_set.h"

#if HWY_TARGETS & HWY_AVX3_DL
#define ES_KERNELS_AVX512(function) N_AVX3_DL::function
#else
#define ES_KERNELS_AVX512(function) HWY_STATIC_DISPATCH(function)
#endif
#if HWY_TARGETS & HWY_AVX2
#define ES_KERNELS_AVX2(function) N_AVX2::function
#else
#define ES_KERNELS_AVX2(function) HWY_STATIC_DISPATCH(function)
#endif

#define ES_KERNELS_FOR(set, function)                                             \
  ((set) == ::kernels::InstructionSet::kAvx512Vnni ? &ES_KERNELS_AVX512(function) \
   : (set) == ::kernels::InstructionSet::kAvx2     ? &ES_KERNELS_AVX2(function)   \
                                                   : &HWY_STATIC_DISPATCH(function))
