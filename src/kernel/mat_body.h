/* Products with quantised weights for vector units (rules 2-4): one text over the words of an instruction set.
 *
 *     lane r = output row r of a strip (LANES rows of a panel)
 *     w[s][g]   byte 4r + j: the unsigned integer of row r, element 4g + j of the block; 8 groups, STRIPS strips
 *     x         the same 4 activations in every lane: one broadcast serves all strips
 *     acc[s]    the block's dot; starts at -offset * sum(q), so that unsigned weights serve signed formats
 *     p[s][i]   the segment's sum of activation row i     b[s][i]  the sum of minimums     total[s][i]
 *
 * A block of weights is loaded and split once for all rows of a tile. A tile of 1-4 rows keeps its sums in
 * registers and takes one strip, because memory is what it waits for; a tall tile (5-16 rows) keeps w there and its sums in
 * the first cache: a load and a store for every 8 dots. */
#ifndef PS_MAT_BODY_H
#define PS_MAT_BODY_H

#include "kernel/mat_tile.h"
#include "kernel/pack.h"

/* 32 elements of one strip as unsigned integers. */
WORD void split(vi w[8], const u8 *at, u32 half, u32 bits)
{
    const u8 *p = at + half * LANES * 4;
    vi mask = vi_set8(15);
    if (bits == 8) {
        UNROLL for (u32 g = 0; g < 8; g++)
            w[g] = weights_8(p + 64 * g);
        return;
    }
    UNROLL for (u32 v = 0; v < 4; v++) {
        vi both = vi_load(p + 64 * v);
        w[2 * v] = vi_and(both, mask);
        w[2 * v + 1] = vi_and(vi_shr(both, 4), mask);
    }
    if (bits == 5) {
        vi up = vi_load(p + 256);
        UNROLL for (u32 g = 0; g < 8; g++)
            w[g] = vi_or(w[g], vi_spread_bits(up, g / 2, g % 2));
    } else if (bits == 6) {
        vi two = vi_set8(0x30);
        UNROLL for (u32 v = 0; v < 2; v++) {
            vi up = vi_load(p + 256 + 64 * v);
            w[4 * v] = vi_or(w[4 * v], vi_and(vi_shl(up, 4), two));
            w[4 * v + 1] = vi_or(w[4 * v + 1], vi_and(vi_shl(up, 2), two));
            w[4 * v + 2] = vi_or(w[4 * v + 2], vi_and(up, two));
            w[4 * v + 3] = vi_or(w[4 * v + 3], vi_and(vi_shr(up, 2), two));
        }
    }
}

struct tile_sums {
    vf p[STRIPS][TALL], b[STRIPS][TALL], total[STRIPS][TALL];
};

/* What a block multiplies with besides its integers. */
struct scales {
    vf d, m;    /* blocks of 32: the scale and minimum; K types: the sub-scale and sub-minimum; q6_k: those of both halves */
};

/* The dots of block b with n rows of the tile, from row i on, join their sums. */
WORD void join_rows(struct tile_sums *z, const vi (*w)[8], const struct scales *sc, u32 strips, struct form f,
                    const struct tile *t, u32 i, u32 b, u32 n)
{
    const u32 e = i * LINE + b;
    vi acc[GROUP][STRIPS], more[GROUP][STRIPS];
    const i8 *q = t->q + i * LINE_Q + b * ACT_BLOCK;
    UNROLL for (u32 r = 0; r < n; r++)
        UNROLL for (u32 s = 0; s < strips; s++) {
            acc[r][s] = f.offset ? vi_set(t->start[e + r * LINE]) : vi_zero();
            more[r][s] = f.bits == 6 ? vi_set(t->start2[e + r * LINE]) : vi_zero();
        }
    if (f.bits == 8) {
        dots_8(acc, w, n, strips, q);
    } else if (f.bits == 6) {
        dots(acc, w, n, strips, q, 0, 4, 2);
        dots(more, w, n, strips, q, 4, 4, 2);
    } else {
        dots(acc, w, n, strips, q, 0, 8, f.bits == 5 ? 4 : 8);
    }
    UNROLL for (u32 r = 0; r < n; r++) {
        vf dx = vf_set(t->d[e + r * LINE]);
        UNROLL for (u32 s = 0; s < strips; s++) {
            vf v = vf_ints(acc[r][s]), *p = &z->p[s][i + r], *mins = &z->b[s][i + r];
            if (f.bits == 6) /* integers below 2^24: exact as floats, in any order */
                v = vf_fma(vf_ints(more[r][s]), sc[s].m, vf_mul(v, sc[s].d));
            else if (f.k)
                v = vf_mul(v, sc[s].d);
            *p = vf_fma(v, f.k ? dx : vf_mul(sc[s].d, dx), *p);
            if (f.min)
                *mins = vf_fma(sc[s].m, vf_set(t->dsum[e + r * LINE]), *mins);
        }
    }
}

