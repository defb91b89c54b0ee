/* What the products of mat_body.h keep in the first cache for a segment: a few rows' activations, copied next to each other
 * with what every block would otherwise derive from them again, and a panel's weights split into bytes. */
#ifndef PS_MAT_TILE_H
#define PS_MAT_TILE_H

#include "kernel/words.h"

enum {
    SEG_BLOCKS = SEGMENT / ACT_BLOCK,
    LINE_Q = SEGMENT + 64 /* bytes from row to row: not a power of two, or rows meet in a few cache sets */
};

/* One segment of GROUP rows at most. */
struct tile {
    i8 q[GROUP * LINE_Q];
    float d[GROUP][SEG_BLOCKS];
    float dsum[GROUP][SEG_BLOCKS]; /* d * sum(q), exact: for minimums */
    i32 start[GROUP][SEG_BLOCKS];  /* -offset * sum(q); q6_k: of the first 16 */
    i32 start2[GROUP][SEG_BLOCKS]; /* q6_k: of the other 16 */
} __attribute__((aligned(64)));

/* The format, constant in every instance. */
struct form {
    enum dtype type;
    u32 bits;
    i32 offset;
    bool min, k;
};

/* Blocks b0 .. b0 + n of x become row i. n is SEG_BLOCKS wherever it is a constant. */
WORD void gather_row(struct tile *t, struct form f, const struct act *x, u32 i, u32 b0, u32 n)
{
    const i8 *q = x->q + (u64)b0 * ACT_BLOCK;
    const float *d = x->d + b0;
    const i16 *sum = x->sum + b0;
    memcpy(t->q + i * LINE_Q, q, n * ACT_BLOCK);
    memcpy(t->d[i], d, n * sizeof *d);
    if (f.min)
        for (u32 b = 0; b < n; b++)
            t->dsum[i][b] = d[b] * (float)sum[b];
    if (f.bits == 6)
        for (u32 b = 0; b < n; b++) {
            i32 low = sum_16(q + b * ACT_BLOCK);
            t->start[i][b] = -f.offset * low;
            t->start2[i][b] = -f.offset * (sum[b] - low);
        }
    else if (f.offset)
        for (u32 b = 0; b < n; b++)
            t->start[i][b] = -f.offset * sum[b];
}

WORD void gather(struct tile *t, struct form f, const struct act *const *x, u32 m, u32 b0, u32 n)
{
    for (u32 i = 0; i < m; i++) {
        if (n == SEG_BLOCKS)
            gather_row(t, f, x[i], i, b0, SEG_BLOCKS);
        else
            gather_row(t, f, x[i], i, b0, n);
    }
}

#endif
