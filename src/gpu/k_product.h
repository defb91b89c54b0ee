/* One to three products of the same rows, few of them: product_1 and _2 take 8 and 16 rows at a time.
 *
 * A unit is a panel of 16 outputs for one tile of rows; a group takes a contiguous share of units. The rows are staged once (k_stage.h); weights
 * come through the SIMD group's ring, asked for before anything else is done. A panel's weights are n_seg tiles along the row:
 *   n_seg >= 8: the group's SIMD groups share a panel, tile i to SIMD group i mod 8; their sums meet in shared memory and are added left to
 *               right, while the next panel goes into the other half;
 *   n_seg < 8:  each SIMD group takes a panel of its own and adds as it goes; no barrier.
 *
 *   shared memory: ring | staged rows | sums [2][n_seg][n8][32 lanes][4]
 *
 * In a PS_METAL build (product_here) the columns are act rows where they lie, whatever n_in is; a product that quantises its rows itself stages one
 * at a time. A panel that is shared goes in rounds of 8 tiles, one a SIMD group, whose sums meet before the next.
 *
 *   shared memory: the staged row, if any | sums [2][8][n8][32 lanes][4] */

KFN u32 panels_of(u32 n_out)
{
    return (n_out + GPU_PANEL - 1u) / GPU_PANEL;
}

/* Slots of a ring for tiles of that size. */
KFN u32 ring_slots(u32 bytes)
{
    return RING_SLOTS == 1 ? 1u : bytes * 4u <= RING_SLOT_WORDS * 4u ? 4u : bytes * 3u <= RING_SLOT_WORDS * 4u ? 3u : bytes * 2u <= RING_SLOT_WORDS * 4u ? 2u : 1u;
}

/* Sums of a panel's tiles, left to right, eight read at a time. One that is not there adds 0: a sum from 0 on is never -0. */
KFN float sums_get(SHM const float *part, u32 n_seg, u32 step)
{
    float total = 0.0f;
    NO_UNROLL
    for (u32 s = 0; s < n_seg; s += 8u) {
        float v[8];
        UNROLL
        for (u32 k = 0; k < 8u; k++)
            v[k] = part[least_u32(s + k, n_seg - 1u) * step];
        UNROLL
        for (u32 k = 0; k < 8u; k++)
            total = total + (s + k < n_seg ? v[k] : 0.0f);
    }
    return total;
}

/* A tile's sums where sums_get finds them: column 2t + i of 8 j, row g + 8 r at 128 j + 4 lane + 2 r + i. */
KFN void sums_put(struct at at, const u32 n8, bool four, SHM float *to, THR const float *v)
{
    if (n8 == 1u && four) {
        u32 t = at.lane & 3u, slot = (at.lane & ~3u) * 4u + t / 2u * 4u + (t & 1u);
        to[slot] = v[0];
        to[slot + 2u] = v[1];
        return;
    }
    UNROLL
    for (u32 j = 0; j < n8; j++) {
        w4 all = {EX_BITS(v[4u * j]), EX_BITS(v[4u * j + 1u]), EX_BITS(v[4u * j + 2u]), EX_BITS(v[4u * j + 3u])};
        *(SHM w4 *)(to + j * 128u + at.lane * 4u) = all;
    }
}

struct product_shape {
    u32 ends[3];    /* panels of the matrices, added up */
    u32 n_pad, n_seg, slot_words, slots;
    bool split;
};

struct product_mat { /* of a unit */
    u32 m, type, panel, n_out, y_stride;
    DEV const u8 *w;
    DEV const float *bias; /* or NULL */
    DEV float *y;
};

KFN void product_shape_of(CON const struct product_args *a, THR struct product_shape *s)
{
    s->n_pad = GPU_PAD(a->n_in);
    s->n_seg = s->n_pad / GPU_SEG;
    s->split = s->n_seg >= GPU_SIMDS;
    s->ends[0] = panels_of(a->n_out[0]);
    s->ends[1] = s->ends[0] + (a->n_mats > 1u ? panels_of(a->n_out[1]) : 0u);
    s->ends[2] = s->ends[1] + (a->n_mats > 2u ? panels_of(a->n_out[2]) : 0u);
    u32 most = GPU_TILE_BYTES(a->type[0]);
    if (a->n_mats > 1u && GPU_TILE_BYTES(a->type[1]) > most)
        most = GPU_TILE_BYTES(a->type[1]);
    if (a->n_mats > 2u && GPU_TILE_BYTES(a->type[2]) > most)
        most = GPU_TILE_BYTES(a->type[2]);
    s->slot_words = most / 4u;
    s->slots = ring_slots(most);
}

