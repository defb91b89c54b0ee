/* The chosen experts of few rows. A tile (route lists) is up to 8 * n8 pairs (row, rank) of one expert, a unit a panel of 16 outputs of a tile; a group takes
 * a contiguous share of units, and its SIMD groups the weights' tiles as in k_product.h, each through its ring.
 *
 * experts_in: gate and up of a panel are one unit of 2 * n_seg tiles, then silu(gate) * up; to write act rows two panels are, a block of 32 outputs. With at most 8 rows all rows are staged once and
 * a lane picks its pairs' columns; with more each tile's rows are staged when the tile is reached.
 * experts_out: the same with one matrix.
 * experts_out, fused: at most 8 rows, every pair a tile of its own: a unit is a panel of outputs for all pairs, a pair to a SIMD group; joined in
 * rank order into the residual stream.
 *
 *   shared memory: ring | staged rows | sums [2][tiles of a unit][n8][32 lanes][4] (act of 16 pairs: [1]), or fused [2][pairs][16]
 *
 * In a PS_METAL build act rows are read where they lie (experts_here); only experts_out, fused, stages rows, if they
 * are floats. There experts_in_1 of at most 8 rows may choose the experts besides (k_chosen.h): `chosen` is then at the
 * end of shared memory. */

struct experts_shape {
    u32 n_panels, n_pad, n_seg;
    u32 width, units, tiles; /* panels in a unit; units of a list's tile; weight tiles in a unit: panel by panel, matrix by matrix */
    u32 mats, type0, type1;
    u32 row0, row1;         /* bytes of a panel of each matrix */
    u32 slot_words, slots;
    bool split;
    DEV const u8 *w0, *w1;  /* experts' matrices one after another; w1 NULL: one matrix */
    DEV const u32 *list;    /* tiles_at */
    DEV const u32 *pairs;
    bool chose;             /* PS_METAL: both are here instead (k_chosen.h) */
    SHM const u32 *here;
};

struct experts_tile {
    u32 expert, first, n_pairs;
};

/* Word i of the list of tiles (args.h: tiles_at). */
KFN u32 experts_list(THR const struct experts_shape *s, u32 i)
{
    return PS_METAL && s->chose ? s->here[CHOSEN_TILES + i] : s->list[i];
}

KFN u32 experts_pair(THR const struct experts_shape *s, u32 i)
{
    return PS_METAL && s->chose ? s->here[CHOSEN_PAIRS + i] : s->pairs[i];
}

KFN void experts_tile_words(u32 expert, u32 word, THR struct experts_tile *t)
{
    t->expert = expert;
    t->first = word & 0xFFFFFFu;
    t->n_pairs = word >> 24;
}

KFN void experts_tile_of(DEV const u32 *list, u32 i, THR struct experts_tile *t)
{
    experts_tile_words(list[1u + 2u * i], list[2u + 2u * i], t);
}

KFN void experts_tile_at(THR const struct experts_shape *s, u32 i, THR struct experts_tile *t)
{
    experts_tile_words(experts_list(s, 1u + 2u * i), experts_list(s, 2u + 2u * i), t);
}

KFN float silu_times(float g, float u)
{
    float e = ex_exp(-EX_FLOAT(EX_BITS(g) & 0x7FFFFFFFu));
    float s = div_rn(g >= 0.0f ? 1.0f : e, 1.0f + e);
    return ex_flush(g * s * u);
}

KFN void experts_shape_of(THR struct experts_shape *s, u32 n_in, u32 n_out, u32 type0, u32 type1, DEV const u8 *w0, DEV const u8 *w1, DEV const u32 *list,
                          DEV const u32 *pairs)
{
    u32 most = GPU_TILE_BYTES(type0);
    if (w1 && GPU_TILE_BYTES(type1) > most)
        most = GPU_TILE_BYTES(type1);
    s->n_panels = panels_of(n_out);
    s->n_pad = GPU_PAD(n_in);
    s->n_seg = s->n_pad / GPU_SEG;
    s->width = 1u;
    s->units = s->n_panels;
    s->tiles = w1 ? 2u * s->n_seg : s->n_seg;
    s->split = s->n_seg >= GPU_SIMDS;
    s->mats = w1 ? 2u : 1u;
    s->type0 = type0;
    s->type1 = type1;
    s->row0 = s->n_seg * GPU_TILE_BYTES(type0);
    s->row1 = w1 ? s->n_seg * GPU_TILE_BYTES(type1) : 0u;
    s->slot_words = most / 4u;
    s->slots = ring_slots(most);
    s->w0 = w0;
    s->w1 = w1;
    s->list = list;
    s->pairs = pairs;
    s->chose = false;
    s->here = (SHM const u32 *)0;
}

