/* Products and rows in whatever order is fastest on a CPU with AVX-512 VNNI: no segments, one chain of sums or
 * several, scales multiplied together before they are needed, libm's vector exp.
 *
 * Products with panels: 16 outputs in the lanes as in the product. A tile of up to 16 rows keeps in registers
 *     2 x 8 of weights (2 panels)   4 x 2 dots under way (4 rows)   a broadcast   2 scales
 * and its sums in the first cache. One row takes 4 panels side by side: 4 streams from memory.
 * Products with rows: 16 partial sums along the contraction, added up at the end, as most engines have it. */
#include "fast.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernel/pack.h"

/* Built twice: NAME is fast_ or, with FIXED, fixed_: the products with panels in the order of rules 3 and 4, bit for
 * bit. */
#ifdef FIXED_ORDER
#define FIXED 1
#define NAME(type) fixed_##type
#else
#define FIXED 0
#define NAME(type) fast_##type
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

enum {
    TILE = 16,
    GROUP = 4,  /* rows whose dots advance together */
    PANELS = 4, /* at most side by side */
    BLOCKS = FAST_MAX_IN / ACT_BLOCK,
    AHEAD = 2048
};

/* ---- panels ---- */

/* A tile's activations, rows a little more than a power of two apart. */
enum { LINE = BLOCKS + 16, LINE_Q = FAST_MAX_IN + 64 };
struct tile {
    i8 q[TILE * LINE_Q];
    i32 start[TILE * LINE]; /* -8 * sum(q) */
    float d[TILE * LINE], dsum[TILE * LINE];
} __attribute__((aligned(64)));

INLINE void fill(struct tile *t, const struct act *const *x, u32 m, u32 n_blocks, bool k)
{
    for (u32 i = 0; i < m; i++) {
        memcpy(t->q + i * LINE_Q, x[i]->q, n_blocks * ACT_BLOCK);
        memcpy(t->d + i * LINE, x[i]->d, n_blocks * sizeof *t->d);
        for (u32 b = 0; k && b < n_blocks; b++)
            t->dsum[i * LINE + b] = x[i]->d[b] * (float)x[i]->sum[b];
        for (u32 b = 0; !k && b < n_blocks; b++)
            t->start[i * LINE + b] = -8 * x[i]->sum[b];
    }
}