/* The matrix and panel of panel p of all matrices. */
KFN void product_mat_of(CON const struct product_args *a, struct bufs b, THR const struct product_shape *s, u32 p, THR struct product_mat *m)
{
    if (p < s->ends[0]) {
        m->m = 0u;
        m->type = a->type[0];
        m->panel = p;
        m->n_out = a->n_out[0];
        m->y_stride = a->y_stride[0];
        m->w = (DEV const u8 *)b.p[3];
        m->bias = a->has_bias[0] ? (DEV const float *)b.p[6] : (DEV const float *)0;
        m->y = (DEV float *)b.p[9];
    } else if (p < s->ends[1]) {
        m->m = 1u;
        m->type = a->type[1];
        m->panel = p - s->ends[0];
        m->n_out = a->n_out[1];
        m->y_stride = a->y_stride[1];
        m->w = (DEV const u8 *)b.p[4];
        m->bias = a->has_bias[1] ? (DEV const float *)b.p[7] : (DEV const float *)0;
        m->y = (DEV float *)b.p[10];
    } else {
        m->m = 2u;
        m->type = a->type[2];
        m->panel = p - s->ends[1];
        m->n_out = a->n_out[2];
        m->y_stride = a->y_stride[2];
        m->w = (DEV const u8 *)b.p[5];
        m->bias = a->has_bias[2] ? (DEV const float *)b.p[8] : (DEV const float *)0;
        m->y = (DEV float *)b.p[11];
    }
}

/* Where a SIMD group is in the tiles that it reads: tile seg of unit `unit`, panel p of the matrices, whose first tile is at w. */
struct product_walk {
    u32 unit, end, seg, p, bytes;
    DEV const u8 *w;
};

KFN void product_walk_panel(CON const struct product_args *a, struct bufs b, THR const struct product_shape *s, THR struct product_walk *f)
{
    struct product_mat m;
    product_mat_of(a, b, s, f->p, &m);
    f->bytes = GPU_TILE_BYTES(m.type);
    f->w = m.w + (u64)(m.panel * s->n_seg) * f->bytes;
}

/* p: panel of unit `from`. */
KFN void product_walk_begin(struct at at, CON const struct product_args *a, struct bufs b, THR const struct product_shape *s, u32 from, u32 to, u32 p,
                            THR struct product_walk *f)
{
    f->unit = s->split ? from : from + at.simd;
    f->end = to;
    f->seg = s->split ? at.simd : 0u;
    f->p = s->split ? p : p + at.simd;
    while (f->p >= s->ends[2])
        f->p -= s->ends[2];
    product_walk_panel(a, b, s, f);
}

KFN void product_walk_on(struct at at, CON const struct product_args *a, struct bufs b, THR const struct product_shape *s, THR struct product_walk *f)
{
    f->seg += s->split ? GPU_SIMDS : 1u;
    if (f->seg < s->n_seg)
        return;
    f->seg = s->split ? at.simd : 0u;
    f->unit += s->split ? 1u : GPU_SIMDS;
    f->p += s->split ? 1u : GPU_SIMDS;
    while (f->p >= s->ends[2])
        f->p -= s->ends[2];
    product_walk_panel(a, b, s, f);
}

/* The walk's tile on its way into a slot. */
KFN void product_fetch(struct at at, CON const struct product_args *a, struct bufs b, THR const struct product_shape *s, THR struct product_walk *f, SHM u32 *ring,
                       u32 slot)
{
    if (f->unit >= f->end)
        return;
    ring_fetch(at, ring, slot, RING_MARKS + slot * s->slot_words, f->w + f->seg * f->bytes, f->bytes);
    product_walk_on(at, a, b, s, f);
}

/* The rows of a tile, row0.., n of them, into shared memory, where there is room for `cols`. writes: the act rows too, where they are wanted. */
KFN void product_stage(struct at at, const u32 cols, CON const struct product_args *a, struct bufs b, SHM u32 *stage, u32 row0, u32 n, bool writes)
{
    u32 n_pad = GPU_PAD(a->n_in), act_words = GPU_ACT_BYTES(a->n_in) / 4u;
    if (a->source == SRC_ACT) {
        DEV const u32 *act = (DEV const u32 *)b.p[1];
        for (u32 c = at.simd; c < n; c += GPU_SIMDS)
            stage_act(stage, cols, c, n_pad, act + (u64)(row0 + c) * act_words, at.lane, 32u);
        return;
    }
    DEV const float *x = (DEV const float *)b.p[1];
    DEV const float *norm = a->source == SRC_NORM ? (DEV const float *)b.p[2] : (DEV const float *)0;
    DEV u32 *act = a->write_act && writes ? (DEV u32 *)b.p[13] : (DEV u32 *)0;
    bool alone = n == 1u; /* the whole group for the one row */
    for (u32 c = alone ? 0u : at.simd; c < n; c += GPU_SIMDS) {
        DEV const float *row = x + (u64)(row0 + c) * a->x_stride;
        float r = norm ? norm_of_row(at, row, a->n_in, a->eps) : 0.0f;
        stage_floats(at, stage, cols, c, a->n_in, row, norm, r, alone ? at.id : at.lane, alone ? GPU_THREADS : 32u,
                     act ? act + (u64)(row0 + c) * act_words : (DEV u32 *)0);
    }
}