/* Where a unit lies: in which tile of pairs, at which of its units. Kept while units go on, so that nothing is divided and the lists are read
 * only where a tile begins. */
struct experts_at {
    u32 tile, u;
    struct experts_tile pairs;
};

KFN void experts_at_begin(THR const struct experts_shape *s, u32 unit, THR struct experts_at *p)
{
    p->tile = split_u32(unit, s->units, &p->u);
    experts_tile_at(s, p->tile, &p->pairs);
}

/* d units on; the last unit may be passed. */
KFN void experts_at_on(THR const struct experts_shape *s, u32 d, bool there, THR struct experts_at *p)
{
    p->u += d;
    if (p->u < s->units)
        return;
    while (p->u >= s->units) {
        p->u -= s->units;
        p->tile++;
    }
    if (there)
        experts_tile_at(s, p->tile, &p->pairs);
}

/* A SIMD group's walk over the weight tiles of its units: tile i of a unit is tile seg along the row of matrix (n mod 2, where there are two) of
 * the unit's panel n / 2 (or n). */
struct experts_walk {
    u32 unit, end, n, seg;
    struct experts_at at;
    DEV const u8 *w0, *w1;  /* the unit's first tile of each matrix */
};

KFN void experts_walk_unit(THR const struct experts_shape *s, THR struct experts_walk *w)
{
    u64 panel = (u64)w->at.pairs.expert * s->n_panels + w->at.u * s->width;
    w->w0 = s->w0 + panel * s->row0;
    w->w1 = s->mats == 2u ? s->w1 + panel * s->row1 : s->w1;
}

KFN void experts_walk_begin(struct at at, THR const struct experts_shape *s, u32 from, u32 to, THR struct experts_walk *w)
{
    w->unit = s->split ? from : from + at.simd;
    w->end = to;
    w->n = 0;
    w->seg = s->split ? at.simd : 0u; /* split: n_seg >= 8 */
    w->w0 = s->w0;
    w->w1 = s->w1;
    w->at.tile = w->at.u = w->at.pairs.expert = w->at.pairs.first = w->at.pairs.n_pairs = 0u;
    if (w->unit >= to)
        return;
    experts_at_begin(s, w->unit, &w->at);
    experts_walk_unit(s, w);
}

KFN void experts_walk_on(struct at at, THR const struct experts_shape *s, THR struct experts_walk *w)
{
    w->seg += s->split ? GPU_SIMDS : 1u;
    if (w->seg < s->n_seg)
        return;
    w->seg = s->split ? w->seg - s->n_seg : 0u;
    w->n++;
    if (w->n < s->mats * s->width)
        return;
    w->n = 0;
    w->seg = s->split ? at.simd : 0u;
    u32 d = s->split ? 1u : GPU_SIMDS;
    w->unit += d;
    experts_at_on(s, d, w->unit < w->end, &w->at);
    experts_walk_unit(s, w);
}

/* The walk's tile on its way into a slot. */
KFN void experts_fetch(struct at at, THR const struct experts_shape *s, THR struct experts_walk *f, SHM u32 *ring, u32 slot)
{
    if (f->unit >= f->end)
        return;
    bool second = s->mats == 2u && (f->n & 1u);
    u32 bytes = GPU_TILE_BYTES(second ? s->type1 : s->type0), panel = s->mats == 2u ? f->n >> 1 : f->n;
    ring_fetch(at, ring, slot, RING_MARKS + slot * s->slot_words, (second ? f->w1 : f->w0) + (panel * s->n_seg + f->seg) * bytes, bytes);
    experts_walk_on(at, s, f);
}

/* A lane's columns when the pairs' rows are the staged columns: of tile_sums, and of tile_sums_4. */
KFN void experts_columns(struct at at, THR const struct experts_shape *s, THR const struct experts_tile *tile, u32 per, THR struct columns *col,
                         THR struct columns *one)
{
    u32 g = at.lane >> 2, t = at.lane & 3u, word = tile_word(at) * 4u, rest, last = tile->n_pairs - 1u;
    DEV const u32 *pairs = s->pairs + tile->first;
    u32 row = split_u32(pairs[least_u32(g, last)], per, &rest); /* of pair g; the others have theirs from the lane that has that g */
    u32 row0 = shuffle_from(at, row, 8u * t), row1 = shuffle_from(at, row, 8u * t + 4u); /* of columns 2t and 2t + 1 */
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++)
        col->q[i] = (TILE_COLS == 1u ? row : i ? row1 : row0) * STAGE_STRIDE(s->n_pad) + word;
    col->s0 = 2u * row0;
    col->s1 = 2u * row1;
    one->q[0] = shuffle_from(at, row, tile_col_of_four(at) * 4u) * STAGE_STRIDE(s->n_pad) + word;
    one->s0 = 2u * shuffle_from(at, row, 4u * t);
    one->s1 = 0u;
}

