/* Random weights as a model file holds them: every integer, scales of all kinds, half of them denormal or at an end of
 * what a half can be. Included by the checks of products. */
#ifndef PS_FILE_BLOCKS_H
#define PS_FILE_BLOCKS_H

#include "check_kernel.h"

static inline u16 random_scale(void)
{
    switch (check_below(8)) {
    case 0:
        return (u16)check_below(0x400); /* denormal halves: usual in K types */
    case 1:
        return (u16)(check_u32() & 0xFBFF & ~0x7C00u); /* signed denormals */
    case 2:
        return 0x7BFF;
    case 3:
        return 0;
    default:
        return (u16)(ex_to_half(check_plain() * 0.1f));
    }
}

static inline void random_blocks(enum dtype type, u8 *p, u64 bytes)
{
    const struct dtype_info *t = dtype_info(type);
    for (u64 i = 0; i < bytes; i++)
        p[i] = (u8)check_u32();
    for (u64 b = 0; b < bytes; b += t->block_bytes) {
        if (type == DT_F32) {
            float x = check_float();
            memcpy(p + b, &x, 4);
        } else if (type == DT_F16) {
            put16(p + b, (u16)ex_to_half(check_float()));
        } else if (type == DT_BF16) {
            put16(p + b, (u16)(EX_BITS(check_float()) >> 16));
        } else {
            put16(p + b + (type == DT_Q6_K ? 208 : 0), random_scale());
            if (type == DT_Q4_1 || type == DT_Q5_1 || type == DT_Q4_K || type == DT_Q5_K)
                put16(p + b + 2, random_scale());
        }
    }
}

#endif
