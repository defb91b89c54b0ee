/* Up to 16 activation rows as the products of mat_body.h read them: a slice of the contraction, copied next to each
 * other, with what every panel of weights would otherwise derive from them again. */
#ifndef PS_MAT_TILE_H
#define PS_MAT_TILE_H

#include "kernel/words.h"

enum {
    TALL = 16,  /* rows of a tall tile */
    SLICE = 64, /* blocks of the contraction done at a time; between slices y holds the totals, which changes no bit */
    LINE = SLICE + 16,                  /* floats, and */
    LINE_Q = SLICE * ACT_BLOCK + 64     /* bytes from row to row: never a power of two, or rows meet in a few cache sets */
};

/* One slice of a tile's activations, with what every panel would derive from them again. */
struct tile {
    u32 m, n_blocks;
    bool first;             /* slice: totals start at 0 */
    i8 q[TALL * LINE_Q];
    float d[TALL * LINE];
    float dsum[TALL * LINE];  /* d * sum(q), exact: for minimums */
    i32 start[TALL * LINE];   /* -offset * sum(q); q6_k: of the first 16 */
    i32 start2[TALL * LINE];  /* q6_k: of the other 16 */
} __attribute__((aligned(64)));

/* The format, constant in every instance. */
struct form {
    enum dtype type;
    u32 bits;
    i32 offset;
    bool min, k;
};

WORD void fill_row(struct tile *t, struct form f, const struct act *x, u32 i, u32 b0)
{
    const i8 *q = x->q + (u64)b0 * ACT_BLOCK;
    const float *d = x->d + b0;
    const i16 *sum = x->sum + b0;
    float *dsum = t->dsum + i * LINE;
    i32 *start = t->start + i * LINE, *start2 = t->start2 + i * LINE;
    u32 n = t->n_blocks;
    memcpy(t->q + i * LINE_Q, q, n * ACT_BLOCK);
    memcpy(t->d + i * LINE, d, n * sizeof *d);
    if (f.min)
        for (u32 b = 0; b < n; b++)
            dsum[b] = d[b] * (float)sum[b];
    if (f.bits == 6)
        for (u32 b = 0; b < n; b++) {
            i32 low = sum_16(q + b * ACT_BLOCK);
            start[b] = -f.offset * low;
            start2[b] = -f.offset * (sum[b] - low);
        }
    else if (f.offset)
        for (u32 b = 0; b < n; b++)
            start[b] = -f.offset * sum[b];
}

#endif
