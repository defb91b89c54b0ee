/* The table for any 64-bit Arm: NEON without dotprod (Cortex-A53, A72). */
#include "kernel/words_neon.h"

#include "kernel/dots_smull.h"

#define TABLE kernels_neon
#define ISA "neon"
#include "kernel/table_body.h"
