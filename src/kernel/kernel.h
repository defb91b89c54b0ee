/* The arithmetic on CPUs: what each operation computes, in which order, and the table of bodies that compute it.
 *
 * scalar.c is the reference; every other body equals it bit for bit (../docs/numerics.md gives the rules, named
 * here by number). All floats are IEEE fp32, rounding to nearest even, no contraction; fma means fmaf.
 * "flush(x)" is +0 where |x| < 2^-40 and x elsewhere, NaN included (rule 12).
 *
 * Panels. A weight matrix (n_out, n_in) is repacked at load into panels of PANEL = 16 output rows, so that vector
 * lanes are output rows and one sum never leaves its lane. The last panel is filled with zero rows. Inside a
 * panel the blocks follow in index order; pack.h gives the bytes. */
#ifndef PS_KERNEL_H
#define PS_KERNEL_H

#include "base/base.h"
#include "base/dtype.h"

enum {
    PANEL = 16,     /* output rows in a panel */
    ACT_BLOCK = 32, /* activations that share a scale */
    SEGMENT = 256,  /* elements summed in one chain of fma (rule 3) */
    KV_CHUNK = 256, /* positions attended in one piece (rule 7) */
    KV_PANEL = 32,  /* positions in a panel of stored keys */
    KV_Q8_BLOCK = KV_PANEL * 34 /* bytes of 32 dimensions of a panel of q8_0 keys */
};

/* One row of activations, quantised by rule 1. q: (n) ; d, sum: (n / 32). sum[b] = the integer sum of q over the
 * block: exact. Unquantised products read x instead. */
struct act {
    const float *x;
    const i8 *q;
    const float *d;
    const i16 *sum; /* |sum| <= 32 * 127 = 4064 */
};

/* One query head of one row over one chunk of positions: what attend_f16 and attend_q8 take and give. */
struct attend_query {
    const float *q; /* (d_head): f16 store */
    struct act act; /* q8_0 store: q by rule 1 */
    float *o;       /* (d_head) */
    float m, l;
    u32 n_pos;      /* 1..256 */
};

struct kernels {
    const char *isa;

    /* Rule 1: x[0..n) -> q, d, sum. n is a multiple of 32. */
    void (*quantise)(const float *x, u32 n, i8 *q, float *d, i16 *sum);

    /* Products of M = n_rows activation rows with panels [p0, p1) of one packed matrix; rule 2-5. For r < n_rows:
     * y[r][16*p + lane] = sum over the contraction. A row of y has 16 * n_panels floats of room.
     * One entry for each dtype, NULL where the type does not exist. w: the matrix's first panel. */
    void (*mat[DT_LIMIT])(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0,
                          u32 p1);

    /* Rule 6: y = (x * r) * w, r = 1 / sqrt(mean + eps), mean = (sum of flush(x)^2) / n. y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, u32 n, float eps);

    /* x[i] = flush of the rotation of its pairs; cs: (d_rope/2) pairs (cos, sin). neox pairs (i, i + d_rope/2), else
     * (2i, 2i+1). (a, b) -> (fma(a, cos, -(b * sin)), fma(b, cos, a * sin)). Written with fma because gcc 12 makes one out of
     * neighbouring a*c - b*s and b*c + a*s (vfmaddsub) even when contraction is off. Elements past d_rope are flushed
     * only. */
    void (*rope)(float *x, const float *cs, u32 d_head, u32 d_rope, bool neox);

    /* y[i] = flush(g[i] * sigmoid(g[i]) * u[i]): e = exp(-|g|), s = g >= 0 ? 1/(1+e) : e/(1+e), (g*s)*u. y may be g. */
    void (*swiglu)(float *y, const float *g, const float *u, u32 n);

    /* y[i] = y[i] + x[i]. */
    void (*add)(float *y, const float *x, u32 n);

    /* Experts' outputs joined (rule 8): x[i] = x[i] + acc, acc = fma(w[r], flush(y[r][i]), acc) for r = 0 .. n_y - 1 from 0. */
    void (*combine)(float *x, const float *const *y, const float *w, u32 n_y, u32 n);

    /* h[i] = flush(x[i]) as a half: nearest even, half denormals kept, saturating at 65,504. Of a NaN only that it is one. */
    void (*halves)(u16 *h, const float *x, u32 n);

    /* Attention of one query head over one chunk of positions [p0, p1), p1 - p0 <= 256, p0 a multiple of 256
     * (rule 7, f16 store). q: (d_head), k: this head's keys from position p0 on, panels of (d_head, 32) halves;
     * v: values from position p0 on, (positions, d_head) halves. Gives the chunk's exact maximum *m, the sum *l and
     * the unnormalised o: (d_head). */
    void (*attend_f16)(float *o, float *m, float *l, const float *q, const u16 *k, const u16 *v, u32 n_pos,
                       u32 d_head, float scale);
    /* The same for n queries over one key/value head's chunk: heads that share it, rows of one stream. Keys are readable up to
     * the panel of the last position that any of them sees. */
    void (*attend_f16_many)(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale);
    /* attend_f16 over q8_0 keys and values. q: quantised by rule 1. Scores by rules 2-3 (a segment is 256 dimensions); values by
     * o = fma(w * dv, (float)v, o). d_head is a multiple of 32.
     * k: panels of 32 positions, each for every block of 32 dimensions: d[32] halves, then 8 x (32 positions x 4 int8),
     * group g = dimensions 4g..4g+3 (KV_Q8_BLOCK bytes). v: a row a position: d[d_head / 32] halves, then d_head int8. */
    void (*attend_q8)(float *o, float *m, float *l, const struct act *q, const u8 *k, const u8 *v, u32 n_pos,
                      u32 d_head, float scale);
    /* The same for n queries, as attend_f16_many does. */
    void (*attend_q8_many)(struct attend_query *a, u32 n, const u8 *k, const u8 *v, u32 d_head, float scale);

    /* Joins chunk (m2, l2, o2) to (m, l, o) by rule 7; the first chunk is taken as it is. */
    void (*attend_join)(float *o, float *m, float *l, const float *o2, float m2, float l2, u32 d_head);
    /* After the last chunk: o[d] = flush(o[d] / l). */
    void (*attend_end)(float *o, float l, u32 d_head);
};

/* Top-k experts (rule 8). logits: (n), not NaN-free by promise: NaN sorts last. ids, w: (n_used) in rank order: by
 * (logit down, id up). Weights: e_i = exp(logit_i - max); used_norm: e_r / (sum of the chosen in rank order), else
 * e_r / (sum of all by rule 6); then * scale; then flush. */
void route_topk(const float *logits, u32 n, u32 n_used, bool used_norm, float scale, u16 *ids, float *w);

/* One embedding row out of a packed matrix, to y: (n_in). Integers first, then the scale; a minimum by one
 * subtraction or addition (rule 4). */
void unpack_row(enum dtype type, const u8 *w, u32 n_in, u32 row, float *y);

/* The table for a name of the command line's --isa ("scalar", ...), or the best this CPU runs for NULL; NULL when the CPU
 * lacks it or the name is unknown. Const tables: any thread. */
const struct kernels *kernels_choose(const char *isa);

/* Names of the instruction sets this CPU runs, best last; the count is returned. */
u32 kernels_list(const char **names, u32 max);

#endif
