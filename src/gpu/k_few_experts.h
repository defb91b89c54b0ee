/* The chosen experts of few rows, for latency (k_few.h has the way): few_in and few_out, every pair (row, rank) by itself.
 *
 * A unit is `width` panels of one pair's outputs (few_in: both matrices, tiles in the order panel, matrix, segment) or a panel of one row's outputs with
 * all its experts (few_out: rank, segment). Units follow each other pair by pair (row by row); a group takes a contiguous share of them, in rounds
 * of what its SIMD groups can have in registers at once. Which experts they are is read from the route lists' ids alone.
 *
 * few_in that chooses has no such lists before it (k_chosen.h); meanwhile the rows are staged.
 *
 *   shared memory: zeros | staged rows (few_out: of pairs) | few_out: the ranks' weights | sums [2][tiles of a round][16] |
 *                  few_in that chooses: ids [rows][n_used] (64 words), ranks of a SIMD group's row [8][FEW_ALONE] */


struct few_experts {
    u32 type, n_seg, n_pad, n_panels, region, bytes;
    u32 n_used, width, unit_tiles, units; /* tiles of a unit; units of a pair (few_out: of a row) */
    u32 row0;                             /* first row that is staged (few_out: first pair) */
    DEV const u8 *w0, *w1;
    DEV const u32 *ids;
    SHM const u32 *chosen;                /* where the ids of rows that were chosen here are, or NULL */
};

KFN u32 few_id(THR const struct few_experts *e, u32 pair)
{
    return e->chosen ? e->chosen[pair] : e->ids[pair];
}

/* A lane's own tile: 2 * its number in w0 or, + 1, w1 (until it is known which expert its pair has: of that expert's); what it is multiplied with. */
struct few_place {
    u32 pair, tile, x, seg;
};

KFN DEV const u8 *few_tile_at(THR const struct few_experts *e, u32 tile)
{
    return (tile & 1u ? e->w1 : e->w0) + (u64)(tile >> 1) * e->bytes;
}

/* Tile k of a round that begins with `unit` and has `count` units. */
KFN void few_in_place(THR const struct few_experts *e, u32 unit, u32 count, u32 k, THR struct few_place *p)
{
    u32 which = split_u32(k, e->n_seg, &p->seg), item = least_u32(which >> e->width, count - 1u), u, rest;
    u32 pair = split_u32(unit + item, e->units, &u), panel = u * e->width + (which >> 1 & (e->width - 1u)), row = split_u32(pair, e->n_used, &rest);
    p->pair = pair;
    p->tile = (panel * e->n_seg + p->seg) * 2u + (which & 1u);
    p->x = GPU_FEW_STAGE + (row - e->row0) * e->region;
}

KFN void few_place_tile(THR const struct few_experts *e, THR struct few_place *p)
{
    p->tile += few_id(e, p->pair) * e->n_panels * e->n_seg * 2u;
}

KFN void few_out_place(THR const struct few_experts *e, u32 unit, u32 count, u32 k, THR struct few_place *p)
{
    u32 which = split_u32(k, e->n_seg, &p->seg), rank, u, item = split_u32(which, e->n_used, &rank);
    u32 pair = split_u32(unit + least_u32(item, count - 1u), e->n_panels, &u) * e->n_used + rank;
    p->pair = pair;
    p->tile = (u * e->n_seg + p->seg) * 2u;
    p->x = GPU_FEW_STAGE + (pair - e->row0) * e->region;
    few_place_tile(e, p);
}

/* The round of `count` units from `unit` on into the chip's cache. */
KFN void few_in_ahead(struct at at, THR const struct few_experts *e, u32 unit, u32 count)
{
    NO_UNROLL
    for (u32 i = 0; i < count; i++) {
        u32 u, pair = split_u32(unit + i, e->units, &u), tile = (few_id(e, pair) * e->n_panels + u * e->width) * e->n_seg * 2u;
        few_ahead(few_tile_at(e, tile), e->width * e->n_seg * e->bytes, at.id, GPU_THREADS);
        few_ahead(few_tile_at(e, tile + 1u), e->width * e->n_seg * e->bytes, at.id, GPU_THREADS);
    }
}