/* What the units of a launch share: rows by act (or by floats), `per` pairs to a row; all: staged once, by the caller. */
struct experts_rows {
    DEV const u32 *act;
    DEV const float *x;   /* SRC_FLOAT, or NULL */
    u32 n_in, x_stride, per, n_out, y_stride;
    DEV float *y;
    DEV u32 *act_out;     /* with width 2 */
    bool all;
};

KFN void experts_stage(struct at at, const u32 n8, THR const struct experts_shape *s, THR const struct experts_rows *r, THR const struct experts_tile *t, SHM u32 *stage)
{
    for (u32 c = at.simd; c < t->n_pairs; c += GPU_SIMDS) {
        u32 rest, row = split_u32(s->pairs[t->first + c], r->per, &rest);
        if (r->x)
            stage_floats(at, stage, 8u * n8, c, r->n_in, r->x + (u64)row * r->x_stride, (DEV const float *)0, 0.0f, at.lane, 32u, (DEV u32 *)0);
        else
            stage_act(stage, 8u * n8, c, s->n_pad, r->act + (u64)row * (GPU_ACT_BYTES(r->n_in) / 4u), at.lane, 32u);
    }
}

/* A pair's 32 outputs, one a lane, of two panels' sums of n_seg tiles each: silu(gate) * up as floats and, by rule 1, as a block of its act row. */
KFN void experts_put_act(struct at at, const u32 n8, THR const struct experts_shape *s, THR const struct experts_rows *r, THR const struct experts_tile *t,
                         u32 panel, u32 c, SHM const float *sums, u32 n_seg)
{
    u32 row = at.lane & 15u, slot = c / 8u * 128u + ((row & 7u) * 4u + c % 8u / 2u) * 4u + row / 8u * 2u + (c & 1u), one = n_seg * n8 * 128u;
    SHM const float *part = sums + at.lane / 16u * 2u * one + slot;
    float v = silu_times(sums_get(part, n_seg, n8 * 128u), sums_get(part + one, n_seg, n8 * 128u)), d;
    u32 pair = experts_pair(s, t->first + c), n_pad = GPU_PAD(r->n_out), block = panel / 2u;
    r->y[(u64)pair * r->y_stride + panel * GPU_PANEL + at.lane] = v;
    i32 sum, q = act_quantise_32(at, v, &d, &sum);
    act_put_32(at, (DEV u8 *)(r->act_out + (u64)pair * (GPU_ACT_BYTES(r->n_out) / 4u)), n_pad, block, q, d, sum);
}

/* TYPE_ANY: as the shape says, tile by tile; else both matrices are of that type, a constant. */
#define TYPE_ANY 99u