INLINE void split(__m512i w[8], const u8 *p)
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (u32 v = 0; v < 4; v++) {
        __m512i both = _mm512_loadu_si512(p + 64 * v);
        w[2 * v] = _mm512_and_si512(both, low);
        w[2 * v + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
}

INLINE __m512 halves(const u8 *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE __m512 bytes(const u8 *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}

/* Loaded once: gcc would fold it into each use, and a dot that broadcasts from memory itself runs at half the rate
 * here. */
INLINE __m512i four(const i8 *q)
{
    i32 bits;
    memcpy(&bits, q, 4);
    __m512i v = _mm512_set1_epi32(bits);
    __asm__("" : "+v"(v));
    return v;
}

/* A block's dots of m rows with n panels join their sums p, in which `old` is kept: scales d. */
INLINE void join(__m512 (*p)[TILE], const __m512i (*w)[8], const __m512 *d, const struct tile *t, u32 m, u32 n, u32 b,
                 __mmask16 old, bool k)
{
    UNROLL for (u32 i = 0; i < m; i += GROUP) {
        const u32 rows = m - i < GROUP ? m - i : GROUP;
        __m512i acc[GROUP][PANELS];
        UNROLL for (u32 r = 0; r < rows; r++)
            UNROLL for (u32 s = 0; s < n; s++)
                acc[r][s] = k ? _mm512_setzero_si512() : _mm512_set1_epi32(t->start[(i + r) * LINE + b]);
        UNROLL for (u32 g = 0; g < 8; g++)
            UNROLL for (u32 r = 0; r < rows; r++) {
                __m512i x = four(t->q + (i + r) * LINE_Q + b * ACT_BLOCK + 4 * g);
                UNROLL for (u32 s = 0; s < n; s++)
                    acc[r][s] = _mm512_dpbusd_epi32(acc[r][s], w[s][g], x);
            }
        UNROLL for (u32 r = 0; r < rows; r++) {
            __m512 dx = _mm512_set1_ps(t->d[(i + r) * LINE + b]);
            UNROLL for (u32 s = 0; s < n; s++) {
                __m512 v = _mm512_cvtepi32_ps(acc[r][s]), *to = &p[s][i + r];
                if (FIXED)
                    *to = _mm512_maskz_mov_ps(old, *to);
                if (FIXED && k)
                    *to = _mm512_fmadd_ps(_mm512_mul_ps(v, d[s]), dx, *to);
                else
                    *to = _mm512_fmadd_ps(v, _mm512_mul_ps(d[s], dx), *to);
            }
        }
    }
}

/* m rows against n panels side by side, `together` of them sharing a broadcast: 8 blocks from b on. d: q4_k, of each
 * panel. */
INLINE void segment(__m512 (*p)[TILE], const struct tile *t, u32 m, const u8 *w, u64 apart, u32 n, u32 together,
                    const __m512 *d, u32 b, bool k)
{
    __m512 ds[PANELS];
    __m512i q[PANELS][8];
    for (u32 j = 0; j < 8; j++) {
        __mmask16 old = FIXED && j == 0 ? 0 : 0xFFFF; /* sums begin at 0 in each segment */
        if (m > GROUP) /* the sums of a tall tile stay in memory */
            __asm__ volatile("" : : "r"(p) : "memory");
        UNROLL for (u32 s0 = 0; s0 < n; s0 += together) {
            UNROLL for (u32 s = s0; s < s0 + together; s++) {
                const u8 *at = w + s * apart, *block = at + (k ? 320 + 256 * j : 288 * j + 32);
                for (u32 i = 0; i < 5; i++)
                    _mm_prefetch((const char *)block + AHEAD + 64 * i, _MM_HINT_T0);
                split(q[s], block);
                ds[s] = k ? bytes(at + 64 + 16 * j) : halves(block - 32);
                if (!FIXED && k)
                    ds[s] = _mm512_mul_ps(ds[s], d[s]);
            }
            join(p + s0, q + s0, ds + s0, t, m, together, b + j, old, k);
        }
    }
}

/* What comes after 8 blocks: the minimums of q4_k, eight in one go, and in the product's order the segment's sum. */
INLINE void end(__m512 (*total)[TILE], __m512 (*p)[TILE], const struct tile *t, u32 m, const u8 *w, u64 apart, u32 n,
                const __m512 *d, u32 b, bool k)
{
    UNROLL for (u32 s = 0; s < n; s++) {
        __m512 mn[8], dmin = k ? halves(w + s * apart + 32) : _mm512_setzero_ps();
        UNROLL for (u32 j = 0; k && j < 8; j++) {
            mn[j] = bytes(w + s * apart + 192 + 16 * j);
            mn[j] = FIXED ? mn[j] : _mm512_mul_ps(mn[j], dmin);
        }
        for (u32 i = 0; i < m; i++) {
            __m512 mins = _mm512_setzero_ps(), v = p[s][i];
            UNROLL for (u32 j = 0; k && j < 8; j++)
                mins = _mm512_fmadd_ps(mn[j], _mm512_set1_ps(t->dsum[i * LINE + b + j]), mins);
            if (k)
                v = FIXED ? _mm512_fnmadd_ps(dmin, mins, _mm512_mul_ps(d[s], v)) : _mm512_sub_ps(v, mins);
            if (FIXED)
                total[s][i] = _mm512_add_ps(total[s][i], v);
            else
                p[s][i] = v;
        }
    }
}

/* Tall tiles: a function of its own, or gcc 12 carries sums in registers that it lacks, and copies and spills. */
static __attribute__((noinline)) void end_tall(__m512 (*total)[TILE], __m512 (*p)[TILE], const struct tile *t, u32 m,
                                               const u8 *w, u64 apart, const __m512 *d, u32 b, bool k)
{
    if (k)
        end(total, p, t, m, w, apart, 2, d, b, true);
    else
        end(total, p, t, m, w, apart, 2, d, b, false);
}

INLINE void panels(float *const *y, const struct tile *t, u32 m, const u8 *w, u64 apart, u32 n, u32 together,
                   u32 n_blocks, u32 out, bool k)
{
    __m512 total[PANELS][TILE], p[PANELS][TILE], d[PANELS];
    UNROLL for (u32 s = 0; s < n; s++)
        UNROLL for (u32 i = 0; i < m; i++)
            total[s][i] = p[s][i] = _mm512_setzero_ps();
    for (u32 b = 0; b < n_blocks; b += 8, w += k ? 2368 : 8 * 288) { /* pack.h */
        UNROLL for (u32 s = 0; k && s < n; s++)
            d[s] = halves(w + s * apart);
        segment(p, t, m, w, apart, n, together, d, b, k);
        if (m == 1)
            end(total, p, t, m, w, apart, n, d, b, k);
        else if (FIXED || k)
            end_tall(total, p, t, m, w, apart, d, b, k);
    }
    UNROLL for (u32 s = 0; s < n; s++)
        UNROLL for (u32 i = 0; i < m; i++)
            _mm512_storeu_ps(y[i] + out + s * PANEL, FIXED ? total[s][i] : p[s][i]);
}

INLINE void product(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1,
                    bool k)
{
    struct tile t;
    u64 apart = pack_panel_bytes(k ? DT_Q4_K : DT_Q4_0, n_in);
    u32 n_blocks = n_in / ACT_BLOCK, m = n_rows < TILE ? n_rows : TILE;
    for (u32 r = 0; r < n_rows; r += m) {
        fill(&t, x + r, m, n_blocks, k);
        if (m == 1)
            for (u32 p = p0; p < p1; p += 4)
                panels(y + r, &t, 1, w + p * apart, apart, 4, 1, n_blocks, p * PANEL, k);
        else if (m == 8)
            for (u32 p = p0; p < p1; p += 2)
                panels(y + r, &t, 8, w + p * apart, apart, 2, 2, n_blocks, p * PANEL, k);
        else
            for (u32 p = p0; p < p1; p += 2)
                panels(y + r, &t, 16, w + p * apart, apart, 2, 2, n_blocks, p * PANEL, k);
    }
}

void NAME(q4_0)(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    product(y, x, n_rows, w, n_in, p0, p1, false);
}

void NAME(q4_k)(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    product(y, x, n_rows, w, n_in, p0, p1, true);
}

#if !FIXED
/* ---- the file's rows, lanes along the contraction ---- */

/* Activations of 8 rows as a register of weights meets them: q4_0 two blocks as they are; q4_k sub-blocks 0 2, 1 3,
 * since a byte holds two of them. */
struct line {
    i8 q[FAST_MAX_IN];
    float d[BLOCKS], dsum[BLOCKS]; /* d * sum(q) */
} __attribute__((aligned(64)));

INLINE void fill_lines(struct line *t, const struct act *const *x, u32 m, u32 n_blocks, bool k)
{
    for (u32 i = 0; i < m; i++)
        for (u32 b = 0; b < n_blocks; b++) {
            u32 to = !k ? b : (b & ~3u) | (b & 1) << 1 | (b >> 1 & 1);
            memcpy(t[i].q + to * ACT_BLOCK, x[i]->q + b * ACT_BLOCK, ACT_BLOCK);
            t[i].d[b] = x[i]->d[b];
            t[i].dsum[b] = x[i]->d[b] * (float)x[i]->sum[b];
        }
}

/* scale[a] in the lower 8 lanes, scale[b] in the upper. */
INLINE __m512 two(__m512 scale, u32 a, u32 b)
{
    __m512i at = _mm512_inserti64x4(_mm512_set1_epi32((i32)a), _mm256_set1_epi32((i32)b), 1);
    return _mm512_permutexvar_ps(at, scale);
}

/* One row of weights, m rows of activations; 16 blocks at a time, so that their scales are one register. */
INLINE void row_q4_0(float *const *y, const struct line *t, u32 m, const u8 *w, u32 n_blocks, u32 out)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m512 total[8], minus[8];
    UNROLL for (u32 i = 0; i < m; i++)
        total[i] = minus[i] = _mm512_setzero_ps();
    for (u32 b = 0; b < n_blocks; b += 16, w += 16 * 18) {
        u16 h[16];
        for (u32 j = 0; j < 16 * 18; j += 64)
            _mm_prefetch((const char *)w + AHEAD + j, _MM_HINT_T0);
        UNROLL for (u32 j = 0; j < 16; j++)
            memcpy(h + j, w + 18 * j, 2);
        __m512 d = halves((const u8 *)h), s[8];
        UNROLL for (u32 i = 0; i < m; i++) {
            s[i] = _mm512_mul_ps(d, _mm512_loadu_ps(t[i].d + b));
            minus[i] = _mm512_fmadd_ps(d, _mm512_loadu_ps(t[i].dsum + b), minus[i]);
        }
        UNROLL for (u32 j = 0; j < 16; j += 2) {
            __m128i a = _mm_loadu_si128((const void *)(w + 18 * j + 2));
            __m128i c = _mm_loadu_si128((const void *)(w + 18 * j + 20));
            __m256i u = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(a, 4), a), low);
            __m256i v = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(c, 4), c), low);
            __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(u), v, 1);
            UNROLL for (u32 i = 0; i < m; i++) {
                const i8 *at = t[i].q + (b + j) * ACT_BLOCK;
                __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, _mm512_loadu_si512(at));
                total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), two(s[i], j, j + 1), total[i]);
            }
        }
    }
    UNROLL for (u32 i = 0; i < m; i++)
        y[i][out] = _mm512_reduce_add_ps(_mm512_fnmadd_ps(_mm512_set1_ps(8), minus[i], total[i]));
}

