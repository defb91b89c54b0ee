/* Attention over one chunk for vector units (rule 7): one text over the words of an instruction set.
 *
 * Scores and outputs are the same sum: c[r][lane] = fma(a[r][t], b[t][lane], ..) for t in order, 32 lanes wide.
 *     scores   lane = position of a panel   t = dimension   a = q         b = keys, 32 halves apart
 *     outputs  lane = dimension             t = position    a = weights   b = values, d_head halves apart
 *
 *     b[i]      COLS registers: 32 halves made floats once for all queries
 *     c[r][i]   QUERIES x COLS sums; a[r] in every lane
 */
#ifndef PS_ATTEND_BODY_H
#define PS_ATTEND_BODY_H

#include "base/exact.h"
#include "kernel/words.h"

enum { COLS = KV_PANEL / LANES };

/* n queries, whose a-rows are `a_step` floats apart; `cols` registers of columns from b on; results to c[r] + at. */
WORD void many_sums(float *const *c, u32 at, const float *a, u32 a_step, u32 n, const u16 *b, u32 b_step, u32 cols, u32 terms)
{
    vf sum[QUERIES][COLS];
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 i = 0; i < cols; i++)
            sum[r][i] = vf_zero();
    for (u32 t = 0; t < terms; t++, b += b_step) {
        vf v[COLS];
        UNROLL for (u32 i = 0; i < cols; i++)
            v[i] = vf_halves(b + i * LANES);
        UNROLL for (u32 r = 0; r < n; r++) {
            vf x = vf_set(a[r * a_step + t]);
            UNROLL for (u32 i = 0; i < cols; i++)
                sum[r][i] = vf_fma(x, v[i], sum[r][i]);
        }
    }
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 i = 0; i < cols; i++)
            vf_store(c[r] + at + i * LANES, sum[r][i]);
}

/* s[0..n) -> its maximum, as a left-to-right "s[j] > top ? s[j] : top" finds it: vf_max is that select. Lanes begin at s[0], so a
 * NaN there stays; where the maximum is a zero its sign is the first zero's, which only the walk knows. s is readable up to a
 * multiple of 32. */
WORD float first_max(const float *s, u32 n)
{
    float lane[LANES], top = s[0];
    vf best = vf_set(s[0]);
    u32 j = 0;
    for (; j + LANES <= n; j += LANES)
        best = vf_max(vf_load(s + j), best);
    vf_store(lane, best);
    for (u32 i = 0; i < LANES; i++)
        top = lane[i] > top ? lane[i] : top;
    for (; j < n; j++)
        top = s[j] > top ? s[j] : top;
    if (top == 0.0f)
        for (top = s[0], j = 1; j < n; j++)
            top = s[j] > top ? s[j] : top;
    return top;
}

/* Scores become weights, zeros up to a multiple of 32; *m and *l as in scalar.c. */
static void weigh(float *s, u32 n, float scale, float *m, float *l)
{
    float part[32] = {0};
    u32 end = (n + KV_PANEL - 1) / KV_PANEL * KV_PANEL;
    for (u32 j = 0; j < end; j++)
        s[j] = s[j] * scale;
    float top = first_max(s, n);
    for (u32 j = 0; j < end; j++)
        s[j] = ex_flush(ex_exp(s[j] - top));
    for (u32 j = n; j < end; j++)
        s[j] = 0.0f;
    for (u32 j = 0; j < end; j += 32) /* adding 0 to a sum of weights changes no bit */
        for (u32 i = 0; i < 32; i++)
            part[i] += s[j + i];
    for (u32 half = 16; half; half /= 2)
        for (u32 i = 0; i < half; i++)
            part[i] += part[i + half];
    *m = top;
    *l = part[0];
}

/* n queries, constant. Dimensions that fill no register, and positions that not all queries see, are done one by one. */
WORD void attend_some(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    float s[QUERIES][KV_CHUNK], q[QUERIES * 256];
    float *to_s[QUERIES], *to_o[QUERIES];
    u32 most = 0, least = KV_CHUNK, step = d_head;
    const float *qs = a[0].q;
    for (u32 r = 0; r < n; r++) {
        most = a[r].n_pos > most ? a[r].n_pos : most;
        least = min_u32(a[r].n_pos, least);
        to_s[r] = s[r];
        to_o[r] = a[r].o;
    }
    if (n > 1) { /* next to each other, so that one address serves */
        qs = q;
        for (u32 r = 0; r < n; r++)
            memcpy(q + r * step, a[r].q, d_head * sizeof *q);
    }
    for (u32 j = 0; j < most; j += KV_PANEL)
        many_sums(to_s, j, qs, step, n, k + (u64)j * d_head, KV_PANEL, COLS, d_head);
    for (u32 r = 0; r < n; r++)
        weigh(s[r], a[r].n_pos, scale, &a[r].m, &a[r].l);
    u32 d = 0;
    for (; d + KV_PANEL <= d_head; d += KV_PANEL)
        many_sums(to_o, d, s[0], KV_CHUNK, n, v + d, d_head, COLS, least);
    for (; d + LANES <= d_head; d += LANES)
        many_sums(to_o, d, s[0], KV_CHUNK, n, v + d, d_head, 1, least);
    for (u32 r = 0; r < n; r++) {
        for (u32 e = d; e < d_head; e++)
            a[r].o[e] = 0.0f;
        for (u32 j = 0; d < d_head && j < least; j++)
            for (u32 e = d; e < d_head; e++)
                a[r].o[e] = fmaf(s[r][j], ex_half(v[(u64)j * d_head + e]), a[r].o[e]);
        for (u32 j = least; j < a[r].n_pos; j++)
            for (u32 e = 0; e < d_head; e++)
                a[r].o[e] = fmaf(s[r][j], ex_half(v[(u64)j * d_head + e]), a[r].o[e]);
    }
}

static void vec_attend_f16_many(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    u32 i = 0;
    if (d_head <= 256) /* room for gathered queries */
        for (; i + QUERIES <= n; i += QUERIES)
            attend_some(a + i, QUERIES, k, v, d_head, scale);
    for (; d_head <= 256 && i + 2 <= n; i += 2)
        attend_some(a + i, 2, k, v, d_head, scale);
    for (; i < n; i++)
        attend_some(a + i, 1, k, v, d_head, scale);
}

static void vec_attend_f16(float *o, float *m, float *l, const float *q, const u16 *k, const u16 *v, u32 n_pos, u32 d_head,
                           float scale)
{
    struct attend_query a = {.q = q, .o = o, .n_pos = n_pos};
    attend_some(&a, 1, k, v, d_head, scale);
    *m = a.m;
    *l = a.l;
}

#endif
