/* The part of the reference that every table uses as it is: operations whose loops already run over lanes, so that a
 * compiler makes them vectors by itself. Included by scalar.c and by each instruction set's file, which compiles this text
 * with its own flags; the order of every sum is written here once. */
#ifndef PS_PLAIN_ROWS_H
#define PS_PLAIN_ROWS_H

#include "base/exact.h"
#include "kernel/kernel.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float half_at(const u8 *w, u32 r)
{
    u16 h;
    memcpy(&h, w + 2 * r, 2);
    return ex_half(h);
}

/* The tree of rule 6: 16-8-4-2-1. */
INLINE float tree(float s[32])
{
    for (u32 half = 16; half; half /= 2)
        for (u32 i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

/* ---- rows ---- */

static void rope(float *x, const float *cs, u32 d_head, u32 d_rope, bool neox)
{
    u32 half = d_rope / 2;
    for (u32 i = 0; i < half; i++) {
        float *a = x + (neox ? i : 2 * i), *b = neox ? a + half : a + 1;
        float c = cs[2 * i], s = cs[2 * i + 1], u = *a, v = *b;
        *a = ex_flush(fmaf(u, c, -(v * s)));
        *b = ex_flush(fmaf(v, c, u * s));
    }
    for (u32 i = d_rope; i < d_head; i++)
        x[i] = ex_flush(x[i]);
}

static void swiglu(float *y, const float *g, const float *u, u32 n)
{
    for (u32 i = 0; i < n; i++) {
        float e = ex_exp(-fabsf(g[i]));
        float s = (g[i] >= 0.0f ? 1.0f : e) / (1.0f + e);
        y[i] = ex_flush(g[i] * s * u[i]);
    }
}

static void add(float *y, const float *x, u32 n)
{
    for (u32 i = 0; i < n; i++)
        y[i] += x[i];
}

static void axpy(float *acc, const float *y, float w, u32 n)
{
    for (u32 i = 0; i < n; i++)
        acc[i] = fmaf(w, y[i], acc[i]);
}

/* ---- attention (rule 7) ---- */

/* s[0..n_pos) are scores: becomes weights; *m their maximum, *l their sum. */
INLINE void chunk_weights(float *s, u32 n_pos, float *m, float *l)
{
    float top = s[0], part[32] = {0};
    for (u32 j = 1; j < n_pos; j++)
        top = s[j] > top ? s[j] : top;
    for (u32 j = 0; j < n_pos; j++)
        s[j] = ex_flush(ex_exp(s[j] - top));
    for (u32 j = 0; j < n_pos; j++)
        part[j % 32] += s[j];
    *m = top;
    *l = tree(part);
}

/* Scores of one panel of 32 positions. */
INLINE void scores_q8(float s[KV_PANEL], const struct act *q, const u8 *k, u32 d_head)
{
    float p[KV_PANEL] = {0}, total[KV_PANEL] = {0};
    u32 n_blocks = d_head / ACT_BLOCK;
    for (u32 b = 0; b < n_blocks; b++, k += KV_Q8_BLOCK) {
        i32 acc[KV_PANEL] = {0};
        const i8 *w = (const i8 *)k + 2 * KV_PANEL;
        for (u32 i = 0; i < ACT_BLOCK; i++)
            for (u32 j = 0; j < KV_PANEL; j++)
                acc[j] += w[i / 4 * 128 + j * 4 + i % 4] * q->q[b * ACT_BLOCK + i];
        for (u32 j = 0; j < KV_PANEL; j++)
            p[j] = fmaf((float)acc[j], half_at(k, j) * q->d[b], p[j]);
        if (b % (SEGMENT / ACT_BLOCK) == SEGMENT / ACT_BLOCK - 1 || b + 1 == n_blocks)
            for (u32 j = 0; j < KV_PANEL; j++) {
                total[j] += p[j];
                p[j] = 0.0f;
            }
    }
    memcpy(s, total, sizeof total);
}

static void attend_q8(float *o, float *m, float *l, const struct act *q, const u8 *k, const u8 *v, u32 n_pos, u32 d_head,
                      float scale)
{
    float s[KV_CHUNK] = {0};
    for (u32 j0 = 0; j0 < n_pos; j0 += KV_PANEL, k += d_head / ACT_BLOCK * KV_Q8_BLOCK) {
        scores_q8(s + j0, q, k, d_head);
        for (u32 j = 0; j < KV_PANEL; j++)
            s[j0 + j] *= scale;
    }
    chunk_weights(s, n_pos, m, l);
    for (u32 d = 0; d < d_head; d++)
        o[d] = 0.0f;
    for (u32 j = 0; j < n_pos; j++, v += d_head / ACT_BLOCK * 34)
        for (u32 b = 0; b < d_head / ACT_BLOCK; b++) {
            float w = s[j] * half_at(v, b);
            const i8 *x = (const i8 *)v + d_head / ACT_BLOCK * 2 + b * ACT_BLOCK;
            for (u32 d = 0; d < ACT_BLOCK; d++)
                o[b * ACT_BLOCK + d] = fmaf(w, (float)x[d], o[b * ACT_BLOCK + d]);
        }
}

#endif
