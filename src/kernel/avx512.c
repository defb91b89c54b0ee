/* The table for AVX-512 without VNNI (Skylake-SP). */
#include "kernel/words_avx512.h"

#include "kernel/dots_madd.h"

#define TABLE kernels_avx512
#define ISA "avx512"
#include "kernel/table_body.h"
