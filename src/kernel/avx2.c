/* The table for AVX2 with FMA and F16C (Haswell, Zen and later). */
#include "kernel/words_avx2.h"

#include "kernel/dots_madd.h"

#define TABLE kernels_avx2
#define ISA "avx2"
#include "kernel/table_body.h"
