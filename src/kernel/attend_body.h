/* Attention over one chunk for vector units (rule 7): one text over the words of an instruction set.
 *
 * Scores of f16 keys and outputs are the same sum: c[r][lane] = fma(a[r][t], b[t][lane], ..) for t in order, 32 lanes wide.
 *     scores   lane = position of a panel   t = dimension   a = q         b = keys, 32 halves apart
 *     outputs  lane = dimension             t = position    a = weights   b = values, a row apart; q8_0: weights times scales
 *
 *     b[i]      COLS registers: 32 halves, or bytes, made floats once for all queries
 *     c[r][i]   QUERIES x COLS sums; a[r] in every lane
 *
 * Scores of q8_0 keys are products as in mat_body.h with positions for output rows: panels of 32, blocks of 32 dimensions. */
#ifndef PS_ATTEND_BODY_H
#define PS_ATTEND_BODY_H

#include "base/exact.h"
#include "kernel/exp_body.h"
#include "kernel/mat_tile.h"
#include "kernel/plain_rows.h"
#include "kernel/words.h"

enum {
    COLS = KV_PANEL / LANES,
    KEY_STRIPS = COLS < STRIPS ? COLS : STRIPS, /* registers of positions that share a broadcast of q */
    GATHER = 256                                /* d_head up to which several queries go at once */
};

/* n queries, whose a-rows are `a_step` floats apart; `cols` registers of columns from b on, terms b_step bytes apart;
 * results to c[r] + at. */
WORD void many_sums(float *const *c, u32 at, const float *a, u32 a_step, u32 n, const u8 *b, u64 b_step, bool q8, u32 cols,
                    u32 terms)
{
    vf sum[QUERIES][COLS];
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 i = 0; i < cols; i++)
            sum[r][i] = vf_zero();
    for (u32 t = 0; t < terms; t++, b += b_step) {
        vf v[COLS];
        UNROLL for (u32 i = 0; i < cols; i++)
            v[i] = q8 ? vf_i8s(b + i * LANES) : vf_halves(b + 2 * i * LANES);
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

/* ---- scores of q8_0 keys ---- */

/* Block b of a panel's keys joins the sums p of KEY_STRIPS registers of positions from column i on. x: the queries' integers of
 * this block, LINE_Q apart. */
WORD void join_keys(vf (*p)[COLS], const struct attend_query *a, u32 n, const i8 *x, u32 b, const u8 *k, u32 i)
{
    vi w[KEY_STRIPS][8];
    vf d[KEY_STRIPS];
    UNROLL for (u32 s = 0; s < KEY_STRIPS; s++) {
        d[s] = vf_halves(k + 2 * LANES * (i + s));
        UNROLL for (u32 g = 0; g < 8; g++)
            w[s][g] = weights_8(k + 2 * KV_PANEL + 4 * KV_PANEL * g + 4 * LANES * (i + s));
    }
    UNROLL for (u32 r = 0; r < n; r += GROUP) {
        const u32 rows = n - r < GROUP ? n - r : GROUP;
        vi acc[GROUP][STRIPS];
        UNROLL for (u32 j = 0; j < rows; j++)
            UNROLL for (u32 s = 0; s < KEY_STRIPS; s++)
                acc[j][s] = vi_set(-OFFSET_8 * a[r + j].act.sum[b]);
        dots_8(acc, w, rows, KEY_STRIPS, x + r * LINE_Q);
        UNROLL for (u32 j = 0; j < rows; j++) {
            vf dx = vf_set(a[r + j].act.d[b]);
            UNROLL for (u32 s = 0; s < KEY_STRIPS; s++)
                p[r + j][i + s] = vf_fma(vf_ints(acc[j][s]), vf_mul(d[s], dx), p[r + j][i + s]);
        }
    }
}

/* One panel of 32 positions: scores to s[r] + at. x: the queries' integers, LINE_Q apart. */
WORD void panel_scores(float *const *s, u32 at, const struct attend_query *a, u32 n, const i8 *x, const u8 *k, u32 d_head)
{
    vf p[QUERIES][COLS], total[QUERIES][COLS];
    u32 n_blocks = d_head / ACT_BLOCK;
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 i = 0; i < COLS; i++)
            total[r][i] = p[r][i] = vf_zero();
    for (u32 b = 0; b < n_blocks; b++, k += KV_Q8_BLOCK) {
        UNROLL for (u32 i = 0; i < COLS; i += KEY_STRIPS)
            join_keys(p, a, n, x + b * ACT_BLOCK, b, k, i);
        if (b % (SEGMENT / ACT_BLOCK) != SEGMENT / ACT_BLOCK - 1 && b + 1 != n_blocks)
            continue;
        UNROLL for (u32 r = 0; r < n; r++)
            UNROLL for (u32 i = 0; i < COLS; i++) {
                total[r][i] = vf_add(total[r][i], p[r][i]);
                p[r][i] = vf_zero();
            }
    }
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 i = 0; i < COLS; i++)
            vf_store(s[r] + at + i * LANES, total[r][i]);
}