/* An output of row `row`: bias, residual. */
KFN void product_put(CON const struct product_args *a, struct bufs b, THR const struct product_mat *m, u32 row, u32 out, float v)
{
    if (m->bias)
        v = v + m->bias[out];
    m->y[(u64)row * m->y_stride + out] = v;
    if (a->add && m->m == 0u) {
        DEV float *x = (DEV float *)b.p[12] + (u64)row * a->res_stride + out;
        *x = *x + v;
    }
}

/* four: at most four columns; then v[0], v[1] are what tile_sums_4 gives. */
ANYWHERE KFN void product_tile_sums(struct at at, const u32 n8, const u32 type, bool four, WGT const u32 *tile, any_words stage, u32 n_pad, u32 n_cols,
                                    u32 seg, THR const struct columns *col, THR const struct columns *one, THR float *v)
{
    if (n8 == 1u && four)
        tile_sums_4(at, type, tile, stage, n_pad, n_cols, seg, one, v);
    else
        tile_sums(at, n8, type, tile, stage, n_pad, n_cols, seg, col, v);
}

KFN void product_few(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    SHM u32 *ring = shm, *stage = shm + RING_WORDS;
    u32 all_rows = in[IN_ROWS + a->which], from, to, slot = 0, turn = 0, tile, p;
    bool fresh = true, again = false; /* the rows of this tile are to be staged; others were before them */
    struct product_shape s;
    struct product_walk f, w;
    struct columns col[4];
    struct columns one;
    float total[16];
    product_shape_of(a, &s);
    SHM float *sums = (SHM float *)(stage + STAGE_WORDS(8u * n8, s.n_pad));
    share_units(at, (all_rows + 8u * n8 - 1u) / (8u * n8) * s.ends[2], &from, &to);
    tile = split_u32(from, s.ends[2], &p);
    product_walk_begin(at, a, b, &s, from, to, p, &f);
    w = f;
    for (u32 i = 0; i < s.slots; i++)
        product_fetch(at, a, b, &s, &f, ring, i);
    IN_TURN(at);
    columns_in_order(at, n8, s.n_pad, col);
    column_in_order(at, s.n_pad, &one);
    NO_UNROLL
    for (u32 unit = from; unit < to;) { /* the group's steps: one panel, or one for each SIMD group, of one tile of rows */
        u32 n_units = s.split ? 1u : least_u32(least_u32(GPU_SIMDS, to - unit), s.ends[2] - p);
        u32 row0 = tile * 8u * n8, n_rows = least_u32(8u * n8, all_rows - row0);
        bool four = n8 == 1u && n_rows <= 4u;
        struct product_mat m;
        if (fresh) {
            if (!s.split && again)
                BARRIER(at);
            product_stage(at, 8u * n8, a, b, stage, row0, n_rows, at.group == 0u);
            BARRIER(at);
            fresh = false;
            again = true;
        }
        if (w.unit < unit + n_units) {
            product_mat_of(a, b, &s, w.p, &m);
            UNROLL
            for (u32 i = 0; i < 4u * n8; i++)
                total[i] = 0.0f;
            NO_UNROLL
            for (u32 now = w.unit; w.unit == now;) {
                float v[16];
                u32 seg = w.seg;
                ring_take(at, ring, slot);
                WGT const u32 *at_slot = ring_tile(at, ring, slot, s.slot_words);
                if (m.type == GT_Q4_0)
                    product_tile_sums(at, n8, GT_Q4_0, four, at_slot, stage, s.n_pad, 8u * n8, seg, col, &one, v);
                else
                    FOR_TYPE(m.type, product_tile_sums(at, n8, type, four, at_slot, stage, s.n_pad, 8u * n8, seg, col, &one, v))
                SIMD_BARRIER(at);
                product_fetch(at, a, b, &s, &f, ring, slot);
                slot = slot + 1u == s.slots ? 0u : slot + 1u;
                if (s.split) {
                    sums_put(at, n8, four, sums + (turn * s.n_seg + seg) * n8 * 128u, v);
                } else {
                    UNROLL
                    for (u32 i = 0; i < 4u * n8; i++)
                        if (i < 2u || !four)
                            total[i] = total[i] + v[i];
                }
                product_walk_on(at, a, b, &s, &w);
            }
            if (!s.split) {
                UNROLL
                for (u32 i = 0; i < 4u * n8; i++) {
                    u32 c = i / 4u * 8u + 2u * (at.lane & 3u) + (i & 1u), out = m.panel * GPU_PANEL + (at.lane >> 2) + (i >> 1 & 1u) * 8u;
                    if (four) {
                        c = i < 2u ? at.lane & 3u : n_rows;
                        out = m.panel * GPU_PANEL + (at.lane >> 2) + (i & 1u) * 8u;
                    }
                    if (c < n_rows && out < m.n_out)
                        product_put(a, b, &m, row0 + c, out, total[i]);
                }
            }
        }
        if (s.split) {
            product_mat_of(a, b, &s, p, &m);
            BARRIER(at);
            for (u32 i = at.id; i < n8 * 128u; i += GPU_THREADS) {
                u32 lane = i / 4u & 31u, c = i / 128u * 8u + 2u * (lane & 3u) + (i & 1u), out = m.panel * GPU_PANEL + (lane >> 2) + (i >> 1 & 1u) * 8u;
                if (c < n_rows && out < m.n_out)
                    product_put(a, b, &m, row0 + c, out, sums_get(sums + turn * s.n_seg * n8 * 128u + i, s.n_seg, n8 * 128u));
            }
            turn ^= 1u;
        }
        unit += n_units;
        p += n_units;
        if (p == s.ends[2]) {
            p = 0;
            tile++;
            fresh = true;
        }
    }
}

