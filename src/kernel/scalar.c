/* The reference: every operation in plain C, in the order docs/numerics.md gives. What this file computes is right
 * by definition; every other body equals it bit for bit.
 *
 * The innermost loops run over lanes (output rows, positions, dimensions), never along a sum, so a compiler may
 * use any vector width without changing an order. What the bodies use for the ends of rows stands in plain_rows.h. */
#include "kernel/kernel.h"

#include "base/exact.h"
#include "kernel/pack.h"
#include "kernel/plain_rows.h"
#include "kernel/tables.h"

#include <string.h>

enum { TILE = 8 }; /* activation rows that share one unpacking of a block */

typedef i8 ints[ACT_BLOCK][PANEL]; /* integers of 32 elements of 16 rows, offset removed */

/* ---- activations (rule 1) ---- */

static void quantise_block(const float *x, i8 *q, float *d, i16 *sum)
{
    u32 top = 0;
    for (u32 i = 0; i < ACT_BLOCK; i++) {
        u32 u = EX_BITS(x[i]) & 0x7FFFFFFFu;
        top = u > top ? u : top;
    }
    float scale = EX_FLOAT(top) / 127.0f;
    bool finite = top < 0x7F800000u;
    scale = finite ? ex_round11(scale) : scale;
    if (!finite || scale < EX_TINY_SCALE) {
        memset(q, 0, ACT_BLOCK);
        *d = finite ? 0.0f : EX_FLOAT(0x7FC00000u);
        *sum = 0;
        return;
    }
    float r = 1.0f / scale;
    i32 total = 0;
    for (u32 i = 0; i < ACT_BLOCK; i++) {
        i32 v = (i32)((x[i] * r + EX_MAGIC) - EX_MAGIC);
        q[i] = (i8)v;
        total += v;
    }
    *d = scale;
    *sum = (i16)total;
}

static void quantise(const float *x, u32 n, i8 *q, float *d, i16 *sum)
{
    for (u32 b = 0; b < n / ACT_BLOCK; b++)
        quantise_block(x + b * ACT_BLOCK, q + b * ACT_BLOCK, d + b, sum + b);
}

/* ---- integers out of a panel (pack.h) ---- */

INLINE void nibbles(ints q, const u8 *w, i32 offset)
{
    for (u32 v = 0; v < 4; v++)
        for (u32 j = 0; j < 4; j++)
            for (u32 r = 0; r < PANEL; r++) {
                u8 byte = w[v * 64 + r * 4 + j];
                q[8 * v + j][r] = (i8)((byte & 15) - offset);
                q[8 * v + 4 + j][r] = (i8)((byte >> 4) - offset);
            }
}

INLINE void add_bit_plane(ints q, const u8 *w)
{
    for (u32 k = 0; k < 32; k++)
        for (u32 r = 0; r < PANEL; r++)
            q[k][r] = (i8)(q[k][r] + ((w[4 * r + k / 8] >> k % 8 & 1) << 4));
}

INLINE void add_two_bit_plane(ints q, const u8 *w)
{
    for (u32 k = 0; k < 32; k++)
        for (u32 r = 0; r < PANEL; r++)
            q[k][r] = (i8)(q[k][r] + ((w[k / 16 * 64 + r * 4 + k % 4] >> k % 16 / 4 * 2 & 3) << 4));
}

INLINE void bytes(ints q, const u8 *w)
{
    for (u32 k = 0; k < 32; k++)
        for (u32 r = 0; r < PANEL; r++)
            q[k][r] = (i8)w[k / 4 * 64 + r * 4 + k % 4];
}

/* ---- products with quantised weights (rules 2-4) ---- */

/* Exact: at most 32 * 128 * 127. */
INLINE void dot(i32 acc[PANEL], const ints q, const i8 *x, u32 k0, u32 k1)
{
    for (u32 r = 0; r < PANEL; r++)
        acc[r] = 0;
    for (u32 k = k0; k < k1; k++)
        for (u32 r = 0; r < PANEL; r++)
            acc[r] += q[k][r] * x[k];
}

INLINE void halves(float d[PANEL], const u8 *w)
{
    for (u32 r = 0; r < PANEL; r++)
        d[r] = half_at(w, r);
}

struct sums { /* of one activation row, a lane for each of 16 outputs */
    float p[PANEL], b[PANEL], total[PANEL];
};

INLINE void clear(float v[PANEL])
{
    for (u32 r = 0; r < PANEL; r++)
        v[r] = 0.0f;
}