KFN void experts_few(struct at at, const u32 n8, const u32 type_of, THR const struct experts_shape *s, THR const struct experts_rows *r, SHM u32 *ring,
                     THR struct experts_walk *f, u32 from, u32 to)
{
    SHM u32 *stage = ring + RING_WORDS;
    SHM float *sums = (SHM float *)(stage + STAGE_WORDS(8u * n8, s->n_pad));
    u32 slot = 0, turn = 0, done = ~0u, known = ~0u; /* tiles, by their first pairs: staged; whose columns col and few are */
    struct experts_walk w;
    struct experts_at here;
    struct columns col[4];
    struct columns one;
    float total[16], second[16];
    if (from >= to) /* nothing for the group: no barrier is met by anyone */
        return;
    experts_walk_begin(at, s, from, to, &w);
    experts_at_begin(s, from, &here);
    columns_in_order(at, n8, s->n_pad, col);
    column_in_order(at, s->n_pad, &one);
    NO_UNROLL
    for (u32 unit = from; unit < to;) {
        u32 n_units = s->split ? 1u : least_u32(GPU_SIMDS, to - unit); /* not split: a unit is one panel */
        n_units = s->split || r->all ? n_units : least_u32(n_units, s->units - here.u);
        if (!r->all && here.pairs.first != done) {
            if (!s->split && done != ~0u)
                BARRIER(at);
            experts_stage(at, n8, s, r, &here.pairs, stage);
            BARRIER(at);
            done = here.pairs.first;
        }
        if (w.unit < unit + n_units) {
            struct experts_tile mine = w.at.pairs;
            u32 panel = w.at.u * s->width;
            bool four = n8 == 1u && mine.n_pairs <= 4u;
            if (r->all && mine.first != known) {
                experts_columns(at, s, &mine, r->per, col, &one);
                known = mine.first;
            }
            UNROLL
            for (u32 i = 0; i < 4u * n8; i++)
                total[i] = second[i] = 0.0f;
            NO_UNROLL
            for (u32 now = w.unit; w.unit == now;) {
                float v[16];
                u32 n = w.n, seg = w.seg;
                bool up = s->mats == 2u && (n & 1u);
                ring_take(at, ring, slot);
                WGT const u32 *tile = ring_tile(at, ring, slot, s->slot_words);
                if (type_of == TYPE_ANY) {
                    FOR_TYPE(up ? s->type1 : s->type0,
                             product_tile_sums(at, n8, type, four, tile, stage, s->n_pad, 8u * n8, seg, col, &one, v))
                } else {
                    product_tile_sums(at, n8, type_of, four, tile, stage, s->n_pad, 8u * n8, seg, col, &one, v);
                }
                SIMD_BARRIER(at);
                experts_fetch(at, s, f, ring, slot);
                slot = slot + 1u == s->slots ? 0u : slot + 1u;
                if (s->split) {
                    sums_put(at, n8, four, sums + ((turn * s->tiles + n * s->n_seg) + seg) * n8 * 128u, v);
                } else {
                    UNROLL
                    for (u32 i = 0; i < 4u * n8; i++)
                        if (i < 2u || !four) {
                            total[i] = up ? total[i] : total[i] + v[i];
                            second[i] = up ? second[i] + v[i] : second[i];
                        }
                }
                experts_walk_on(at, s, &w);
            }
            if (!s->split) {
                UNROLL
                for (u32 i = 0; i < 4u * n8; i++) {
                    u32 c = i / 4u * 8u + 2u * (at.lane & 3u) + (i & 1u), out = panel * GPU_PANEL + (at.lane >> 2) + (i >> 1 & 1u) * 8u;
                    if (four) {
                        c = i < 2u ? at.lane & 3u : mine.n_pairs;
                        out = panel * GPU_PANEL + (at.lane >> 2) + (i & 1u) * 8u;
                    }
                    if (c < mine.n_pairs && out < r->n_out)
                        r->y[(u64)s->pairs[mine.first + c] * r->y_stride + out] = s->mats == 2u ? silu_times(total[i], second[i]) : total[i];
                }
            }
        }
        if (s->split) {
            u32 panel = here.u * s->width;
            SHM const float *part = sums + turn * s->tiles * n8 * 128u;
            BARRIER(at);
            if (s->width == 2u)
                for (u32 c = at.simd; c < here.pairs.n_pairs; c += GPU_SIMDS)
                    experts_put_act(at, n8, s, r, &here.pairs, panel, c, part, s->n_seg);
            for (u32 i = at.id; s->width == 1u && i < n8 * 128u; i += GPU_THREADS) {
                u32 lane = i / 4u & 31u, c = i / 128u * 8u + 2u * (lane & 3u) + (i & 1u), out = panel * GPU_PANEL + (lane >> 2) + (i >> 1 & 1u) * 8u;
                if (c >= here.pairs.n_pairs || out >= r->n_out)
                    continue;
                float v = sums_get(part + i, s->n_seg, n8 * 128u);
                if (s->mats == 2u)
                    v = silu_times(v, sums_get(part + i + s->n_seg * n8 * 128u, s->n_seg, n8 * 128u));
                r->y[(u64)s->pairs[here.pairs.first + c] * r->y_stride + out] = v;
            }
            if (n8 == 1u || s->width == 1u)
                turn ^= 1u;
            else
                BARRIER(at);
        }
        unit += n_units;
        experts_at_on(s, n_units, unit < to, &here);
    }
}

/* ---- act rows in place (PS_METAL) ---- */