/* ---- act rows in place (PS_METAL) ---- */

/* One round of a panel that SIMD groups share: its sums are there; the thread's output goes on by those of its n tiles. */
KFN float round_join(struct at at, const u32 n8, SHM const float *sums, u32 n, float total)
{
    for (u32 s = 0; at.id < n8 * 128u && s < n; s++)
        total = total + sums[s * n8 * 128u + at.id];
    return total;
}

/* A tile whose columns are in place, or are one staged row (then there are no more). */
KFN void here_tile_sums(struct at at, const u32 n8, const u32 type, const bool staged, bool four, WGT const u32 *tile, DEV const u32 *act,
                        SHM const u32 *stage, u32 n_pad, u32 seg, THR const struct columns *col, THR const struct columns *one, THR float *v)
{
    if (staged)
        tile_sums_4(at, type, tile, stage, n_pad, 1u, seg, one, v);
    else
        product_tile_sums(at, n8, type, four, tile, act, n_pad, 0u, seg, col, one, v);
}

/* A lane's columns: act rows row0.. in place, n of them; a column that is not there is the last one again. staged: the one row. */
KFN void here_columns(struct at at, const u32 n8, const bool staged, u32 row0, u32 n, u32 act_words, THR struct columns *col, THR struct columns *one)
{
    u32 t = at.lane & 3u, word = tile_word(at) * 4u;
    one->q[0] = word + (staged ? 0u : (row0 + least_u32(tile_col_of_four(at), n - 1u)) * act_words);
    one->s0 = staged ? 0u : (row0 + least_u32(t, n - 1u)) * act_words;
    one->s1 = 0u;
    UNROLL
    for (u32 j = 0; !staged && j < n8; j++) {
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            col[j].q[i] = word + (row0 + least_u32(8u * j + tile_col(at, i), n - 1u)) * act_words;
        col[j].s0 = (row0 + least_u32(8u * j + 2u * t, n - 1u)) * act_words;
        col[j].s1 = (row0 + least_u32(8u * j + 2u * t + 1u, n - 1u)) * act_words;
    }
}

/* Sum i of a lane (a constant) is of this column and this output of the panel. */
KFN u32 here_col(struct at at, bool four, u32 n, const u32 i)
{
    if (four)
        return i < 2u ? at.lane & 3u : n; /* there are two sums only */
    return i / 4u * 8u + 2u * (at.lane & 3u) + (i & 1u);
}

KFN u32 here_out(struct at at, bool four, const u32 i)
{
    return (at.lane >> 2) + ((four ? i : i >> 1) & 1u) * 8u;
}

