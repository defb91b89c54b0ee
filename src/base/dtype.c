/* The table of storage types. See dtype.h. */
#include "base/dtype.h"

#include <string.h>
#include <strings.h>

static const struct dtype_info TYPES[DT_LIMIT] = {
    [DT_F32] = {"f32", 1, 4, false},       [DT_F16] = {"f16", 1, 2, false},
    [DT_BF16] = {"bf16", 1, 2, false},     [DT_Q4_0] = {"q4_0", 32, 18, true},
    [DT_Q4_1] = {"q4_1", 32, 20, true},    [DT_Q5_0] = {"q5_0", 32, 22, true},
    [DT_Q5_1] = {"q5_1", 32, 24, true},    [DT_Q8_0] = {"q8_0", 32, 34, true},
    [DT_Q4_K] = {"q4_k", 256, 144, true},  [DT_Q5_K] = {"q5_k", 256, 176, true},
    [DT_Q6_K] = {"q6_k", 256, 210, true},
};

const struct dtype_info *dtype_info(u32 type)
{
    return type < DT_LIMIT && TYPES[type].name ? &TYPES[type] : NULL;
}

int dtype_parse(const char *name)
{
    for (int i = 0; i < DT_LIMIT; i++)
        if (TYPES[i].name && !strcasecmp(TYPES[i].name, name))
            return i;
    return -1;
}