KFN void few_out_ahead(struct at at, THR const struct few_experts *e, u32 unit, u32 count)
{
    NO_UNROLL
    for (u32 i = at.simd; i < count * e->n_used; i += GPU_SIMDS) {
        u32 rank, u, item = split_u32(i, e->n_used, &rank), pair = split_u32(unit + item, e->n_panels, &u) * e->n_used + rank;
        few_ahead(few_tile_at(e, (few_id(e, pair) * e->n_panels + u) * e->n_seg * 2u), e->n_seg * e->bytes, at.lane, 32u);
    }
}

/* The lanes' own tiles, for all: lane i * cols / 2 has tile i. */
KFN void few_spread(struct at at, THR const struct few_experts *e, u32 cols, u32 own, THR struct few_from *from)
{
    UNROLL
    for (u32 i = 0; i < 8u / GPU_FEW_COLS(1u); i++)
        from->at[i] = few_tile_at(e, shuffle_from(at, own, (i * cols >> 1) & 31u));
}

/* A panel's sums of both matrices, one behind the other: gate's to *gate, up's. */
KFN float sums_get_two(SHM const float *part, u32 n_seg, THR float *gate)
{
    float up = 0.0f;
    *gate = 0.0f;
    NO_UNROLL
    for (u32 s = 0; s < n_seg; s += 8u) {
        float v[16];
        UNROLL
        for (u32 k = 0; k < 8u; k++) {
            u32 at_part = least_u32(s + k, n_seg - 1u);
            v[k] = part[at_part * 16u];
            v[8u + k] = part[(n_seg + at_part) * 16u];
        }
        UNROLL
        for (u32 k = 0; k < 8u; k++) {
            *gate = *gate + (s + k < n_seg ? v[k] : 0.0f);
            up = up + (s + k < n_seg ? v[8u + k] : 0.0f);
        }
    }
    return up;
}

/* Panels' sums as the next product's rows: silu(gate) * up, one output a thread. */
KFN void few_in_put(struct at at, CON const struct experts_in_args *a, struct bufs b, THR const struct few_experts *e, u32 unit, u32 count, SHM const float *sums)
{
    u32 item = at.id / 16u, u, pair = split_u32(unit + item, e->units, &u), out = u * GPU_PANEL + (at.id & 15u);
    SHM const float *part = sums + item * e->unit_tiles * 16u + (at.id & 15u);
    float gate = 0.0f, up = 0.0f;
    if (item < count && out < a->n_out)
        up = sums_get_two(part, e->n_seg, &gate);
    if (item < count && out < a->n_out)
        ((DEV float *)b.p[4])[(u64)pair * a->y_stride + out] = silu_times(gate, up);
}

/* The same for units of two panels, and by rule 1: a unit is a block of 32 and a SIMD group's. */
KFN void few_in_put_act(struct at at, CON const struct experts_in_args *a, struct bufs b, THR const struct few_experts *e, u32 unit, u32 count, SHM const float *sums)
{
    for (u32 item = at.simd; item < count; item += GPU_SIMDS) {
        u32 block, pair = split_u32(unit + item, e->units, &block), n_pad = GPU_PAD(a->n_out);
        SHM const float *part = sums + (item * 4u + at.lane / 16u * 2u) * e->n_seg * 16u + (at.lane & 15u);
        float gate, up = sums_get_two(part, e->n_seg, &gate), v = silu_times(gate, up), d;
        ((DEV float *)b.p[4])[(u64)pair * a->y_stride + block * 32u + at.lane] = v;
        i32 sum, q = act_quantise_32(at, v, &d, &sum);
        DEV u8 *act = (DEV u8 *)b.p[6] + (u64)pair * GPU_ACT_BYTES(a->n_out);
        act[4u * act_word(block, at.lane / 4u) + at.lane % 4u] = (u8)(u32)q;
        if (at.lane == 0u) {
            ((DEV float *)(act + n_pad))[block] = d;
            ((DEV i32 *)(act + n_pad))[n_pad / 32u + block] = sum;
        }
    }
}

KFN void few_experts_of(THR struct few_experts *e, u32 type, u32 n_in, u32 n_out, u32 n_used, DEV const u8 *w0, DEV const u8 *w1, DEV const u32 *ids)
{
    e->type = type;
    e->n_pad = GPU_PAD(n_in);
    e->n_seg = e->n_pad / GPU_SEG;
    e->n_panels = panels_of(n_out);
    e->region = STAGE_WORDS(1u, e->n_pad);
    e->bytes = GPU_TILE_BYTES(type);
    e->n_used = n_used;
    e->w0 = w0;
    e->w1 = w1;
    e->ids = ids;
    e->chosen = (SHM const u32 *)0;
}

