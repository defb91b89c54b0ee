/* The table for AVX-512 with VNNI (Cascade Lake, Ice Lake, Zen 4 and later). */
#include "kernel/words_avx512.h"

#define DP4(acc, w, x) _mm512_dpbusd_epi32(acc, w, x)
#include "kernel/dots_vnni.h"

#define TABLE kernels_avx512vnni
#define ISA "avx512vnni"
#include "kernel/table_body.h"
