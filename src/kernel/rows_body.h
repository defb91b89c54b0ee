/* Rule 1 and RMSNorm for vector units: one text over the words of an instruction set. What else works on rows is in
 * scalar.c, whose text compilers turn into as good a loop. */
#ifndef PS_ROWS_BODY_H
#define PS_ROWS_BODY_H

#include "base/exact.h"
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

#endif