/* Units of a round: what the registers of all SIMD groups hold, and one at least; at most as many outputs as threads. */
KFN u32 few_round(u32 unit_tiles, u32 most)
{
    u32 rest, n = least_u32(split_u32(64u / GPU_FEW_COLS(1u), unit_tiles, &rest), most);
    return n ? n : 1u;
}

KFN void few_touches(struct at at, THR const struct few_experts *e, u32 from, u32 to, u32 n_rows, THR struct few_touched *t)
{
    u32 rest, last = split_u32(split_u32(to > from ? to - 1u : from, e->units, &rest), e->n_used, &rest);
    bool all = at.group == at.n_groups - 1u;
    t->first = all ? 0u : e->row0;
    t->staged = to > from ? last - e->row0 + 1u : 0u;
    t->n = all ? n_rows : t->staged;
}

KFN void k_few_in(struct at at, CON const struct few_in_args *args, struct bufs b, SHM u32 *shm)
{
    CON const struct experts_in_args *a = &args->in;
    const u32 cols = GPU_FEW_COLS(1u);
    u32 n_rows = a->rows ? a->rows : ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], from, to, rest, turn = 0;
    bool fresh = true;
    struct few_experts e;
    few_experts_of(&e, a->type_gate, a->n_in, a->n_out, a->n_used, (DEV const u8 *)b.p[2], (DEV const u8 *)b.p[3],
                   (DEV const u32 *)b.p[5] + a->ids_at);
    e.width = a->write_act ? 2u : 1u;
    e.unit_tiles = 2u * e.width * e.n_seg;
    e.units = e.n_panels >> (e.width - 1u);
    u32 most = few_round(e.unit_tiles, 16u >> (e.width - 1u)), of_cols = FEW_COLS(e.type, cols), own = few_own(at, of_cols);
    SHM float *sums = (SHM float *)(shm + GPU_FEW_STAGE + a->few * e.region);
    SHM u32 *chosen = shm + GPU_FEW_STAGE + a->few * e.region + 2u * GPU_FEW_SUMS(1u, 4u * e.n_seg);
    struct few_touched touched;
    u32 id = 0;
    few_share(at, args->choose, n_rows * e.n_used * e.units, &from, &to);
    e.row0 = split_u32(split_u32(from, e.units, &rest), e.n_used, &rest);
    struct few_place p = {0u, 0u, 0u, 0u};
    bool placed = to > from;
    if (placed) { /* the first, before the turn */
        u32 count = least_u32(most, to - from), each = (count * e.unit_tiles + GPU_SIMDS - 1u) / GPU_SIMDS;
        few_in_place(&e, from, count, at.simd * each + own, &p);
    }
    if (args->choose) {
        w4 logits[ROUTE_PARTS];
        few_touches(at, &e, from, to, n_rows, &touched);
        IN_TURN(at);
        few_choose_ask(at, &args->route, (DEV const float *)b.p[7], &touched, logits);
        few_stage_acts(at, shm, e.n_pad, (DEV const u32 *)b.p[1] + (u64)e.row0 * (GPU_ACT_BYTES(a->n_in) / 4u), touched.staged);
        id = few_choose_rows(at, &args->route, (DEV const float *)b.p[7], &touched, logits, chosen);
        e.chosen = chosen;
        fresh = false;
        if (at.group == at.n_groups - 1u)
            few_choose_put(at, &args->route, b, n_rows, id, chosen);
    } else {
        IN_TURN(at);
    }
    NO_UNROLL
    for (u32 unit = from; unit < to;) {
        u32 count = least_u32(most, to - unit), n_tiles = count * e.unit_tiles, each = (n_tiles + GPU_SIMDS - 1u) / GPU_SIMDS;
        u32 k = at.simd * each, last = least_u32(k + each, n_tiles);
        SHM float *round = sums + turn * GPU_FEW_SUMS(1u, 4u * e.n_seg);
        NO_UNROLL
        do {
            u32 n = k < last ? least_u32(few_beside(of_cols), last - k) : 0u;
            struct few_weights f;
            float v[4];
            struct few_from from_of;
            if (!placed)
                few_in_place(&e, unit, count, k + own, &p);
            placed = false;
            few_place_tile(&e, &p);
            few_spread(at, &e, of_cols, p.tile, &from_of);
            few_load(at, cols, e.type, n, &from_of, few_tile_at(&e, p.tile), &f);
            if (fresh) {
                u32 row1 = split_u32(split_u32(to - 1u, e.units, &rest), e.n_used, &rest);
                few_stage_acts(at, shm, e.n_pad, (DEV const u32 *)b.p[1] + (u64)e.row0 * (GPU_ACT_BYTES(a->n_in) / 4u), row1 - e.row0 + 1u);
                BARRIER(at);
                fresh = false;
            }
            if (unit + count < to && k + n >= last)
                few_in_ahead(at, &e, unit + count, least_u32(most, to - unit - count));
            FOR_FEW_TYPE(e.type, few_tiles(at, type, cols, 1, &f, shm, p.x, p.seg, e.region, STAGE_STRIDE(e.n_pad), v))
            few_sums_put(at, of_cols, 1, n, v, round, k);
            k += few_beside(of_cols);
        } while (k < last);
        BARRIER(at);
        if (a->write_act)
            few_in_put_act(at, a, b, &e, unit, count, round);
        else
            few_in_put(at, a, b, &e, unit, count, round);
        turn ^= 1u;
        unit += count;
    }
}

