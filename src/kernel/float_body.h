/* Products with float weights for vector units (rule 5): one text over the words of an instruction set.
 *
 *     lane r = output row r of a strip     v[s]     element k of strip s     x[i][k] in every lane
 *     p[i][s]   the segment's sum of activation row i: a chain of fma, so several strips and rows go at once
 */
#ifndef PS_FLOAT_BODY_H
#define PS_FLOAT_BODY_H

#include "kernel/words.h"

enum {
    FLOAT_ROWS = 4, /* rows of a tile */
    /* 8 chains: an fma is ready after 4 or 5 cycles and two begin in each. A panel of four registers makes 16. */
    FLOAT_STRIPS = PANEL / LANES > 1 ? PANEL / LANES : 2
};

WORD vf float_weights(const u8 *w, u64 at, enum dtype type)
{
    return type == DT_F32 ? vf_load((const float *)(const void *)w + at) : type == DT_F16 ? vf_halves(w + 2 * at) : vf_bf16s(w + 2 * at);
}

/* m rows against n strips; strip s begins `apart` elements after strip s - 1, elements of one are PANEL apart. */
WORD void float_tile(float *const *y, const struct act *const *x, u32 m, const u8 *w, u64 apart, u32 n, u32 n_in, u32 out,
                     enum dtype type)
{
    vf total[FLOAT_ROWS][FLOAT_STRIPS];
    const u32 step = LANES; /* also from panel to panel where a register is one */
    UNROLL for (u32 i = 0; i < m; i++)
        UNROLL for (u32 s = 0; s < n; s++)
            total[i][s] = vf_zero();
    for (u32 k0 = 0; k0 < n_in; k0 += SEGMENT) {
        vf p[FLOAT_ROWS][FLOAT_STRIPS];
        u32 k1 = min_u32(k0 + SEGMENT, n_in);
        UNROLL for (u32 i = 0; i < m; i++)
            UNROLL for (u32 s = 0; s < n; s++)
                p[i][s] = vf_zero();
        for (u32 k = k0; k < k1; k++) {
            vf v[FLOAT_STRIPS];
            UNROLL for (u32 s = 0; s < n; s++)
                v[s] = float_weights(w, (u64)k * PANEL + s * apart, type);
            UNROLL for (u32 i = 0; i < m; i++) {
                vf xk = vf_set(x[i]->x[k]);
                UNROLL for (u32 s = 0; s < n; s++)
                    p[i][s] = vf_fma(v[s], xk, p[i][s]);
            }
        }
        UNROLL for (u32 i = 0; i < m; i++)
            UNROLL for (u32 s = 0; s < n; s++)
                total[i][s] = vf_add(total[i][s], p[i][s]);
    }
    UNROLL for (u32 i = 0; i < m; i++)
        UNROLL for (u32 s = 0; s < n; s++)
            vf_store(y[i] + out + s * step, total[i][s]);
}

WORD void float_rows(float *const *y, const struct act *const *x, u32 m, const u8 *w, u64 apart, u32 n, u32 n_in, u32 out,
                     enum dtype type)
{
    u32 i = 0;
    for (; i + FLOAT_ROWS <= m; i += FLOAT_ROWS)
        float_tile(y + i, x + i, FLOAT_ROWS, w, apart, n, n_in, out, type);
    for (; i < m; i++)
        float_tile(y + i, x + i, 1, w, apart, n, n_in, out, type);
}

/* FLOAT_STRIPS at a time: two panels of one register each, or all parts of a panel. */
WORD void mat_float_vec(enum dtype type, float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0,
                        u32 p1)
{
    u64 elems = (u64)n_in * PANEL, bytes = type == DT_F32 ? 4 : 2;
    u32 p = p0;
    if ((u32)LANES == (u32)PANEL)
        for (; p + 2 <= p1; p += 2)
            float_rows(y, x, n_rows, w + p * elems * bytes, elems, 2, n_in, p * PANEL, type);
    for (; p < p1; p++)
        float_rows(y, x, n_rows, w + p * elems * bytes, LANES, PANEL / LANES, n_in, p * PANEL, type);
}

#define VEC(name, type)                                                                            \
    static void name(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w,         \
                     u32 n_in, u32 p0, u32 p1)                                                     \
    {                                                                                              \
        mat_float_vec(type, y, x, n_rows, w, n_in, p0, p1);                                        \
    }
VEC(vec_f32, DT_F32)
VEC(vec_f16, DT_F16)
VEC(vec_bf16, DT_BF16)
#undef VEC

#endif