/* Where a block's parts lie in a panel, and how many bytes a segment's head and a block have. */
struct place {
    u32 seg_head, block_head, block;
};

WORD struct place place_of(struct form f)
{
    struct place at = {.block_head = (f.min ? 4 : 2) * PANEL, .block = PANEL * ACT_BLOCK / 8 * f.bits};
    if (f.k)
        at = (struct place){(f.bits == 6 ? 2 + 16 : 4 + 16) * PANEL, 0, at.block};
    return at;
}

WORD struct scales block_scales(struct form f, const u8 *seg, const u8 *block, u32 half, u32 j)
{
    const u8 *sub = seg + half * LANES, *h = block + half * LANES * 2;
    if (f.bits == 6)
        return (struct scales){vf_i8s(sub + (2 + 2 * j) * PANEL), vf_i8s(sub + (3 + 2 * j) * PANEL)};
    if (f.k)
        return (struct scales){vf_u8s(sub + (4 + j) * PANEL), vf_u8s(sub + (12 + j) * PANEL)};
    return (struct scales){vf_halves(h), f.min ? vf_halves(h + 2 * PANEL) : vf_zero()};
}

WORD void end_segment(struct tile_sums *z, u32 s, u32 m, struct form f, const u8 *seg, u32 half)
{
    const u8 *h = seg + half * LANES * 2;
    vf d = f.k ? vf_halves(h) : vf_zero(), dmin = f.k && f.min ? vf_halves(h + 2 * PANEL) : vf_zero();
    for (u32 i = 0; i < m; i++) {
        vf v = z->p[s][i];
        if (f.k)
            v = vf_fma(d, v, vf_zero());
        if (f.k && f.min)
            v = vf_fnma(dmin, z->b[s][i], v);
        else if (f.min)
            v = vf_add(v, z->b[s][i]);
        z->total[s][i] = vf_add(z->total[s][i], v);
        z->p[s][i] = z->b[s][i] = vf_zero();
    }
}

/* Bytes ahead of the block in work that memory is asked for. Measured on an Ice Lake, q4_0 with 1 and 4 rows: none 11.7 and 9.2 GB/s,
 * 1 KiB 12.6 and 10.9, 2 KiB 13.2 and 11.5, 4 KiB 13.3 and 12.5. Past the last panel it asks in vain, which is no fault. */
enum { AHEAD = 4096 };

/* m rows of the tile (GROUP at most, or tall) against strips from w on: `apart` bytes from one panel to the next; half: which LANES rows of a
 * panel. tall: m is not a constant. */
WORD void strip_product(float *const *y, const struct tile *t, u32 m, bool tall, const u8 *w, u64 apart, u32 half,
                        u32 strips, struct form f)
{
    struct tile_sums z;
    struct place at = place_of(f);
    for (u32 i = 0; i < m; i++)
        UNROLL for (u32 s = 0; s < strips; s++) {
            z.total[s][i] = t->first ? vf_zero() : vf_load(y[i] + half * LANES + PANEL * s);
            z.p[s][i] = z.b[s][i] = vf_zero();
        }
    for (u32 b = 0; b < t->n_blocks;) {
        const u8 *seg = w;
        u32 b0 = b, b1 = min_u32(b + SEGMENT / ACT_BLOCK, t->n_blocks);
        w += at.seg_head;
        for (; b < b1; b++, w += at.block_head + at.block) {
            vi q[STRIPS][8];
            struct scales sc[STRIPS];
            for (u32 s = 0; s < strips; s++)
                for (u32 i = 0; i < at.block_head + at.block; i += 64)
                    fetch(w + s * apart + AHEAD + i);
            UNROLL for (u32 s = 0; s < strips; s++) {
                split(q[s], w + s * apart + at.block_head, half, f.bits);
                sc[s] = block_scales(f, seg + s * apart, w + s * apart, half, b - b0);
            }
            u32 i = 0;
            if (tall) {
                for (; i + GROUP <= m; i += GROUP)
                    join_rows(&z, q, sc, strips, f, t, i, b, GROUP);
                for (; i < m; i++)
                    join_rows(&z, q, sc, strips, f, t, i, b, 1);
            } else {
                join_rows(&z, q, sc, strips, f, t, 0, b, m);
            }
        }
        UNROLL for (u32 s = 0; s < strips; s++)
            end_segment(&z, s, m, f, seg + s * apart, half);
    }
    for (u32 i = 0; i < m; i++)
        UNROLL for (u32 s = 0; s < strips; s++)
            vf_store(y[i] + half * LANES + PANEL * s, z.total[s][i]);
}

