/* Products with quantised weights for vector units (rules 2-4): one text over the words of an instruction set.
 *
 *     lane r = output row r of a strip (LANES rows of a panel)
 *     w[s][g]   byte 4r + j: the unsigned integer of row r, element 4g + j of the block; 8 groups of strip s
 *     x         the same 4 activations in every lane: one broadcast serves all strips
 *     acc[r][s] the block's dot with activation row r; starts at -offset * sum(q), so that unsigned weights serve signed formats
 *     p[s][r]   the segment's sum     b[s][r]  the segment's sum of minimums
 *
 * Both ways through a matrix take WIDE panels side by side, because memory gives more to four streams than to one, and go from
 * segment to segment; in between y holds the totals, which changes no bit.
 *   few rows   memory is what they wait for: a block is loaded, split in registers and joins the sums of all rows
 *   many rows  a segment is split into bytes in the first cache once; tiles of TILE_ROWS x STRIPS then keep their
 *              sums in registers: with 3 x 4, 7 loads for 12 dots */
#ifndef PS_MAT_BODY_H
#define PS_MAT_BODY_H

#include "kernel/mat_tile.h"
#include "kernel/pack.h"

enum {
    PARTS = PANEL / LANES, /* strips of a panel */
    WIDE = 4,              /* panels side by side */
    TILES = WIDE * PARTS / STRIPS,
    FEW = 4,               /* rows, GROUP at most */
    FEW_WIDE = PARTS > 2 ? 1 : WIDE /* few rows of short registers: the sums of more panels would not stay in them */
};

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

/* What a block multiplies with besides its integers. */
struct scales {
    vf d, m;    /* blocks of 32: the scale and minimum; K types: the sub-scale and sub-minimum; q6_k: those of both halves */
};

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

/* A segment's scales, of K types. */
WORD vf segment_scales(struct form f, const u8 *seg, u32 half, vf *dmin)
{
    const u8 *h = seg + half * LANES * 2;
    *dmin = f.k && f.min ? vf_halves(h + 2 * PANEL) : vf_zero();
    return f.k ? vf_halves(h) : vf_zero();
}

/* The dots of block b with m rows join their sums. */
WORD void join(vf (*p)[GROUP], const vi (*w)[8], const struct scales *sc, u32 strips, struct form f, const struct tile *t, u32 b,
               u32 m)
{
    vi acc[GROUP][STRIPS], more[GROUP][STRIPS];
    const i8 *q = t->q + b * ACT_BLOCK;
    UNROLL for (u32 r = 0; r < m; r++)
        UNROLL for (u32 s = 0; s < strips; s++) {
            acc[r][s] = f.offset ? vi_set(t->start[r][b]) : vi_zero();
            more[r][s] = f.bits == 6 ? vi_set(t->start2[r][b]) : vi_zero();
        }
    if (f.bits == 8) {
        dots_8(acc, w, m, strips, q);
    } else if (f.bits == 6) {
        dots(acc, w, m, strips, q, 0, 4, 2);
        dots(more, w, m, strips, q, 4, 4, 2);
    } else {
        dots(acc, w, m, strips, q, 0, 8, f.bits == 5 ? 4 : 8);
    }
    UNROLL for (u32 r = 0; r < m; r++) {
        vf dx = vf_set(t->d[r][b]);
        UNROLL for (u32 s = 0; s < strips; s++) {
            vf v = vf_ints(acc[r][s]);
            if (f.bits == 6) /* integers below 2^24: exact as floats, in any order */
                v = vf_fma(vf_ints(more[r][s]), sc[s].m, vf_mul(v, sc[s].d));
            else if (f.k)
                v = vf_mul(v, sc[s].d);
            p[s][r] = vf_fma(v, f.k ? dx : vf_mul(sc[s].d, dx), p[s][r]);
        }
    }
}

WORD void join_min(vf (*b)[GROUP], vf m, const struct tile *t, u32 s, u32 block, u32 rows)
{
    UNROLL for (u32 r = 0; r < rows; r++)
        b[s][r] = vf_fma(m, vf_set(t->dsum[r][block]), b[s][r]);
}

/* The segment's sum joins the total at y. */
WORD void end_segment(float *y, bool first, struct form f, vf p, vf b, vf d, vf dmin)
{
    vf v = p;
    if (f.k)
        v = vf_fma(d, v, vf_zero());
    if (f.k && f.min)
        v = vf_fnma(dmin, b, v);
    else if (f.min)
        v = vf_add(v, b);
    vf_store(y, vf_add(first ? vf_zero() : vf_load(y), v));
}