/* Pairs [e->row0, + n) and their ranks' weights. */
KFN void few_out_stage(struct at at, CON const struct experts_out_args *a, struct bufs b, THR const struct few_experts *e, SHM u32 *shm, u32 n, SHM float *weights)
{
    DEV const float *w = (DEV const float *)((DEV const u32 *)b.p[5] + a->w_at) + e->row0;
    if (at.id < n)
        weights[at.id] = w[at.id];
    if (a->source == SRC_ACT) {
        few_stage_acts(at, shm, e->n_pad, (DEV const u32 *)b.p[2] + (u64)e->row0 * (GPU_ACT_BYTES(a->n_in) / 4u), n);
        return;
    }
    few_stage_acts(at, shm, e->n_pad, (DEV const u32 *)0, 0u);
    for (u32 c = at.simd; c < n; c += GPU_SIMDS)
        stage_floats(at, shm + GPU_FEW_STAGE + c * e->region, 1u, 0u, a->n_in, (DEV const float *)b.p[1] + (u64)(e->row0 + c) * a->x_stride,
                     (DEV const float *)0, 0.0f, at.lane, 32u, (DEV u32 *)0);
}

/* A row's experts joined in rank order: acc = fma(w, y, acc) over its ranks' y, each the sum of its tiles. By a SIMD group, for its lanes' output lane % 16: eight ranks
 * at a time, lanes from 16 on the latter four. */