/* The columns of a tile of pairs: their rows' act rows, `per` pairs to one; a column that is not there is the last one again. */
KFN void experts_here_columns(struct at at, const u32 n8, THR const struct experts_shape *s, THR const struct experts_tile *tile, u32 per, u32 act_words,
                              THR struct columns *col, THR struct columns *one)
{
    u32 g = at.lane >> 2, t = at.lane & 3u, word = tile_word(at) * 4u, last = tile->n_pairs - 1u;
    UNROLL
    for (u32 j = 0; j < n8; j++) { /* row of pair 8 j + g; the others have theirs from the lane that has that g */
        u32 rest, row = split_u32(experts_pair(s, tile->first + least_u32(8u * j + g, last)), per, &rest) * act_words;
        u32 row0 = shuffle_from(at, row, 8u * t), row1 = shuffle_from(at, row, 8u * t + 4u); /* of columns 2t and 2t + 1 */
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            col[j].q[i] = (TILE_COLS == 1u ? row : i ? row1 : row0) + word;
        col[j].s0 = row0;
        col[j].s1 = row1;
        if (j == 0u) {
            one->q[0] = shuffle_from(at, row, tile_col_of_four(at) * 4u) + word;
            one->s0 = shuffle_from(at, row, 4u * t);
            one->s1 = 0u;
        }
    }
}

/* As experts_few, without ring and stage. Panels that are shared go matrix by matrix, each in rounds of 8 tiles (k_product.h), whose totals are put down.
 *
 *   shared memory: sums [2][8][n8][32 lanes][4] | totals [panels of a unit x matrices][n8][32 lanes][4] */
KFN void experts_here(struct at at, const u32 n8, THR const struct experts_shape *s, THR const struct experts_rows *r, SHM u32 *shm, u32 from, u32 to)
{
    SHM float *sums = (SHM float *)shm, *totals = sums + 2u * GPU_SIMDS * n8 * 128u;
    u32 turn = 0, known = ~0u, act_words = GPU_ACT_BYTES(r->n_in) / 4u, step = s->split ? 1u : GPU_SIMDS, count = s->mats * s->width;
    struct experts_at here; /* the group's unit, or this SIMD group's */
    struct columns col[4];
    struct columns one;
    u32 first = s->split ? from : from + at.simd;
    if (first >= to)
        return; /* not split: no barrier is met */
    experts_at_begin(s, first, &here);
    NO_UNROLL
    for (u32 unit = first; unit < to; unit += step) {
        u32 panel = here.u * s->width, expert_panel = here.pairs.expert * s->n_panels + panel;
        bool four = n8 == 1u && here.pairs.n_pairs <= 4u;
        float total[16], second[16], v[16];
        if (here.pairs.first != known) {
            experts_here_columns(at, n8, s, &here.pairs, r->per, act_words, col, &one);
            known = here.pairs.first;
        }
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++)
            total[i] = second[i] = 0.0f;
        NO_UNROLL
        for (u32 n = 0; n < count; n++) { /* matrix n % mats of the unit's panel n / mats */
            bool up = s->mats == 2u && (n & 1u);
            u32 type_of = up ? s->type1 : s->type0, bytes = GPU_TILE_BYTES(type_of);
            DEV const u8 *w = (up ? s->w1 : s->w0) + (u64)(expert_panel + (s->mats == 2u ? n >> 1 : n)) * (up ? s->row1 : s->row0);
            float joined = 0.0f;
            NO_UNROLL
            for (u32 seg0 = 0; seg0 < s->n_seg; seg0 += s->split ? GPU_SIMDS : 1u) {
                u32 seg = s->split ? seg0 + at.simd : seg0;
                if (seg < s->n_seg) {
                    FOR_TYPE(type_of, product_tile_sums(at, n8, type, four, (WGT const u32 *)(w + seg * bytes), r->act, s->n_pad, 0u, seg, col, &one, v))
                    if (s->split)
                        sums_put(at, n8, four, sums + (turn * GPU_SIMDS + at.simd) * n8 * 128u, v);
                }
                if (s->split) {
                    BARRIER(at);
                    joined = round_join(at, n8, sums + turn * GPU_SIMDS * n8 * 128u, least_u32(GPU_SIMDS, s->n_seg - seg0), joined);
                    turn ^= 1u;
                } else {
                    UNROLL
                    for (u32 i = 0; i < 4u * n8; i++)
                        if (i < 2u || !four) {
                            total[i] = up ? total[i] : total[i] + v[i];
                            second[i] = up ? second[i] + v[i] : second[i];
                        }
                }
            }
            if (s->split && at.id < n8 * 128u)
                totals[n * n8 * 128u + at.id] = joined;
        }
        if (!s->split) {
            UNROLL
            for (u32 i = 0; i < 4u * n8; i++) {
                u32 c = here_col(at, four, here.pairs.n_pairs, i), out = panel * GPU_PANEL + here_out(at, four, i);
                if (c < here.pairs.n_pairs && out < r->n_out)
                    r->y[(u64)experts_pair(s, here.pairs.first + c) * r->y_stride + out] =
                        s->mats == 2u ? silu_times(total[i], second[i]) : total[i];
            }
        } else if (s->width == 2u) {
            BARRIER(at); /* the next totals come after the barrier of the next unit's first round */
            for (u32 c = at.simd; c < here.pairs.n_pairs; c += GPU_SIMDS)
                experts_put_act(at, n8, s, r, &here.pairs, panel, c, totals, 1u);
        } else if (at.id < n8 * 128u) { /* what the thread put down itself */
            u32 i = at.id, lane = i / 4u & 31u, c = i / 128u * 8u + 2u * (lane & 3u) + (i & 1u), out = panel * GPU_PANEL + (lane >> 2) + (i >> 1 & 1u) * 8u;
            float sum = s->mats == 2u ? silu_times(totals[i], totals[n8 * 128u + i]) : totals[i];
            if (c < here.pairs.n_pairs && out < r->n_out)
                r->y[(u64)experts_pair(s, here.pairs.first + c) * r->y_stride + out] = sum;
        }
        experts_at_on(s, step, unit + step < to, &here);
    }
}

