/* The table for NEON with dotprod (Cortex-A76, Neoverse N1, Apple A13 and M1, and later). */
#include "kernel/words_neon.h"

#include "kernel/dots_sdot.h"

#define TABLE kernels_neon_dotprod
#define ISA "neon-dotprod"
#include "kernel/table_body.h"