/* Six-bit sub-scales to 8 bytes, sub-minimums to 8 more. */
INLINE void k_scales(u8 to[16], const u8 *p)
{
    u32 a, b, c;
    memcpy(&a, p, 4);
    memcpy(&b, p + 4, 4);
    memcpy(&c, p + 8, 4);
    u32 s[4] = {a & 0x3F3F3F3F, (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), b & 0x3F3F3F3F,
                (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030)};
    memcpy(to, s, 16);
}

INLINE void row_q4_k(float *const *y, const struct line *t, u32 m, const u8 *w, u32 n_blocks, u32 out)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512 total[8];
    __m256 minus[8];
    UNROLL for (u32 i = 0; i < m; i++) {
        total[i] = _mm512_setzero_ps();
        minus[i] = _mm256_setzero_ps();
    }
    for (u32 b = 0; b < n_blocks; b += 8, w += 144) {
        u8 sub[16];
        u16 h[2];
        for (u32 j = 0; j < 144; j += 64)
            _mm_prefetch((const char *)w + AHEAD + j, _MM_HINT_T0);
        memcpy(h, w, 4);
        k_scales(sub, w + 4);
        __m512 scales = bytes(sub);
        __m256 d = _mm256_mul_ps(_mm512_castps512_ps256(scales), _mm256_set1_ps(_cvtsh_ss(h[0])));
        __m256 dm = _mm256_mul_ps(_mm512_extractf32x8_ps(scales, 1), _mm256_set1_ps(_cvtsh_ss(h[1])));
        __m512 s[8];
        UNROLL for (u32 i = 0; i < m; i++) {
            s[i] = _mm512_castps256_ps512(_mm256_mul_ps(d, _mm256_loadu_ps(t[i].d + b)));
            minus[i] = _mm256_fmadd_ps(dm, _mm256_loadu_ps(t[i].dsum + b), minus[i]);
        }
        UNROLL for (u32 j = 0; j < 8; j += 4) {
            __m512i both = _mm512_loadu_si512(w + 16 + 16 * j);
            __m512i q[2] = {_mm512_and_si512(both, low), _mm512_and_si512(_mm512_srli_epi16(both, 4), low)};
            UNROLL for (u32 i = 0; i < m; i++)
                UNROLL for (u32 g = 0; g < 2; g++) {
                    const i8 *at = t[i].q + (b + j + 2 * g) * ACT_BLOCK;
                    __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q[g], _mm512_loadu_si512(at));
                    total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), two(s[i], j + g, j + g + 2), total[i]);
                }
        }
    }
    UNROLL for (u32 i = 0; i < m; i++) {
        __m256 v = _mm256_add_ps(_mm512_castps512_ps256(total[i]), _mm512_extractf32x8_ps(total[i], 1));
        y[i][out] = _mm512_reduce_add_ps(_mm512_zextps256_ps512(_mm256_sub_ps(v, minus[i])));
    }
}