/* A tile against n strips. w, y: those of the first. */
WORD void tile_product(float *const *to, u32 out, const struct tile *t, const u8 *w, u64 apart, u32 half, u32 strips,
                       struct form f)
{
    float *y[TALL];
    for (u32 i = 0; i < t->m; i++)
        y[i] = to[i] + out;
    switch (t->m) {
    case 1:
        strip_product(y, t, 1, false, w, apart, half, strips, f);
        break;
    case 2:
        strip_product(y, t, 2, false, w, apart, half, strips, f);
        break;
    case 3:
        strip_product(y, t, 3, false, w, apart, half, strips, f);
        break;
    case 4:
        strip_product(y, t, 4, false, w, apart, half, strips, f);
        break;
    default:
        strip_product(y, t, t->m, true, w, apart, half, strips, f);
        break;
    }
}

/* The table's entry: tiles of rows, slices of the contraction, panels. */
WORD void mat_quant(struct form f, float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0,
                    u32 p1)
{
    struct tile t;
    struct place at = place_of(f);
    u64 panel_bytes = pack_panel_bytes(f.type, n_in);
    u32 n_blocks = n_in / ACT_BLOCK;
    for (u32 r = 0; r < n_rows; r += TALL)
        for (u32 b0 = 0; b0 < n_blocks; b0 += SLICE) {
            t.m = min_u32(TALL, n_rows - r);
            t.n_blocks = min_u32(SLICE, n_blocks - b0);
            t.first = b0 == 0;
            for (u32 i = 0; i < t.m; i++)
                fill_row(&t, f, x[r + i], i, b0);
            const u8 *slice = w + (u64)b0 * (at.block_head + at.block) + b0 / (SEGMENT / ACT_BLOCK) * at.seg_head;
            u32 p = p0;
            if (STRIPS > 1 && t.m > 4)
                for (; p + STRIPS <= p1; p += STRIPS)
                    tile_product(y + r, p * PANEL, &t, slice + p * panel_bytes, panel_bytes, 0, STRIPS, f);
            for (; p < p1; p++)
                for (u32 half = 0; half < PANEL / LANES; half++)
                    tile_product(y + r, p * PANEL, &t, slice + p * panel_bytes, panel_bytes, half, 1, f);
        }
}

#define VEC(name, ...)                                                                             \
    static void name(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w,         \
                     u32 n_in, u32 p0, u32 p1)                                                     \
    {                                                                                              \
        mat_quant((struct form){__VA_ARGS__}, y, x, n_rows, w, n_in, p0, p1);                      \
    }
VEC(vec_q4_0, DT_Q4_0, 4, 8, false, false)
VEC(vec_q4_1, DT_Q4_1, 4, 0, true, false)
VEC(vec_q5_0, DT_Q5_0, 5, 16, false, false)
VEC(vec_q5_1, DT_Q5_1, 5, 0, true, false)
VEC(vec_q8_0, DT_Q8_0, 8, OFFSET_8, false, false)
VEC(vec_q4_k, DT_Q4_K, 4, 0, true, true)
VEC(vec_q5_k, DT_Q5_K, 5, 0, true, true)
VEC(vec_q6_k, DT_Q6_K, 6, 32, false, true)
#undef VEC

#endif
