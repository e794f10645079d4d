// Which of Highway's targets the kernels are compiled for. Included before any header of Highway.
#pragma once

// The targets between these differ in nothing that the kernels use. Vectors of unknown length (SVE)
// cannot be kept in arrays.
#define HWY_DISABLED_TARGETS                                                                    \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_AVX10_2 | HWY_ALL_SVE | \
   HWY_NEON_BF16 | HWY_NEON_WITHOUT_AES)
