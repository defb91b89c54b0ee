/* What works on rows, for vector units: one text over the words of an instruction set. Where a row's end fills no register
 * the text of plain_rows.h goes on. */
#ifndef PS_ROWS_BODY_H
#define PS_ROWS_BODY_H

#include "base/exact.h"
#include "kernel/exp_body.h"
#include "kernel/plain_rows.h"
#include "kernel/words.h"

/* lane i of x[v] = element LANES * v + i of the block. */
static void vec_quantise(const float *x, u32 n, i8 *q, float *d, i16 *sum)
{
    enum { REGS = ACT_BLOCK / LANES };
    for (u32 b = 0; b < n / ACT_BLOCK; b++, x += ACT_BLOCK, q += ACT_BLOCK) {
        vf v[REGS];
        vi top = vi_zero(), total = vi_zero();
        UNROLL for (u32 i = 0; i < REGS; i++) {
            v[i] = vf_load(x + LANES * i);
            top = vi_maxu32(top, vi_and(vf_bits(v[i]), vi_set(0x7FFFFFFF)));
        }
        u32 most = vi_top(top);
        float scale = EX_FLOAT(most) / 127.0f;
        bool finite = most < 0x7F800000u;
        scale = finite ? ex_round11(scale) : scale;
        if (!finite || scale < EX_TINY_SCALE) {
            memset(q, 0, ACT_BLOCK);
            d[b] = finite ? 0.0f : EX_FLOAT(0x7FC00000u);
            sum[b] = 0;
            continue;
        }
        vf r = vf_set(1.0f / scale);
        UNROLL for (u32 i = 0; i < REGS; i++) {
            vi t = vi_round(vf_mul(v[i], r)); /* to nearest even, as adding and subtracting EX_MAGIC does below 2^22 */
            vi_store8(q + LANES * i, t);
            total = vi_add32(total, t);
        }
        d[b] = scale;
        sum[b] = (i16)vi_total(total);
    }
}

/* part[v], lane i: partial sum LANES * v + i of rule 6's 32. */
static void vec_rmsnorm(float *y, const float *x, const float *w, u32 n, float eps)
{
    enum { REGS = 32 / LANES };
    vf part[REGS];
    float s[32];
    u32 i = 0;
    UNROLL for (u32 v = 0; v < REGS; v++)
        part[v] = vf_zero();
    for (; i + 32 <= n; i += 32)
        UNROLL for (u32 v = 0; v < REGS; v++) {
            vf e = vf_flush(vf_load(x + i + LANES * v));
            part[v] = vf_fma(e, e, part[v]);
        }
    UNROLL for (u32 v = 0; v < REGS; v++)
        vf_store(s + LANES * v, part[v]);
    for (u32 j = 0; i + j < n; j++) {
        float e = ex_flush(x[i + j]);
        s[j] = fmaf(e, e, s[j]);
    }
    for (u32 half = 16; half; half /= 2)
        for (u32 j = 0; j < half; j++)
            s[j] += s[j + half];
    float r = 1.0f / sqrtf(s[0] / (float)n + eps);
    vf rv = vf_set(r);
    for (i = 0; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_flush(vf_mul(vf_mul(vf_load(x + i), rv), vf_load(w + i))));
    for (; i < n; i++)
        y[i] = ex_flush(x[i] * r * w[i]);
}

/* LANES pairs at a time: a, b their first and second numbers, c, s the cosines and sines, which lie in turns. */
static void vec_rope(float *x, const float *cs, u32 d_head, u32 d_rope, bool neox)
{
    u32 half = d_rope / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        float *first = x + (neox ? i : 2 * i), *second = first + (neox ? half : LANES);
        vf low = vf_load(first), high = vf_load(second), c0 = vf_load(cs + 2 * i), c1 = vf_load(cs + 2 * i + LANES);
        vf c = vf_evens(c0, c1), s = vf_odds(c0, c1);
        vf a = neox ? low : vf_evens(low, high), b = neox ? high : vf_odds(low, high);
        vf u = vf_flush(vf_fma(a, c, vf_neg(vf_mul(b, s)))), v = vf_flush(vf_fma(b, c, vf_mul(a, s)));
        vf_store(first, neox ? u : vf_zip_first(u, v));
        vf_store(second, neox ? v : vf_zip_last(u, v));
    }
    rope_from(i, x, cs, d_head, d_rope, neox);
}

static void vec_swiglu(float *y, const float *g, const float *u, u32 n)
{
    const vf one = vf_set(1.0f), zero = vf_zero();
    u32 i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf x = vf_load(g + i);
        vf e = vec_exp(vi_floats(vi_or(vf_bits(x), vi_set((i32)0x80000000u)))); /* of -|x| */
        vf s = vf_div(vf_less(x, zero, e, one), vf_add(one, e)); /* a NaN is one in x * s whatever s is */
        vf_store(y + i, vf_flush(vf_mul(vf_mul(x, s), vf_load(u + i))));
    }
    swiglu_some(y + i, g + i, u + i, n - i);
}

static void vec_add(float *y, const float *x, u32 n)
{
    u32 i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_add(vf_load(y + i), vf_load(x + i)));
    add_some(y + i, x + i, n - i);
}

/* acc[v]: columns i + LANES * v on. A chain of n_y fma each, so several go at once. */
static void vec_combine(float *x, const float *const *y, const float *w, u32 n_y, u32 n)
{
    enum { REGS = 4 };
    u32 i = 0;
    for (; i + REGS * LANES <= n; i += REGS * LANES) {
        vf acc[REGS];
        UNROLL for (u32 v = 0; v < REGS; v++)
            acc[v] = vf_zero();
        for (u32 r = 0; r < n_y; r++) {
            vf by = vf_set(w[r]);
            UNROLL for (u32 v = 0; v < REGS; v++)
                acc[v] = vf_fma(by, vf_flush(vf_load(y[r] + i + LANES * v)), acc[v]);
        }
        UNROLL for (u32 v = 0; v < REGS; v++)
            vf_store(x + i + LANES * v, vf_add(vf_load(x + i + LANES * v), acc[v]));
    }
    combine_from(i, x, y, w, n_y, n);
}

/* vf_min and vf_max hand on their second number where one is NaN. */
static void vec_halves(u16 *h, const float *x, u32 n)
{
    const vf most = vf_set(65504.0f), least = vf_set(-65504.0f);
    u32 i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store_halves(h + i, vf_max(least, vf_min(most, vf_flush(vf_load(x + i)))));
    halves_some(h + i, x + i, n - i);
}

#endif