INLINE void rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1, bool k)
{
    struct line t[8];
    u32 n_blocks = n_in / ACT_BLOCK, m = n_rows < 8 ? 1 : 8;
    u64 row = k ? n_in / 256 * 144 : n_in / 32 * 18;
    for (u32 r = 0; r < n_rows; r += m) {
        fill_lines(t, x + r, m, n_blocks, k);
        for (u32 o = p0 * PANEL; o < p1 * PANEL; o++)
            if (m == 1)
                (k ? row_q4_k : row_q4_0)(y + r, t, 1, w + o * row, n_blocks, o);
            else
                (k ? row_q4_k : row_q4_0)(y + r, t, 8, w + o * row, n_blocks, o);
    }
}

void fast_q4_0_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    rows(y, x, n_rows, w, n_in, p0, p1, false);
}

void fast_q4_k_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    rows(y, x, n_rows, w, n_in, p0, p1, true);
}

/* ---- floats, and rows: plain C ---- */

typedef float v16 __attribute__((vector_size(64)));

/* m rows of n panels, `chains` sums of each output. */
INLINE void panel_f32(float *const *y, const struct act *const *x, u32 m, u32 n, u32 chains, const float *w, u32 n_in,
                      u32 out)
{
    v16 s[4][4][4] = {{{{0}}}};
    for (u32 k = 0; k < n_in; k += chains)
        UNROLL for (u32 c = 0; c < chains; c++)
            UNROLL for (u32 i = 0; i < m; i++)
                UNROLL for (u32 p = 0; p < n; p++)
                    s[i][p][c] += *(const v16 *)(const void *)(w + ((u64)p * n_in + k + c) * PANEL) * x[i]->x[k + c];
    UNROLL for (u32 i = 0; i < m; i++)
        UNROLL for (u32 p = 0; p < n; p++) {
            v16 sum = s[i][p][0];
            UNROLL for (u32 c = 1; c < chains; c++)
                sum += s[i][p][c];
            memcpy(y[i] + out + p * PANEL, &sum, sizeof sum);
        }
}