/* Types with blocks of 32: one fma a block, segments of 8 blocks. bits: 4, 5, 8. */
INLINE void mat_32(float *const *y, const struct act *const *x, u32 m, const u8 *w, u32 n_in, u32 panel, u32 bits,
                   i32 offset, bool has_min)
{
    struct sums s[TILE];
    u32 n_blocks = n_in / ACT_BLOCK;
    for (u32 i = 0; i < m; i++) {
        clear(s[i].p);
        clear(s[i].b);
        clear(s[i].total);
    }
    for (u32 b = 0; b < n_blocks; b++) {
        float d[PANEL], mn[PANEL];
        ints q;
        halves(d, w);
        w += 2 * PANEL;
        if (has_min) {
            halves(mn, w);
            w += 2 * PANEL;
        }
        if (bits == 8)
            bytes(q, w);
        else
            nibbles(q, w, offset);
        if (bits == 5)
            add_bit_plane(q, w + 256);
        w += PANEL * ACT_BLOCK / 8 * bits;
        for (u32 i = 0; i < m; i++) {
            i32 acc[PANEL];
            dot(acc, q, x[i]->q + b * ACT_BLOCK, 0, ACT_BLOCK);
            float dx = x[i]->d[b], sum = dx * (float)x[i]->sum[b];
            for (u32 r = 0; r < PANEL; r++) {
                s[i].p[r] = fmaf((float)acc[r], d[r] * dx, s[i].p[r]);
                if (has_min)
                    s[i].b[r] = fmaf(mn[r], sum, s[i].b[r]);
            }
            if (b % (SEGMENT / ACT_BLOCK) == SEGMENT / ACT_BLOCK - 1 || b + 1 == n_blocks) {
                for (u32 r = 0; r < PANEL; r++)
                    s[i].total[r] += has_min ? s[i].p[r] + s[i].b[r] : s[i].p[r];
                clear(s[i].p);
                clear(s[i].b);
            }
        }
    }
    for (u32 i = 0; i < m; i++)
        memcpy(y[i] + panel * PANEL, s[i].total, sizeof s[i].total);
}

/* q4_k, q5_k: the segment is the super-block of 256; the sub-scale multiplies the integer. */
INLINE void mat_k(float *const *y, const struct act *const *x, u32 m, const u8 *w, u32 n_in, u32 panel, u32 bits)
{
    struct sums s[TILE];
    for (u32 i = 0; i < m; i++)
        clear(s[i].total);
    for (u32 sb = 0; sb < n_in / SEGMENT; sb++) {
        float d[PANEL], dmin[PANEL];
        halves(d, w);
        halves(dmin, w + 2 * PANEL);
        const u8 *sc = w + 4 * PANEL, *mn = sc + 8 * PANEL;
        w = mn + 8 * PANEL;
        for (u32 i = 0; i < m; i++) {
            clear(s[i].p);
            clear(s[i].b);
        }
        for (u32 j = 0; j < 8; j++) {
            ints q;
            nibbles(q, w, 0);
            if (bits == 5)
                add_bit_plane(q, w + 256);
            w += PANEL * ACT_BLOCK / 8 * bits;
            for (u32 i = 0; i < m; i++) {
                i32 acc[PANEL];
                u32 b = sb * 8 + j;
                dot(acc, q, x[i]->q + b * ACT_BLOCK, 0, ACT_BLOCK);
                float dx = x[i]->d[b], sum = dx * (float)x[i]->sum[b];
                for (u32 r = 0; r < PANEL; r++) {
                    s[i].p[r] = fmaf((float)(sc[j * PANEL + r] * acc[r]), dx, s[i].p[r]);
                    s[i].b[r] = fmaf((float)mn[j * PANEL + r], sum, s[i].b[r]);
                }
            }
        }
        for (u32 i = 0; i < m; i++)
            for (u32 r = 0; r < PANEL; r++)
                s[i].total[r] += fmaf(-dmin[r], s[i].b[r], fmaf(d[r], s[i].p[r], 0.0f));
    }
    for (u32 i = 0; i < m; i++)
        memcpy(y[i] + panel * PANEL, s[i].total, sizeof s[i].total);
}

