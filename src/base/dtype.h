/* How numbers are stored in a model file: names, block sizes and the numbers that the GGUF format gives them.
 * Block layouts are described in docs/formats.md; kernel/pack.c reads them.
 * Source: the GGUF specification's ggml_type table. */
#ifndef PS_DTYPE_H
#define PS_DTYPE_H

#include "base/base.h"

enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_Q4_0 = 2,
    DT_Q4_1 = 3,
    DT_Q5_0 = 6,
    DT_Q5_1 = 7,
    DT_Q8_0 = 8,
    DT_Q4_K = 12,
    DT_Q5_K = 13,
    DT_Q6_K = 14,
    DT_BF16 = 30,
    DT_LIMIT = 40 /* one more than any number in use, for tables */
};

struct dtype_info {
    const char *name;   /* as users write it: "q4_0"; NULL: a type this program does not read */
    u32 block_elems;    /* weights in a block; a row's length is a multiple of it */
    u32 block_bytes;    /* bytes of a block in the file */
    bool quantised;     /* integers with scales: activations are quantised too */
};

/* The entry of a type number from a file, or NULL when it is not one of ours. */
const struct dtype_info *dtype_info(u32 type);

/* The type of a name, or -1. */
int dtype_parse(const char *name);

#endif