/* staged: rows are quantised here, one a tile. */
KFN void product_here(struct at at, const u32 n8, const bool staged, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *act = (DEV const u32 *)b.p[1];
    u32 all_rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], high = staged ? 1u : 8u * n8, act_words = GPU_ACT_BYTES(a->n_in) / 4u;
    u32 from, to, turn = 0, p, done = ~0u; /* done: the tile of rows that col and one are of */
    struct product_shape s;
    struct columns col[4];
    struct columns one;
    u32 row0 = 0, n_rows = 0;
    bool four = false;
    product_shape_of(a, &s);
    SHM float *sums = (SHM float *)(shm + (staged ? STAGE_WORDS(1u, s.n_pad) : 0u));
    share_units(at, (staged ? all_rows : (all_rows + high - 1u) / (8u * n8)) * s.ends[2], &from, &to);
    u32 tile = split_u32(from, s.ends[2], &p);
    NO_UNROLL
    for (u32 unit = from; unit < to;) { /* one panel, or one for each SIMD group, of one tile of rows */
        u32 n_units = s.split ? 1u : least_u32(least_u32(GPU_SIMDS, to - unit), s.ends[2] - p);
        struct product_mat m;
        float total[16], v[16], joined = 0.0f;
        if (tile != done) {
            row0 = tile * high;
            n_rows = least_u32(high, all_rows - row0);
            four = staged || (n8 == 1u && n_rows <= 4u);
            here_columns(at, n8, staged, row0, n_rows, act_words, col, &one);
            if (staged && done != ~0u)
                BARRIER(at);
            if (staged) {
                product_stage(at, 1u, a, b, shm, row0, 1u, p == 0u);
                BARRIER(at);
            }
            done = tile;
        }
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++)
            total[i] = 0.0f;
        if (s.split || at.simd < n_units) {
            product_mat_of(a, b, &s, s.split ? p : p + at.simd, &m);
            u32 bytes = GPU_TILE_BYTES(m.type);
            DEV const u8 *w = m.w + (u64)(m.panel * s.n_seg) * bytes;
            NO_UNROLL
            for (u32 seg0 = 0; seg0 < s.n_seg; seg0 += s.split ? GPU_SIMDS : 1u) {
                u32 seg = s.split ? seg0 + at.simd : seg0;
                if (seg < s.n_seg) {
                    FOR_TYPE(m.type, here_tile_sums(at, n8, type, staged, four, (WGT const u32 *)(w + seg * bytes), act, shm, s.n_pad, seg, col, &one, v))
                    if (s.split)
                        sums_put(at, n8, four, sums + (turn * GPU_SIMDS + at.simd) * n8 * 128u, v);
                }
                if (s.split) {
                    BARRIER(at);
                    joined = round_join(at, n8, sums + turn * GPU_SIMDS * n8 * 128u, least_u32(GPU_SIMDS, s.n_seg - seg0), joined);
                    turn ^= 1u;
                } else {
                    UNROLL
                    for (u32 i = 0; i < 4u * n8; i++)
                        if (i < 2u || !four)
                            total[i] = total[i] + v[i];
                }
            }
            if (s.split) {
                u32 i = at.id, lane = i / 4u & 31u, c = i / 128u * 8u + 2u * (lane & 3u) + (i & 1u);
                u32 out = m.panel * GPU_PANEL + (lane >> 2) + (i >> 1 & 1u) * 8u;
                if (i < n8 * 128u && c < n_rows && out < m.n_out)
                    product_put(a, b, &m, row0 + c, out, joined);
            } else {
                UNROLL
                for (u32 i = 0; i < 4u * n8; i++) {
                    u32 c = here_col(at, four, n_rows, i), out = m.panel * GPU_PANEL + here_out(at, four, i);
                    if (c < n_rows && out < m.n_out)
                        product_put(a, b, &m, row0 + c, out, total[i]);
                }
            }
        }
        unit += n_units;
        p += n_units;
        if (p == s.ends[2]) {
            p = 0;
            tile++;
        }
    }
}

KFN void k_product_1(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    if (PS_METAL && a->source == SRC_ACT)
        product_here(at, 1, false, a, b, shm);
    else if (PS_METAL)
        product_here(at, 1, true, a, b, shm);
    else
        product_few(at, 1, a, b, shm);
}

KFN void k_product_2(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    if (PS_METAL && a->source == SRC_ACT)
        product_here(at, 2, false, a, b, shm);
    else if (PS_METAL)
        product_here(at, 1, true, a, b, shm);
    else
        product_few(at, 2, a, b, shm);
}
