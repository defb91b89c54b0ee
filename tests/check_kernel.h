/* What the checks of kernels share: halves in bytes, and every instruction set's table in turn. */
#ifndef PS_CHECK_KERNEL_H
#define PS_CHECK_KERNEL_H

#include "check.h"

#include "kernel/kernel.h"
#include "kernel/tables.h"

static inline void put16(u8 *p, u16 h)
{
    p[0] = (u8)h;
    p[1] = (u8)(h >> 8);
}

static inline u16 get16(const u8 *p)
{
    return (u16)(p[0] | p[1] << 8);
}

static inline void each_isa(void (*fn)(const struct kernels *k))
{
    const char *names[16];
    u32 n = kernels_list(names, COUNT(names));
    for (u32 i = 0; i < n; i++)
        fn(kernels_choose(names[i]));
}

#endif