/* q6_k: two halves of 16 with a signed scale each join as integers: at most 16,646,144 < 2^24. */
INLINE void mat_6k(float *const *y, const struct act *const *x, u32 m, const u8 *w, u32 n_in, u32 panel)
{
    struct sums s[TILE];
    for (u32 i = 0; i < m; i++)
        clear(s[i].total);
    for (u32 sb = 0; sb < n_in / SEGMENT; sb++) {
        float d[PANEL];
        halves(d, w);
        const i8 *sc = (const i8 *)w + 2 * PANEL;
        w += 2 * PANEL + 16 * PANEL;
        for (u32 i = 0; i < m; i++)
            clear(s[i].p);
        for (u32 j = 0; j < 8; j++, w += PANEL * ACT_BLOCK / 8 * 6) {
            ints q;
            nibbles(q, w, 32);
            add_two_bit_plane(q, w + 256);
            for (u32 i = 0; i < m; i++) {
                i32 lo[PANEL], hi[PANEL];
                u32 b = sb * 8 + j;
                dot(lo, q, x[i]->q + b * ACT_BLOCK, 0, 16);
                dot(hi, q, x[i]->q + b * ACT_BLOCK, 16, 32);
                for (u32 r = 0; r < PANEL; r++) {
                    i32 v = sc[2 * j * PANEL + r] * lo[r] + sc[(2 * j + 1) * PANEL + r] * hi[r];
                    s[i].p[r] = fmaf((float)v, x[i]->d[b], s[i].p[r]);
                }
            }
        }
        for (u32 i = 0; i < m; i++)
            for (u32 r = 0; r < PANEL; r++)
                s[i].total[r] += fmaf(d[r], s[i].p[r], 0.0f);
    }
    for (u32 i = 0; i < m; i++)
        memcpy(y[i] + panel * PANEL, s[i].total, sizeof s[i].total);
}

/* ---- products with float weights (rule 5) ---- */

INLINE float weight_at(const u8 *w, u64 i, enum dtype type)
{
    if (type == DT_F32) {
        float v;
        memcpy(&v, w + 4 * i, 4);
        return v;
    }
    u16 h;
    memcpy(&h, w + 2 * i, 2);
    return type == DT_F16 ? ex_half(h) : ex_bf16(h);
}

INLINE void mat_float(float *const *y, const struct act *const *x, u32 m, const u8 *w, u32 n_in, u32 panel,
                      enum dtype type)
{
    struct sums s[TILE];
    for (u32 i = 0; i < m; i++)
        clear(s[i].total);
    for (u32 k0 = 0; k0 < n_in; k0 += SEGMENT) {
        u32 k1 = min_u32(k0 + SEGMENT, n_in);
        for (u32 i = 0; i < m; i++)
            clear(s[i].p);
        for (u32 k = k0; k < k1; k++) {
            float v[PANEL];
            for (u32 r = 0; r < PANEL; r++)
                v[r] = weight_at(w, (u64)k * PANEL + r, type);
            for (u32 i = 0; i < m; i++) {
                float xk = x[i]->x[k];
                for (u32 r = 0; r < PANEL; r++)
                    s[i].p[r] = fmaf(v[r], xk, s[i].p[r]);
            }
        }
        for (u32 i = 0; i < m; i++)
            for (u32 r = 0; r < PANEL; r++)
                s[i].total[r] += s[i].p[r];
    }
    for (u32 i = 0; i < m; i++)
        memcpy(y[i] + panel * PANEL, s[i].total, sizeof s[i].total);
}

/* ---- the table's entries: panels outside, tiles of rows inside ---- */

INLINE void mat_panel(enum dtype type, float *const *y, const struct act *const *x, u32 m, const u8 *w, u32 n_in,
                      u32 panel)
{
    switch (type) {
    case DT_Q4_0:
        mat_32(y, x, m, w, n_in, panel, 4, 8, false);
        break;
    case DT_Q4_1:
        mat_32(y, x, m, w, n_in, panel, 4, 0, true);
        break;
    case DT_Q5_0:
        mat_32(y, x, m, w, n_in, panel, 5, 16, false);
        break;
    case DT_Q5_1:
        mat_32(y, x, m, w, n_in, panel, 5, 0, true);
        break;
    case DT_Q8_0:
        mat_32(y, x, m, w, n_in, panel, 8, 0, false);
        break;
    case DT_Q4_K:
        mat_k(y, x, m, w, n_in, panel, 4);
        break;
    case DT_Q5_K:
        mat_k(y, x, m, w, n_in, panel, 5);
        break;
    case DT_Q6_K:
        mat_6k(y, x, m, w, n_in, panel);
        break;
    default:
        mat_float(y, x, m, w, n_in, panel, type);
        break;
    }
}

INLINE void mat(enum dtype type, float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in,
                u32 p0, u32 p1)
{
    u64 panel_bytes = pack_panel_bytes(type, n_in);
    for (u32 p = p0; p < p1; p++)
        for (u32 r = 0; r < n_rows; r += TILE)
            mat_panel(type, y + r, x + r, min_u32(TILE, n_rows - r), w + p * panel_bytes, n_in, p);
}

#define MAT(name, type)                                                                            \
    static void name(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w,         \
                     u32 n_in, u32 p0, u32 p1)                                                     \
    {                                                                                              \
        mat(type, y, x, n_rows, w, n_in, p0, p1);                                                  \
    }
