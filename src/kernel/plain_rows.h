/* The part of the reference that every table uses: what is left where a row's end fills no register. Included by scalar.c,
 * which makes whole operations of it, and by the bodies. */
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

/* From pair `first` on. */
INLINE void rope_from(u32 first, float *x, const float *cs, u32 d_head, u32 d_rope, bool neox)
{
    u32 half = d_rope / 2;
    for (u32 i = first; i < half; i++) {
        float *a = x + (neox ? i : 2 * i), *b = neox ? a + half : a + 1;
        float c = cs[2 * i], s = cs[2 * i + 1], u = *a, v = *b;
        *a = ex_flush(fmaf(u, c, -(v * s)));
        *b = ex_flush(fmaf(v, c, u * s));
    }
    for (u32 i = d_rope; i < d_head; i++)
        x[i] = ex_flush(x[i]);
}

INLINE void swiglu_some(float *y, const float *g, const float *u, u32 n)
{
    for (u32 i = 0; i < n; i++) {
        float e = ex_exp(-fabsf(g[i]));
        float s = (g[i] >= 0.0f ? 1.0f : e) / (1.0f + e);
        y[i] = ex_flush(g[i] * s * u[i]);
    }
}

INLINE void add_some(float *y, const float *x, u32 n)
{
    for (u32 i = 0; i < n; i++)
        y[i] += x[i];
}

/* Columns [first, n). */
INLINE void combine_from(u32 first, float *x, const float *const *y, const float *w, u32 n_y, u32 n)
{
    for (u32 i = first; i < n; i++) {
        float acc = 0.0f;
        for (u32 r = 0; r < n_y; r++)
            acc = fmaf(w[r], ex_flush(y[r][i]), acc);
        x[i] += acc;
    }
}

INLINE void halves_some(u16 *h, const float *x, u32 n)
{
    for (u32 i = 0; i < n; i++)
        h[i] = (u16)ex_to_half(ex_flush(x[i]));
}

/* ---- attention (rule 7) ---- */

INLINE void join_from(u32 first, float *o, const float *o2, float a, float b, u32 d_head)
{
    for (u32 d = first; d < d_head; d++)
        o[d] = fmaf(o[d], a, o2[d] * b);
}

INLINE void end_from(u32 first, float *o, float l, u32 d_head)
{
    for (u32 d = first; d < d_head; d++)
        o[d] = ex_flush(o[d] / l);
}

/* A value's element as a number: f16 store a half, q8_0 store a byte. */
INLINE float value_at(const u8 *v, bool q8, u32 d)
{
    return q8 ? (float)(i8)v[d] : half_at(v, d);
}

#endif
