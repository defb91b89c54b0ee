/* The table for NEON with dotprod and i8mm (Neoverse V1 and N2, Apple M2, and later). */
#include "kernel/words_neon.h"

#include "kernel/dots_smmla.h"

#define TABLE kernels_neon_i8mm
#define ISA "neon-i8mm"
#include "kernel/table_body.h"