KFN float few_join(struct at at, THR const struct few_experts *e, SHM const float *sums, SHM const float *weights)
{
    u32 out = at.lane & 15u, last = e->n_used - 1u;
    float acc = 0.0f;
    NO_UNROLL
    for (u32 k0 = 0; k0 < e->n_used; k0 += 8u) {
        float y[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[8];
        SHM const float *part[4];
        UNROLL
        for (u32 k = 0; k < 8u; k++)
            w[k] = weights[least_u32(k0 + k, last)];
        UNROLL
        for (u32 k = 0; k < 4u; k++)
            part[k] = sums + least_u32(k0 + (at.lane >> 4) * 4u + k, last) * e->n_seg * 16u + out;
        NO_UNROLL
        for (u32 s = 0; s < e->n_seg; s++) {
            UNROLL
            for (u32 k = 0; k < 4u; k++)
                y[k] = y[k] + part[k][s * 16u];
        }
        UNROLL
        for (u32 k = 0; k < 8u; k++) {
            float v = EX_FLOAT(shuffle_from(at, EX_BITS(ex_flush(y[k % 4u])), out + k / 4u * 16u));
            acc = k0 + k < e->n_used ? EX_FMA(w[k], v, acc) : acc;
        }
    }
    return acc;
}

/* A lane's output of unit `item` of a round, and what stands there: the residual stream. */
struct few_joined {
    DEV float *x;
    u32 row;
    bool there;
    float before;
};

KFN void few_joined_of(struct at at, CON const struct experts_out_args *a, struct bufs b, THR const struct few_experts *e, u32 unit, u32 count, u32 item,
                       THR struct few_joined *j)
{
    u32 panel, out;
    j->row = split_u32(unit + least_u32(item, count - 1u), e->units, &panel);
    out = panel * GPU_PANEL + (at.lane & 15u);
    j->there = item < count && at.lane < 16u && out < a->n_out;
    j->x = (DEV float *)b.p[6] + (j->there ? (u64)j->row * a->res_stride + out : 0u);
    j->before = j->there ? *j->x : 0.0f;
}

KFN void k_few_out(struct at at, CON const struct few_out_args *args, struct bufs b, SHM u32 *shm)
{
    CON const struct experts_out_args *a = &args->out;
    const u32 cols = GPU_FEW_COLS(1u);
    DEV const u32 *route = (DEV const u32 *)b.p[5];
    u32 n_rows = a->rows ? a->rows : ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], from, to, rest, turn = 0, pairs = a->fused * a->n_used;
    bool fresh = true;
    struct few_experts e;
    few_experts_of(&e, a->type, a->n_in, a->n_out, a->n_used, (DEV const u8 *)b.p[3], (DEV const u8 *)0, route + a->ids_at);
    e.width = 1u;
    e.unit_tiles = e.n_used * e.n_seg;
    e.units = e.n_panels;
    u32 most = few_round(e.unit_tiles, 16u), of_cols = FEW_COLS(e.type, cols), own = few_own(at, of_cols);
    SHM float *weights = (SHM float *)(shm + GPU_FEW_STAGE + pairs * e.region), *sums = weights + ((pairs + 15u) & ~15u);
    share_units(at, n_rows * e.units, &from, &to);
    u32 row0 = split_u32(from, e.units, &rest);
    e.row0 = row0 * e.n_used;
    if (args->choose) { /* of what the launch before the one before this left: not yet in turn */
        SHM u32 *chosen = (SHM u32 *)(sums + 2u * GPU_FEW_SUMS(1u, e.unit_tiles));
        struct few_touched t = {row0, to > from ? split_u32(to - 1u, e.units, &rest) + 1u - row0 : 0u, 0u};
        w4 logits[ROUTE_PARTS];
        few_choose_ask(at, &args->route, (DEV const float *)b.p[7], &t, logits);
        few_choose_rows(at, &args->route, (DEV const float *)b.p[7], &t, logits, chosen);
        e.chosen = chosen;
    } else {
        IN_TURN(at);
    }
    NO_UNROLL
    for (u32 unit = from; unit < to;) {
        u32 count = least_u32(most, to - unit), n_tiles = count * e.unit_tiles, each = (n_tiles + GPU_SIMDS - 1u) / GPU_SIMDS;
        u32 k = at.simd * each, last = least_u32(k + each, n_tiles);
        SHM float *round = sums + turn * GPU_FEW_SUMS(1u, e.unit_tiles);
        NO_UNROLL
        do {
            u32 n = k < last ? least_u32(few_beside(of_cols), last - k) : 0u;
            struct few_place p;
            struct few_weights f;
            float v[4];
            struct few_from from_of;
            few_out_place(&e, unit, count, k + own, &p);
            few_spread(at, &e, of_cols, p.tile, &from_of);
            few_load(at, cols, e.type, n, &from_of, few_tile_at(&e, p.tile), &f);
            if (fresh) {
                IN_TURN(at);
                few_out_stage(at, a, b, &e, shm, (split_u32(to - 1u, e.units, &rest) + 1u) * e.n_used - e.row0, weights);
                BARRIER(at);
                fresh = false;
            }
            if (unit + count < to && k + n >= last)
                few_out_ahead(at, &e, unit + count, least_u32(most, to - unit - count));
            FOR_FEW_TYPE(e.type, few_tiles(at, type, cols, 1, &f, shm, p.x, p.seg, e.region, STAGE_STRIDE(e.n_pad), v))
            few_sums_put(at, of_cols, 1, n, v, round, k);
            k += few_beside(of_cols);
        } while (k < last);
        struct few_joined j;
        few_joined_of(at, a, b, &e, unit, count, at.simd, &j);
        BARRIER(at);
        NO_UNROLL
        for (u32 item = at.simd; item < count; item += GPU_SIMDS) { /* a unit a SIMD group */
            float v = few_join(at, &e, round + item * e.unit_tiles * 16u, weights + j.row * e.n_used - e.row0);
            if (j.there)
                *j.x = j.before + v;
            few_joined_of(at, a, b, &e, unit, count, item + GPU_SIMDS, &j);
        }
        turn ^= 1u;
        unit += count;
    }
}