void fast_f32(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    for (u32 p = p0; p < p1; p += 2) {
        const float *panel = (const float *)(const void *)w + (u64)p * n_in * PANEL;
        if (n_rows == 1)
            panel_f32(y, x, 1, 2, 4, panel, n_in, p * PANEL);
        else
            for (u32 r = 0; r < n_rows; r += 4)
                panel_f32(y + r, x + r, 4, 2, 2, panel, n_in, p * PANEL);
    }
}

INLINE void outs_f32(float *const *y, const struct act *const *x, u32 m, u32 n, const float *w, u32 n_in, u32 out)
{
    float s[4][4] = {{0}};
    for (u32 k = 0; k < n_in; k++)
        UNROLL for (u32 i = 0; i < m; i++)
            UNROLL for (u32 o = 0; o < n; o++)
                s[i][o] += w[(u64)(out + o) * n_in + k] * x[i]->x[k];
    for (u32 i = 0; i < m; i++)
        for (u32 o = 0; o < n; o++)
            y[i][out + o] = s[i][o];
}

void fast_f32_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1)
{
    const float *f = (const float *)(const void *)w;
    for (u32 o = p0 * PANEL; o < p1 * PANEL; o += 4)
        if (n_rows == 1)
            outs_f32(y, x, 1, 4, f, n_in, o);
        else
            for (u32 r = 0; r < n_rows; r += 4)
                outs_f32(y + r, x + r, 4, 4, f, n_in, o);
}

void fast_rmsnorm(float *restrict y, const float *restrict x, const float *restrict w, u32 n, float eps)
{
    float s = 0;
    for (u32 i = 0; i < n; i++)
        s += x[i] * x[i];
    s = 1 / sqrtf(s / (float)n + eps);
    for (u32 i = 0; i < n; i++)
        y[i] = x[i] * s * w[i];
}