/* ---- experts in ---- */

/* The usual types have a loop of their own. */
KFN void experts_typed(struct at at, const u32 n8, THR const struct experts_shape *s, THR const struct experts_rows *r, SHM u32 *ring, THR struct experts_walk *f,
                       u32 from, u32 to)
{
    u32 type = s->mats == 1u || s->type0 == s->type1 ? s->type0 : TYPE_ANY;
    if (type == GT_Q4_0)
        experts_few(at, n8, GT_Q4_0, s, r, ring, f, from, to);
    else if (type == GT_Q4_K)
        experts_few(at, n8, GT_Q4_K, s, r, ring, f, from, to);
    else if (type == GT_Q6_K && n8 == 1u)
        experts_few(at, n8, GT_Q6_K, s, r, ring, f, from, to);
    else
        experts_few(at, n8, TYPE_ANY, s, r, ring, f, from, to);
}

/* PS_METAL, at most 8 rows: the experts, and with them the lists, to `chosen`; the group's share of the units. */
KFN void experts_choose(struct at at, CON const struct route_args *route, struct bufs b, u32 n_rows, SHM u32 *chosen,
                        THR struct experts_shape *s, THR u32 *from, THR u32 *to)
{
    DEV const float *logits = (DEV const float *)b.p[7];
    bool puts = at.group == at.n_groups - 1u;
    struct few_touched t = {0u, n_rows, 0u};
    w4 v[ROUTE_PARTS];
    if (route->per_row) { /* units follow each other row by row: of few of these */
        u32 rest, all = n_rows * route->n_used * s->units;
        few_share(at, 1u, all, from, to);
        if (!puts) {
            t.first = split_u32(split_u32(*from, s->units, &rest), route->n_used, &rest);
            if (*to > *from)
                t.n = split_u32(split_u32(*to - 1u, s->units, &rest), route->n_used, &rest) + 1u - t.first;
            else
                t.n = 0u;
        }
    }
    few_choose_ask(at, route, logits, &t, v);
    if (at.id < 32u)
        chosen[CHOSEN_MASKS + at.id] = 0u;
    u32 id = few_choose_rows(at, route, logits, &t, v, chosen);
    chosen_lists(at, route, &t, n_rows, id, chosen);
    s->chose = true;
    s->here = chosen;
    if (puts)
        chosen_lists_put(at, route, b, n_rows, id, chosen);
    if (!route->per_row)
        few_share(at, 1u, experts_list(s, 0u) * s->units, from, to);
}

