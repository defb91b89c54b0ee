/* The table for AVX2 with AVX-VNNI (Alder Lake, Zen 5 and later). */
#include "kernel/words_avx2.h"

#define DP4(acc, w, x) _mm256_dpbusd_avx_epi32(acc, w, x)
#include "kernel/dots_vnni.h"

#define TABLE kernels_avxvnni
#define ISA "avxvnni"
#include "kernel/table_body.h"