void fast_route(const float *logits, u32 n, u32 n_used, bool used_norm, float scale, u16 *ids, float *w)
{
    float all = 0, top;
    u32 have = 0;
    for (u32 i = 0; i < n; i++) {
        if (have == n_used && logits[i] <= logits[ids[have - 1]])
            continue;
        u32 at = have < n_used ? have++ : have - 1;
        for (; at && logits[i] > logits[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = (u16)i;
    }
    top = logits[ids[0]];
    if (!used_norm)
        for (u32 i = 0; i < n; i++)
            all += expf(logits[i] - top);
    for (u32 r = 0; r < n_used; r++)
        w[r] = expf(logits[ids[r]] - top);
    if (used_norm)
        for (u32 r = 0; r < n_used; r++)
            all += w[r];
    for (u32 r = 0; r < n_used; r++)
        w[r] *= scale / all;
}

/* ---- attention over a chunk ---- */

/* n queries' sums, a-rows KV_CHUNK apart, over terms [0, terms) for 32 columns, each in `chains` parts. */
INLINE void sums(float *const *c, u32 at, const float *a, u32 n, u32 chains, const u16 *b, u32 b_step, u32 terms)
{
    __m512 s[8][2][4];
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 h = 0; h < chains; h++)
            s[r][0][h] = s[r][1][h] = _mm512_setzero_ps();
    for (u32 t = 0; t < terms; t += chains, b += chains * b_step)
        UNROLL for (u32 h = 0; h < chains; h++) {
            __m512 v = halves((const u8 *)(b + h * b_step)), u = halves((const u8 *)(b + h * b_step + 16));
            UNROLL for (u32 r = 0; r < n; r++) {
                __m512 x = _mm512_set1_ps(a[r * KV_CHUNK + t + h]);
                s[r][0][h] = _mm512_fmadd_ps(x, v, s[r][0][h]);
                s[r][1][h] = _mm512_fmadd_ps(x, u, s[r][1][h]);
            }
        }
    UNROLL for (u32 r = 0; r < n; r++) {
        UNROLL for (u32 h = 1; h < chains; h++) {
            s[r][0][0] = _mm512_add_ps(s[r][0][0], s[r][0][h]);
            s[r][1][0] = _mm512_add_ps(s[r][1][0], s[r][1][h]);
        }
        _mm512_storeu_ps(c[r] + at, s[r][0][0]);
        _mm512_storeu_ps(c[r] + at + 16, s[r][1][0]);
    }
}

INLINE void attend(struct attend_query *a, u32 n, u32 chains, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    float s[8][KV_CHUNK], q[8 * KV_CHUNK]; /* d_head is at most 256 */
    float *to[8], *o[8];
    u32 n_pos = a[0].n_pos;
    for (u32 r = 0; r < n; r++) {
        to[r] = s[r];
        o[r] = a[r].o;
        for (u32 d = 0; d < d_head; d++)
            q[r * KV_CHUNK + d] = a[r].q[d] * scale;
    }
    for (u32 j = 0; j < n_pos; j += KV_PANEL)
        sums(to, j, q, n, chains, k + j * d_head, KV_PANEL, d_head);
    for (u32 r = 0; r < n; r++) {
        float top = s[r][0], l = 0;
        for (u32 j = 1; j < n_pos; j++)
            top = s[r][j] > top ? s[r][j] : top;
        for (u32 j = 0; j < n_pos; j++)
            l += s[r][j] = expf(s[r][j] - top);
        a[r].m = top;
        a[r].l = l;
    }
    for (u32 d = 0; d < d_head; d += 32)
        sums(o, d, s[0], n, chains, v + d, d_head, n_pos);
}

/* All queries see the same positions, a multiple of 32. */
void fast_attend_many(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale)
{
    u32 i = 0;
    for (; i + 8 <= n; i += 8)
        attend(a + i, 8, 1, k, v, d_head, scale);
    for (; i < n; i++)
        attend(a + i, 1, 4, k, v, d_head, scale);
}
#endif