/* ---- scores to weights ---- */

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
    float sums[32];
    vf part[COLS], by = vf_set(scale);
    u32 end = (n + KV_PANEL - 1) / KV_PANEL * KV_PANEL;
    for (u32 j = 0; j < end; j += LANES)
        vf_store(s + j, vf_mul(vf_load(s + j), by));
    *m = first_max(s, n);
    const vf top = vf_set(*m);
    for (u32 j = 0; j < end; j += LANES)
        vf_store(s + j, vf_flush(vec_exp(vf_sub(vf_load(s + j), top))));
    for (u32 j = n; j < end; j++)
        s[j] = 0.0f;
    UNROLL for (u32 i = 0; i < COLS; i++)
        part[i] = vf_zero();
    for (u32 j = 0; j < end; j += KV_PANEL) /* adding 0 to a sum of weights changes no bit */
        UNROLL for (u32 i = 0; i < COLS; i++)
            part[i] = vf_add(part[i], vf_load(s + j + i * LANES));
    UNROLL for (u32 i = 0; i < COLS; i++)
        vf_store(sums + i * LANES, part[i]);
    *l = tree(sums);
}

/* ---- outputs ---- */

/* Positions [j0, j1) of one query, one by one: dimensions [e0, e1) of o. w: weights, q8_0: times the scales of these dimensions. */
WORD void sums_one_by_one(float *o, const float *w, const u8 *v, u64 row_bytes, bool q8, u32 j0, u32 j1, u32 e0, u32 e1)
{
    for (u32 j = j0; j < j1; j++)
        for (u32 e = e0; e < e1; e++)
            o[e] = fmaf(w[j], value_at(v + j * row_bytes, q8, e), o[e]);
}

/* f16: dimensions that fill no register, and positions that not all queries see, are done one by one. */
WORD void outputs_f16(float *const *o, const struct attend_query *a, u32 n, float (*s)[KV_CHUNK], u32 least, const u8 *v,
                      u32 d_head)
{
    const u64 row = 2 * (u64)d_head;
    u32 d = 0;
    for (; d + KV_PANEL <= d_head; d += KV_PANEL)
        many_sums(o, d, s[0], KV_CHUNK, n, v + 2 * d, row, false, COLS, least);
    for (; d + LANES <= d_head; d += LANES)
        many_sums(o, d, s[0], KV_CHUNK, n, v + 2 * d, row, false, 1, least);
    for (u32 r = 0; r < n; r++) {
        for (u32 e = d; e < d_head; e++)
            o[r][e] = 0.0f;
        sums_one_by_one(o[r], s[r], v, row, false, 0, least, d, d_head);
        sums_one_by_one(o[r], s[r], v, row, false, least, a[r].n_pos, 0, d_head);
    }
}

/* q8_0: for each block of 32 dimensions the weights are multiplied with its scales first. */
WORD void outputs_q8(float *const *o, const struct attend_query *a, u32 n, float (*s)[KV_CHUNK], u32 most, u32 least, const u8 *v,
                     u32 d_head)
{
    u32 n_blocks = d_head / ACT_BLOCK, row = n_blocks * 34;
    u32 end = (most + KV_PANEL - 1) / KV_PANEL * KV_PANEL;
    float w[QUERIES][KV_CHUNK];
    u16 d[KV_CHUNK];
    for (u32 j = most; j < end; j++)
        d[j] = 0;
    for (u32 b = 0; b < n_blocks; b++) {
        const u8 *at = v + 2 * n_blocks + b * ACT_BLOCK;
        for (u32 j = 0; j < most; j++)
            memcpy(d + j, v + (u64)j * row + 2 * b, 2);
        for (u32 j = 0; j < end; j += LANES) {
            vf dv = vf_halves(d + j);
            UNROLL for (u32 r = 0; r < n; r++)
                vf_store(w[r] + j, vf_mul(vf_load(s[r] + j), dv));
        }
        many_sums(o, b * ACT_BLOCK, w[0], KV_CHUNK, n, at, row, true, COLS, least);
        for (u32 r = 0; r < n; r++)
            sums_one_by_one(o[r] + b * ACT_BLOCK, w[r], at, row, true, least, a[r].n_pos, 0, ACT_BLOCK);
    }
}