/* choice: by which the experts are chosen besides, or NULL. */
KFN void experts_in_few(struct at at, const u32 n8, CON const struct experts_in_args *a,
                        CON const struct route_args *choice, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *route = (DEV const u32 *)b.p[5];
    u32 n_rows = in[IN_ROWS + a->which], from, to;
    struct experts_shape s;
    struct experts_rows r;
    struct experts_walk f;
    experts_shape_of(&s, a->n_in, a->n_out, a->type_gate, a->type_up, (DEV const u8 *)b.p[2], (DEV const u8 *)b.p[3], route + a->tiles_at, route + a->pairs_at);
    r.act = (DEV const u32 *)b.p[1];
    r.x = (DEV const float *)0;
    r.n_in = a->n_in;
    r.x_stride = 0;
    r.per = a->n_used;
    r.n_out = a->n_out;
    r.y_stride = a->y_stride;
    r.y = (DEV float *)b.p[4];
    r.all = n8 == 1u && n_rows <= 8u;
    r.act_out = (DEV u32 *)b.p[6];
    if (a->write_act) {
        s.width = 2u;
        s.units = s.n_panels / 2u;
        s.tiles = 4u * s.n_seg;
    }
    if (PS_METAL && choice)
        experts_choose(at, choice, b, n_rows, shm + GPU_SHM_EXPERTS_IN(8u * n8, a->n_in) / 4u, &s, &from, &to);
    else
        share_units(at, s.list[0] * s.units, &from, &to);
    if (PS_METAL) {
        experts_here(at, n8, &s, &r, shm, from, to);
        return;
    }
    experts_walk_begin(at, &s, from, to, &f);
    for (u32 i = 0; i < s.slots; i++)
        experts_fetch(at, &s, &f, shm, i);
    if (r.all) {
        for (u32 c = at.simd; c < n_rows; c += GPU_SIMDS)
            stage_act(shm + RING_WORDS, 8u, c, s.n_pad, r.act + (u64)c * (GPU_ACT_BYTES(a->n_in) / 4u), at.lane, 32u);
        BARRIER(at);
    }
    experts_typed(at, n8, &s, &r, shm, &f, from, to);
}

/* Panels [from, to) of all pairs' outputs, joined by rows. The walk's tiles: of the SIMD group's pairs of a panel. */
struct joined_walk {
    u32 panel, end, pair, seg;
    DEV const u8 *w; /* the pair's panel */
};

KFN void joined_walk_at(THR const struct experts_shape *s, DEV const u32 *ids, THR struct joined_walk *f)
{
    f->w = s->w0 + ((u64)ids[f->pair] * s->n_panels + f->panel) * s->row0;
}

KFN void joined_fetch(struct at at, THR const struct experts_shape *s, DEV const u32 *ids, u32 n_pairs, THR struct joined_walk *f, SHM u32 *ring, u32 slot)
{
    if (f->panel >= f->end || at.simd >= n_pairs)
        return;
    u32 bytes = GPU_TILE_BYTES(s->type0);
    ring_fetch(at, ring, slot, RING_MARKS + slot * s->slot_words, f->w + f->seg * bytes, bytes);
    f->seg += 1u;
    if (f->seg < s->n_seg)
        return;
    f->seg = 0;
    f->pair += GPU_SIMDS;
    if (f->pair >= n_pairs) {
        f->pair = at.simd;
        f->panel += 1u;
        if (n_pairs <= GPU_SIMDS) { /* the same expert's next panel */
            f->w += s->row0;
            return;
        }
    }
    joined_walk_at(s, ids, f);
}

