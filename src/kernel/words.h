/* What every instruction set's words share. A word is one operation; a body is an algorithm written in words. */
#ifndef PS_WORDS_H
#define PS_WORDS_H

#include <string.h>

#include "kernel/kernel.h"

#define WORD static inline __attribute__((always_inline))

/* The loop after it is written out: its count is a constant (at most 8) wherever the body is used. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Asks memory for the line at p, which need not exist. */
WORD void fetch(const void *p)
{
    __builtin_prefetch(p);
}

/* Loads that follow it are not made before it. */
WORD void part_loads(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