/* A walk over the segment that will be needed next, WIDE lines at a time. */
struct ahead {
    const u8 *at;
    u64 apart;
    u32 lines; /* left in each panel */
};

WORD void fetch_some(struct ahead *a, u32 lines, u32 panels)
{
    for (lines = min_u32(lines, a->lines); lines; lines--, a->lines--, a->at += 64)
        UNROLL for (u32 i = 0; i < panels; i++)
            fetch(a->at + i * a->apart);
}

/* Where a call stands: a segment of some panels. */
struct at_segment {
    const u8 *w;   /* the first panel's segment */
    u64 apart;     /* bytes from one panel to the next */
    u32 b0, n;     /* its blocks */
    u32 out;       /* first output */
    struct ahead ahead;
};

/* ---- few rows ---- */

WORD void few_segment(float *const *y, const struct tile *t, u32 m, struct at_segment *g, u32 panels, struct form f)
{
    struct place at = place_of(f);
    u32 strips = panels * PARTS, step = at.block_head + at.block;
    vf p[WIDE * PARTS][GROUP];
    UNROLL for (u32 s = 0; s < strips; s++)
        UNROLL for (u32 r = 0; r < m; r++)
            p[s][r] = vf_zero();
    for (u32 j = 0; j < g->n; j++) {
        const u8 *block = g->w + at.seg_head + j * step;
        fetch_some(&g->ahead, (step + at.seg_head / SEG_BLOCKS + 63) / 64, panels);
        UNROLL for (u32 s = 0; s < strips; s++) {
            vi w[1][8];
            u64 off = s / PARTS * g->apart;
            struct scales sc = block_scales(f, g->w + off, block + off, s % PARTS, j);
            part_loads(); /* a strip at a time: mixed, their weights would not fit the registers */
            split(w[0], block + off + at.block_head, s % PARTS, f.bits);
            join(p + s, w, &sc, 1, f, t, j, m);
        }
    }
    UNROLL for (u32 s = 0; s < strips; s++) {
        const u8 *seg = g->w + s / PARTS * g->apart;
        vf b[1][GROUP], dmin, d = segment_scales(f, seg, s % PARTS, &dmin);
        UNROLL for (u32 r = 0; r < m; r++)
            b[0][r] = vf_zero();
        for (u32 j = 0; f.min && j < g->n; j++)
            join_min(b, block_scales(f, seg, seg + at.seg_head + j * step, s % PARTS, j).m, t, 0, j, m);
        UNROLL for (u32 r = 0; r < m; r++)
            end_segment(y[r] + g->out + s * LANES, g->b0 == 0, f, p[s][r], b[0][r], d, dmin);
    }
}

WORD void few_rows(float *const *y, const struct act *const *x, u32 n_rows, struct at_segment *g, u32 panels, struct form f)
{
    struct tile t;
    gather(&t, f, x, n_rows, g->b0, g->n);
    switch (n_rows) {
    case 1:
        few_segment(y, &t, 1, g, panels, f);
        break;
    case 2:
        few_segment(y, &t, 2, g, panels, f);
        break;
    case 3:
        few_segment(y, &t, 3, g, panels, f);
        break;
    default:
        few_segment(y, &t, 4, g, panels, f);
        break;
    }
}

/* ---- many rows ---- */

/* A segment of STRIPS strips as tiles read it. */
struct bytes {
    vi w[SEG_BLOCKS][STRIPS][8];
    struct scales sc[SEG_BLOCKS][STRIPS];
    vf d[STRIPS], dmin[STRIPS];
};

WORD void split_segment(struct bytes *to, const struct at_segment *g, struct form f)
{
    struct place at = place_of(f);
    for (u32 i = 0; i < WIDE * PARTS; i++) {
        struct bytes *z = to + i / STRIPS;
        u32 s = i % STRIPS, half = i % PARTS;
        const u8 *seg = g->w + i / PARTS * g->apart, *block = seg + at.seg_head;
        z->d[s] = segment_scales(f, seg, half, &z->dmin[s]);
        for (u32 j = 0; j < g->n; j++, block += at.block_head + at.block) {
            split(z->w[j][s], block + at.block_head, half, f.bits);
            z->sc[j][s] = block_scales(f, seg, block, half, j);
        }
    }
}