KFN void experts_join(struct at at, CON const struct experts_out_args *a, struct bufs b, THR const struct experts_shape *s, THR const struct experts_rows *r, SHM u32 *ring,
                      u32 n_rows)
{
    DEV const u32 *route = (DEV const u32 *)b.p[5], *ids = route + a->ids_at;
    DEV const float *rank_w = (DEV const float *)(route + a->w_at);
    DEV float *x = (DEV float *)b.p[6];
    SHM u32 *stage = ring + RING_WORDS;
    u32 n_pairs = n_rows * a->n_used, from, to, slot = 0, turn = 0;
    bool here = PS_METAL && !r->x; /* act rows in place */
    u32 act_words = GPU_ACT_BYTES(r->n_in) / 4u;
    SHM float *sums = (SHM float *)(stage + (here ? 0u : STAGE_WORDS(n_pairs, s->n_pad)));
    share_units(at, s->n_panels, &from, &to);
    struct joined_walk f = {from, to, at.simd, 0u, s->w0};
    if (at.simd < n_pairs)
        joined_walk_at(s, ids, &f);
    for (u32 i = 0; i < s->slots; i++)
        joined_fetch(at, s, ids, n_pairs, &f, ring, i);
    for (u32 c = at.simd; !here && c < n_pairs; c += GPU_SIMDS) {
        if (r->x)
            stage_floats(at, stage, n_pairs, c, r->n_in, r->x + (u64)c * r->x_stride, (DEV const float *)0, 0.0f, at.lane, 32u, (DEV u32 *)0);
        else
            stage_act(stage, n_pairs, c, s->n_pad, r->act + (u64)c * (GPU_ACT_BYTES(r->n_in) / 4u), at.lane, 32u);
    }
    SIMD_BARRIER(at); /* a SIMD group reads the columns that it staged itself */
    NO_UNROLL
    for (u32 p = from; p < to; p++) {
        NO_UNROLL
        for (u32 pair = at.simd; pair < n_pairs; pair += GPU_SIMDS) {
            struct columns one; /* all four the same */
            float total[2] = {0.0f, 0.0f};
            one.q[0] = pair * (here ? act_words : STAGE_STRIDE(s->n_pad)) + tile_word(at) * 4u;
            one.s0 = pair * (here ? act_words : 2u);
            one.s1 = 0u;
            NO_UNROLL
            for (u32 seg = 0; seg < s->n_seg; seg++) {
                float v[16];
                ring_take(at, ring, slot);
                WGT const u32 *at_slot = ring_tile(at, ring, slot, s->slot_words);
                if (here) {
                    FOR_TYPE(s->type0, tile_sums_4(at, type, at_slot, r->act, s->n_pad, 0u, seg, &one, v))
                } else {
                    FOR_TYPE(s->type0, tile_sums_4(at, type, at_slot, stage, s->n_pad, n_pairs, seg, &one, v))
                }
                SIMD_BARRIER(at);
                joined_fetch(at, s, ids, n_pairs, &f, ring, slot);
                slot = slot + 1u == s->slots ? 0u : slot + 1u;
                total[0] = total[0] + v[0];
                total[1] = total[1] + v[1];
            }
            if ((at.lane & 3u) == 0u) {
                SHM float *to_sums = sums + (turn * n_pairs + pair) * 16u + (at.lane >> 2);
                to_sums[0] = total[0];
                to_sums[8] = total[1];
            }
        }
        BARRIER(at);
        for (u32 i = at.id; i < n_rows * 16u; i += GPU_THREADS) {
            u32 row = i / 16u, out = p * GPU_PANEL + (i & 15u);
            if (out >= a->n_out)
                continue;
            float acc = 0.0f;
            for (u32 k = row * a->n_used; k < (row + 1u) * a->n_used; k++)
                acc = EX_FMA(rank_w[k], ex_flush(sums[(turn * n_pairs + k) * 16u + (i & 15u)]), acc);
            x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + acc;
        }
        turn ^= 1u;
    }
}

KFN void experts_out_few(struct at at, const u32 n8, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *route = (DEV const u32 *)b.p[5];
    struct experts_shape s;
    struct experts_rows r;
    struct experts_walk f;
    u32 from, to;
    experts_shape_of(&s, a->n_in, a->n_out, a->type, a->type, (DEV const u8 *)b.p[3], (DEV const u8 *)0, route + a->tiles_at, route + a->pairs_at);
    r.act = (DEV const u32 *)b.p[2];
    r.x = a->source == SRC_FLOAT ? (DEV const float *)b.p[1] : (DEV const float *)0;
    r.n_in = a->n_in;
    r.x_stride = a->x_stride;
    r.per = a->per;
    r.n_out = a->n_out;
    r.y_stride = a->y_stride;
    r.y = (DEV float *)b.p[4];
    r.act_out = (DEV u32 *)0;
    r.all = false;
    if (a->fused) {
        experts_join(at, a, b, &s, &r, shm, in[IN_ROWS + a->which]);
        return;
    }
    share_units(at, s.list[0] * s.units, &from, &to);
    if (PS_METAL) {
        experts_here(at, n8, &s, &r, shm, from, to);
        return;
    }
    experts_walk_begin(at, &s, from, to, &f);
    for (u32 i = 0; i < s.slots; i++)
        experts_fetch(at, &s, &f, shm, i);
    experts_typed(at, n8, &s, &r, shm, &f, from, to);
}

KFN void k_experts_in_1(struct at at, CON const struct few_in_args *a, struct bufs b, SHM u32 *shm)
{
    experts_in_few(at, 1, &a->in, a->choose ? &a->route : (CON const struct route_args *)0, b, shm);
}

KFN void k_experts_in_2(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    experts_in_few(at, 2, a, (CON const struct route_args *)0, b, shm);
}

KFN void k_experts_out_1(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    experts_out_few(at, 1, a, b, shm);
}

KFN void k_experts_out_2(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    experts_out_few(at, 2, a, b, shm);
}