/* ---- a chunk ---- */

/* n queries, constant. */
WORD void attend_some(struct attend_query *a, u32 n, const u8 *k, const u8 *v, u32 d_head, float scale, bool q8)
{
    float s[QUERIES][KV_CHUNK], q[QUERIES * GATHER];
    i8 x[QUERIES * LINE_Q];
    float *to_s[QUERIES], *to_o[QUERIES];
    u32 most = 0, least = KV_CHUNK, step = d_head;
    const float *qs = a[0].q;
    const i8 *xs = a[0].act.q;
    for (u32 r = 0; r < n; r++) {
        most = a[r].n_pos > most ? a[r].n_pos : most;
        least = min_u32(a[r].n_pos, least);
        to_s[r] = s[r];
        to_o[r] = a[r].o;
    }
    if (n > 1) { /* next to each other, so that one address serves */
        qs = q;
        xs = x;
        for (u32 r = 0; r < n; r++)
            if (q8)
                memcpy(x + r * LINE_Q, a[r].act.q, d_head);
            else
                memcpy(q + r * step, a[r].q, d_head * sizeof *q);
    }
    for (u32 j = 0; j < most; j += KV_PANEL) {
        if (q8)
            panel_scores(to_s, j, a, n, xs, k + (u64)(j / KV_PANEL) * (d_head / ACT_BLOCK * KV_Q8_BLOCK), d_head);
        else
            many_sums(to_s, j, qs, step, n, k + (u64)j * d_head * 2, KV_PANEL * 2, false, COLS, d_head);
    }
    for (u32 r = 0; r < n; r++) /* what stands behind a query's last panel is never used */
        weigh(s[r], a[r].n_pos, scale, &a[r].m, &a[r].l);
    if (q8)
        outputs_q8(to_o, a, n, s, most, least, v, d_head);
    else
        outputs_f16(to_o, a, n, s, least, v, d_head);
}

WORD void attend_many(struct attend_query *a, u32 n, const u8 *k, const u8 *v, u32 d_head, float scale, bool q8)
{
    u32 i = 0;
    if (d_head <= GATHER)
        for (; i + QUERIES <= n; i += QUERIES)
            attend_some(a + i, QUERIES, k, v, d_head, scale, q8);
    for (; d_head <= GATHER && i + 2 <= n; i += 2)
        attend_some(a + i, 2, k, v, d_head, scale, q8);
    for (; i < n; i++)
        attend_some(a + i, 1, k, v, d_head, scale, q8);
}

static void vec_attend_f16_many(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    attend_many(a, n, (const u8 *)k, (const u8 *)v, d_head, scale, false);
}

static void vec_attend_q8_many(struct attend_query *a, u32 n, const u8 *k, const u8 *v, u32 d_head, float scale)
{
    attend_many(a, n, k, v, d_head, scale, true);
}

static void vec_attend_f16(float *o, float *m, float *l, const float *q, const u16 *k, const u16 *v, u32 n_pos, u32 d_head,
                           float scale)
{
    struct attend_query a = {.q = q, .o = o, .n_pos = n_pos};
    vec_attend_f16_many(&a, 1, k, v, d_head, scale);
    *m = a.m;
    *l = a.l;
}

static void vec_attend_q8(float *o, float *m, float *l, const struct act *q, const u8 *k, const u8 *v, u32 n_pos, u32 d_head,
                          float scale)
{
    struct attend_query a = {.act = *q, .o = o, .n_pos = n_pos};
    vec_attend_q8_many(&a, 1, k, v, d_head, scale);
    *m = a.m;
    *l = a.l;
}

/* ---- chunks joined ---- */

static void vec_attend_join(float *o, float *m, float *l, const float *o2, float m2, float l2, u32 d_head)
{
    float top = m2 > *m ? m2 : *m;
    float a = ex_exp(*m - top), b = ex_exp(m2 - top);
    const vf by = vf_set(a), by2 = vf_set(b);
    u32 d = 0;
    for (; d + LANES <= d_head; d += LANES)
        vf_store(o + d, vf_fma(vf_load(o + d), by, vf_mul(vf_load(o2 + d), by2)));
    join_from(d, o, o2, a, b, d_head);
    *l = fmaf(*l, a, l2 * b);
    *m = top;
}

static void vec_attend_end(float *o, float l, u32 d_head)
{
    const vf by = vf_set(l);
    u32 d = 0;
    for (; d + LANES <= d_head; d += LANES)
        vf_store(o + d, vf_flush(vf_div(vf_load(o + d), by)));
    end_from(d, o, l, d_head);
}

#endif