MAT(mat_q4_0, DT_Q4_0)
MAT(mat_q4_1, DT_Q4_1)
MAT(mat_q5_0, DT_Q5_0)
MAT(mat_q5_1, DT_Q5_1)
MAT(mat_q8_0, DT_Q8_0)
MAT(mat_q4_k, DT_Q4_K)
MAT(mat_q5_k, DT_Q5_K)
MAT(mat_q6_k, DT_Q6_K)
MAT(mat_f32, DT_F32)
MAT(mat_f16, DT_F16)
MAT(mat_bf16, DT_BF16)

/* ---- rows ---- */

static void rmsnorm(float *y, const float *x, const float *w, u32 n, float eps)
{
    float s[32] = {0};
    u32 i = 0;
    for (; i + 32 <= n; i += 32)
        for (u32 j = 0; j < 32; j++) {
            float v = ex_flush(x[i + j]);
            s[j] = fmaf(v, v, s[j]);
        }
    for (u32 j = 0; i + j < n; j++) {
        float v = ex_flush(x[i + j]);
        s[j] = fmaf(v, v, s[j]);
    }
    float r = 1.0f / sqrtf(tree(s) / (float)n + eps);
    for (i = 0; i < n; i++)
        y[i] = ex_flush(x[i] * r * w[i]);
}

static void rope(float *x, const float *cs, u32 d_head, u32 d_rope, bool neox)
{
    rope_from(0, x, cs, d_head, d_rope, neox);
}

static void swiglu(float *y, const float *g, const float *u, u32 n)
{
    swiglu_some(y, g, u, n);
}

static void add(float *y, const float *x, u32 n)
{
    add_some(y, x, n);
}

static void combine(float *x, const float *const *y, const float *w, u32 n_y, u32 n)
{
    combine_from(0, x, y, w, n_y, n);
}

static void halves_of(u16 *h, const float *x, u32 n)
{
    halves_some(h, x, n);
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

static void attend_f16(float *o, float *m, float *l, const float *q, const u16 *k, const u16 *v, u32 n_pos, u32 d_head,
                       float scale)
{
    float s[KV_CHUNK] = {0};
    for (u32 j0 = 0; j0 < n_pos; j0 += KV_PANEL) { /* a panel holds 32 positions even where fewer are used */
        float acc[KV_PANEL] = {0};
        for (u32 d = 0; d < d_head; d++, k += KV_PANEL)
            for (u32 j = 0; j < KV_PANEL; j++)
                acc[j] = fmaf(q[d], ex_half(k[j]), acc[j]);
        for (u32 j = 0; j < KV_PANEL; j++)
            s[j0 + j] = acc[j] * scale;
    }
    chunk_weights(s, n_pos, m, l);
    for (u32 d = 0; d < d_head; d++)
        o[d] = 0.0f;
    for (u32 j = 0; j < n_pos; j++, v += d_head)
        for (u32 d = 0; d < d_head; d++)
            o[d] = fmaf(s[j], ex_half(v[d]), o[d]);
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

static void attend_f16_many(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    for (u32 i = 0; i < n; i++)
        attend_f16(a[i].o, &a[i].m, &a[i].l, a[i].q, k, v, a[i].n_pos, d_head, scale);
}

static void attend_q8_many(struct attend_query *a, u32 n, const u8 *k, const u8 *v, u32 d_head, float scale)
{
    for (u32 i = 0; i < n; i++)
        attend_q8(a[i].o, &a[i].m, &a[i].l, &a[i].act, k, v, a[i].n_pos, d_head, scale);
}

static void attend_join(float *o, float *m, float *l, const float *o2, float m2, float l2, u32 d_head)
{
    float top = m2 > *m ? m2 : *m;
    float a = ex_exp(*m - top), b = ex_exp(m2 - top);
    *l = fmaf(*l, a, l2 * b);
    *m = top;
    join_from(0, o, o2, a, b, d_head);
}

static void attend_end(float *o, float l, u32 d_head)
{
    end_from(0, o, l, d_head);
}

const struct kernels kernels_scalar = {
    .isa = "scalar",
    .quantise = quantise,
    .mat = {[DT_Q4_0] = mat_q4_0, [DT_Q4_1] = mat_q4_1, [DT_Q5_0] = mat_q5_0, [DT_Q5_1] = mat_q5_1,
            [DT_Q8_0] = mat_q8_0, [DT_Q4_K] = mat_q4_k, [DT_Q5_K] = mat_q5_k, [DT_Q6_K] = mat_q6_k,
            [DT_F32] = mat_f32, [DT_F16] = mat_f16, [DT_BF16] = mat_bf16},
    .rmsnorm = rmsnorm,
    .rope = rope,
    .swiglu = swiglu,
    .add = add,
    .combine = combine,
    .halves = halves_of,
    .attend_f16 = attend_f16,
    .attend_f16_many = attend_f16_many,
    .attend_q8 = attend_q8,
    .attend_q8_many = attend_q8_many,
    .attend_join = attend_join,
    .attend_end = attend_end,
};
