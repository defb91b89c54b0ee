/* Every body there is, by instruction set. Used by choose.c and the checks only; callers ask kernels_choose. */
#ifndef PS_TABLES_H
#define PS_TABLES_H

#include "kernel/kernel.h"

extern const struct kernels kernels_scalar;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2;   /* x86-64-v3: AVX2, FMA, F16C */
extern const struct kernels kernels_avxvnni;
extern const struct kernels kernels_avx512; /* x86-64-v4: F, BW, CD, DQ, VL */
extern const struct kernels kernels_avx512vnni;
#elif defined(__aarch64__)
extern const struct kernels kernels_neon;         /* any 64-bit Arm */
extern const struct kernels kernels_neon_dotprod; /* armv8.2-a with sdot */
extern const struct kernels kernels_neon_i8mm;    /* and smmla */
#endif

#endif
