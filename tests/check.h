/* What kernel checks share: seeded random numbers with extremes, memory between two unmapped pages, byte comparison
 * that says where, and frozen hashes (tests/golden.txt). Included by one test program each. */
#ifndef PS_CHECK_H
#define PS_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/exact.h"

static u64 check_state;

static inline void check_seed(u64 seed)
{
    check_state = seed * 0x9E3779B97F4A7C15ull + 1;
}

/* xorshift64*: any sequence would do, this one is the same everywhere. */
static inline u32 check_u32(void)
{
    check_state ^= check_state >> 12;
    check_state ^= check_state << 25;
    check_state ^= check_state >> 27;
    return (u32)(check_state * 0x2545F4914F6CDD1Dull >> 32);
}

static inline u32 check_below(u32 n)
{
    return (u32)((u64)check_u32() * n >> 32);
}

/* A float: three times in four of everyday size, else an extreme (zeros, tiny, huge, powers of two, ties). */
static inline float check_float(void)
{
    static const float EXTREMES[] = {0.0f,     -0.0f,     1.0f,     -1.0f,   0.5f,        126.5f, -127.5f, 1e-12f,
                                     -1e-13f,  1e-20f,    1e-30f,   1e-38f,  65504.0f,    1e6f,   -1e9f,   9.1e-13f,
                                     -9.09e-13f, 3.0e-39f, 16777216.0f, 0.1f, 1.0009765625f};
    if (check_below(4) == 0)
        return EXTREMES[check_below(COUNT(EXTREMES))];
    return ((float)(i32)check_u32() * 0x1p-31f) * (check_below(2) ? 1.0f : 8.0f);
}

static inline float check_plain(void)
{
    return (float)(i32)check_u32() * 0x1p-31f;
}

struct guarded {
    u8 *map;
    size_t map_bytes;
    u8 *at;
};

/* bytes that end (or, odd times, begin) exactly at an unmapped page. align: of the address at the end case. */
static inline void *guard(struct guarded *g, size_t bytes, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    g->map_bytes = body + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->map != MAP_FAILED);
    if (body)
        assert_int_equal(mprotect(g->map + page, body, PROT_READ | PROT_WRITE), 0);
    g->at = g->map + page + (at_end ? body - bytes : 0);
    return g->at;
}

static inline void unguard(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
}

static inline void check_same_floats(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (EX_BITS(a[i]) != EX_BITS(b[i]) && !(isnan(a[i]) && isnan(b[i]))) /* a NaN's payload is nobody's promise */
            fail_msg("%s: element %zu of %zu is %08x (%g), expected %08x (%g)", what, i, n, EX_BITS(a[i]),
                     (double)a[i], EX_BITS(b[i]), (double)b[i]);
}

static inline u64 check_hash(u64 h, const void *bytes, size_t n)
{
    const u8 *p = bytes;
    if (!h)
        h = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3ull;
    return h;
}

/* Fails unless tests/golden.txt holds "name hash". The line to put there is printed. */
static inline void check_golden(const char *name, u64 hash)
{
    char line[256], key[200];
    unsigned long long want;
    FILE *f = fopen("tests/golden.txt", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%199s %llx", key, &want) == 2 && !strcmp(key, name)) {
            fclose(f);
            if (want != hash)
                fail_msg("golden hash moved: %s %016llx, tests/golden.txt says %016llx", name,
                         (unsigned long long)hash, want);
            return;
        }
    if (f)
        fclose(f);
    fail_msg("tests/golden.txt lacks: %s %016llx", name, (unsigned long long)hash);
}

#endif