WORD void tile_segment(float *const *y, const struct tile *t, u32 m, const struct bytes *w, struct at_segment *g, u32 lines,
                       u32 out, struct form f)
{
    vf p[STRIPS][GROUP], b[STRIPS][GROUP];
    UNROLL for (u32 s = 0; s < STRIPS; s++)
        UNROLL for (u32 r = 0; r < m; r++)
            p[s][r] = b[s][r] = vf_zero();
    for (u32 j = 0; j < g->n; j++) {
        fetch_some(&g->ahead, lines, WIDE);
        join(p, w->w[j], w->sc[j], STRIPS, f, t, j, m);
    }
    if (f.min) /* after the dots: sums and dots and these would not fit */
        for (u32 j = 0; j < g->n; j++)
            UNROLL for (u32 s = 0; s < STRIPS; s++)
                join_min(b, w->sc[j][s].m, t, s, j, m);
    UNROLL for (u32 r = 0; r < m; r++)
        UNROLL for (u32 s = 0; s < STRIPS; s++)
            end_segment(y[r] + out + s * LANES, g->b0 == 0, f, p[s][r], b[s][r], w->d[s], w->dmin[s]);
}

/* Rows of the next tile, when n are left: none is left alone if others can share. */
WORD u32 next_rows(u32 n)
{
    return n <= TILE_ROWS ? n : n == TILE_ROWS + 1 ? (TILE_ROWS + 1) / 2 : TILE_ROWS;
}

WORD void many_rows(float *const *y, const struct act *const *x, u32 n_rows, struct at_segment *g, struct form f)
{
    struct bytes w[TILES];
    struct tile t;
    u32 turns = (n_rows + TILE_ROWS - 1) / TILE_ROWS * TILES * SEG_BLOCKS, lines = (g->ahead.lines + turns - 1) / turns;
    split_segment(w, g, f);
    for (u32 r = 0, m; r < n_rows; r += m) {
        m = next_rows(n_rows - r);
        gather(&t, f, x + r, m, g->b0, g->n);
        for (u32 i = 0; i < TILES; i++) {
            u32 out = g->out + i * STRIPS * LANES;
            switch (m) {
            case 1:
                tile_segment(y + r, &t, 1, w + i, g, lines, out, f);
                break;
            case 2:
                tile_segment(y + r, &t, 2, w + i, g, lines, out, f);
                break;
            case 3:
                tile_segment(y + r, &t, 3, w + i, g, lines, out, f);
                break;
            default:
                if (TILE_ROWS > 3)
                    tile_segment(y + r, &t, 4, w + i, g, lines, out, f);
                break;
            }
        }
    }
}

/* ---- the table's entry ---- */

/* All segments of some panels, from panel p on. more: whether as many follow that this call will want. */
WORD void walk(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p, u32 panels, bool more,
               struct form f)
{
    struct place at = place_of(f);
    u32 n_blocks = n_in / ACT_BLOCK, step = at.block_head + at.block, seg_bytes = at.seg_head + SEG_BLOCKS * step;
    struct at_segment g = {.apart = pack_panel_bytes(f.type, n_in), .out = p * PANEL};
    g.w = w + p * g.apart;
    for (; g.b0 < n_blocks; g.b0 += SEG_BLOCKS, g.w += seg_bytes) {
        bool last = g.b0 + SEG_BLOCKS >= n_blocks;
        g.n = min_u32(SEG_BLOCKS, n_blocks - g.b0);
        u32 left = last ? n_blocks : n_blocks - g.b0 - SEG_BLOCKS; /* blocks from the next segment on */
        g.ahead = (struct ahead){last ? w + (p + panels) * g.apart : g.w + seg_bytes, g.apart,
                                 last && !more ? 0 : (at.seg_head + min_u32(left, SEG_BLOCKS) * step + 63) / 64};
        if (panels == WIDE && n_rows > FEW)
            many_rows(y, x, n_rows, &g, f);
        else if (panels <= FEW_WIDE)
            for (u32 r = 0; r < n_rows; r += FEW)
                few_rows(y + r, x + r, min_u32(FEW, n_rows - r), &g, panels, f);
    }
}

WORD void mat_quant(struct form f, float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0,
                    u32 p1)
{
    u32 p = p0;
    for (; (n_rows > FEW || WIDE == FEW_WIDE) && p + WIDE <= p1; p += WIDE)
        walk(y, x, n_rows, w, n_in, p, WIDE, p + 2 * WIDE <= p1, f);
    for (; p < p1; p++)
        walk(y, x, n_rows, w, n_in, p, 1, p + 1 < p1, f);
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
