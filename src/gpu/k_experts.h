/* The chosen experts of few rows. A tile (route lists) is up to 8 * n8 pairs (row, rank) of one expert; a unit is a panel of 16 outputs of a tile, and
 * a group takes a contiguous share of units. As in k_product.h the weights' tiles along the row are dealt to the 8 SIMD groups and their
 * sums meet in shared memory.
 *
 * experts_in: gate and up of a panel together, then silu(gate) * up. With at most 8 rows all rows are staged once and a lane picks its pairs'
 * columns; with more each tile's rows are staged when the tile is reached.
 * experts_out, fused: at most 8 rows, every pair a tile of its own: a unit is a panel of outputs for all pairs, joined in rank order into
 * the residual stream. Not fused: as experts_in with one matrix. */

struct experts_where {
    u32 n_pad, n_seg, n_cols; /* columns staged at a time */
    SHM u32 *stage;
    SHM float *sums;
    u32 turn;
    u32 expert, first, n_pairs; /* of the tile */
};

/* The tile's pairs, each SIMD group some, into columns 0... per: pairs that share an act row. */
KFN void experts_stage(struct at at, DEV const u32 *act, u32 act_words, DEV const u32 *pairs, u32 per, THR const struct experts_where *w)
{
    for (u32 c = at.simd; c < w->n_pairs; c += GPU_SIMDS) {
        u32 rest, row = split_u32(pairs[w->first + c], per, &rest);
        stage_act(w->stage, w->n_cols, c, w->n_pad, act + (u64)row * act_words, at.lane, 32u);
    }
}

/* A lane's columns when pair c of the tile is staged in column row_of(pair). */
KFN void experts_columns(struct at at, DEV const u32 *pairs, u32 per, THR const struct experts_where *w, THR struct columns *col)
{
    u32 g = at.lane >> 2, t = at.lane & 3u, rest;
    u32 mine = split_u32(pairs[w->first + least_u32(g, w->n_pairs - 1u)], per, &rest);
    col[0].q = mine * STAGE_STRIDE(w->n_pad) + t * 4u;
    col[0].s0 = 2u * split_u32(pairs[w->first + least_u32(2u * t, w->n_pairs - 1u)], per, &rest);
    col[0].s1 = 2u * split_u32(pairs[w->first + least_u32(2u * t + 1u, w->n_pairs - 1u)], per, &rest);
}

KFN void sums_put(struct at at, const u32 n8, SHM float *to, THR const float *v)
{
    UNROLL
    for (u32 j = 0; j < n8; j++) {
        SHM float *p = to + j * 128u + at.lane * 4u;
        p[0] = v[4u * j];
        p[1] = v[4u * j + 1u];
        p[2] = v[4u * j + 2u];
        p[3] = v[4u * j + 3u];
    }
}

KFN float sums_get(SHM const float *part, u32 n_seg, u32 step)
{
    float total = 0.0f;
    for (u32 s = 0; s < n_seg; s++)
        total = total + part[s * step];
    return total;
}

KFN float silu_times(float g, float u)
{
    float e = ex_exp(-EX_FLOAT(EX_BITS(g) & 0x7FFFFFFFu));
    float s = div_rn(g >= 0.0f ? 1.0f : e, 1.0f + e);
    return ex_flush(g * s * u);
}

/* Panels [p0, p1) of a tile's expert: n_mats matrices side by side (2: gate and up). times: y holds gate . h, by this same thread. */
KFN void experts_panels(struct at at, const u32 n8, const u32 type, const u32 n_mats, bool times, u32 n_out, u32 y_stride, DEV const u8 *w0, DEV const u8 *w1,
                        DEV float *y, DEV const u32 *pairs, THR struct experts_where *w, THR const struct columns *col, u32 p0, u32 p1)
{
    const u32 tile = GPU_TILE_BYTES(type);
    u32 most = n_mats == 2u ? 1u : product_batch(w->n_seg);
    u32 one = w->n_seg * n8 * 128u, half = most * n_mats * one;
    for (u32 p = p0; p < p1; p += most) {
        u32 n = least_u32(most, p1 - p), tiles = n * n_mats * w->n_seg; /* tile i: of gate, then of up */
        u64 from = (u64)p * w->n_seg * tile;
        SHM float *sums = w->sums + w->turn * half;
        u32 seg = at.simd;
        bool up = false;
        w4 r[TILE_REGS];
        while (seg >= w->n_seg) {
            seg -= w->n_seg;
            up = !up;
        }
        if (TILE_AHEAD(type) && at.simd < tiles)
            tile_load(at, type, (n_mats == 2u && up ? w1 + from + seg * tile : w0 + from + at.simd * tile), r);
        NO_UNROLL
        for (u32 i = at.simd; i < tiles; i += GPU_SIMDS) {
            w4 next[TILE_REGS];
            float v[16];
            u32 next_seg = seg + GPU_SIMDS;
            bool next_up = up;
            while (next_seg >= w->n_seg) {
                next_seg -= w->n_seg;
                next_up = !next_up;
            }
            if (!TILE_AHEAD(type))
                tile_load(at, type, (n_mats == 2u && up ? w1 + from + seg * tile : w0 + from + i * tile), r);
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_load(at, type, (n_mats == 2u && next_up ? w1 + from + next_seg * tile : w0 + from + (i + GPU_SIMDS) * tile), next);
            else if (p + most < p1)
                tile_prefetch(at, (n_mats == 2u && up ? w1 : w0) + from + (u64)n * w->n_seg * tile + seg * tile, tile);
            tile_sums(at, n8, type, r, w->stage, w->n_pad, w->n_cols, seg, col, v);
            sums_put(at, n8, sums + i * n8 * 128u, v);
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_take(type, r, next);
            seg = next_seg;
            up = next_up;
        }
        BARRIER(at);
        for (u32 i = at.thread; i < n * n8 * 128u; i += GPU_THREADS) {
            u32 lane = i / 4u & 31u, c = i & 3u, j = i / 128u & (n8 - 1u), panel = i / 128u / n8;
            u32 pair = 8u * j + 2u * (lane & 3u) + (c & 1u), out = (p + panel) * GPU_PANEL + (lane >> 2) + (c >> 1) * 8u;
            if (pair >= w->n_pairs || out >= n_out)
                continue;
            SHM const float *part = sums + panel * one + (i & (n8 * 128u - 1u));
            float total = sums_get(part, w->n_seg, n8 * 128u);
            if (n_mats == 2u)
                total = silu_times(total, sums_get(part + one, w->n_seg, n8 * 128u));
            DEV float *to = y + (u64)pairs[w->first + pair] * y_stride + out;
            *to = times ? silu_times(*to, total) : total;
        }
        w->turn ^= 1u;
    }
}

KFN void experts_in_few(struct at at, const u32 n8, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *act = (DEV const u32 *)b.p[1], *route = (DEV const u32 *)b.p[5];
    DEV const u32 *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    u32 n_rows = in[IN_ROWS + a->which], n_panels = panels_of(a->n_out), act_words = GPU_ACT_BYTES(a->n_in) / 4u;
    bool all = n8 == 1u && n_rows <= 8u;
    struct experts_where w;
    w.n_pad = GPU_PAD(a->n_in);
    w.n_seg = w.n_pad / GPU_SEG;
    w.n_cols = 8u * n8;
    w.stage = shm;
    w.sums = (SHM float *)(shm + STAGE_WORDS(8u * n8, w.n_pad));
    w.turn = 0;
    if (all)
        for (u32 c = at.simd; c < n_rows; c += GPU_SIMDS)
            stage_act(w.stage, w.n_cols, c, w.n_pad, act + (u64)c * act_words, at.lane, 32u);
    u32 unit, end;
    u64 gate_bytes = (u64)n_panels * w.n_seg * GPU_TILE_BYTES(a->type_gate), up_bytes = (u64)n_panels * w.n_seg * GPU_TILE_BYTES(a->type_up);
    share_units(at, tiles[0] * n_panels, &unit, &end);
    if (all)
        BARRIER(at);
    while (unit < end) {
        u32 p, tile = split_u32(unit, n_panels, &p), n = least_u32(n_panels - p, end - unit);
        struct columns col[4];
        w.expert = tiles[1u + 2u * tile];
        w.first = tiles[2u + 2u * tile] & 0xFFFFFFu;
        w.n_pairs = tiles[2u + 2u * tile] >> 24;
        if (all) {
            experts_columns(at, pairs, a->n_used, &w, col);
        } else {
            experts_stage(at, act, act_words, pairs, a->n_used, &w);
            columns_in_order(at, n8, w.n_pad, col);
            BARRIER(at);
        }
        DEV const u8 *gate = (DEV const u8 *)b.p[2] + w.expert * gate_bytes, *up = (DEV const u8 *)b.p[3] + w.expert * up_bytes;
        if (a->type_gate == a->type_up) {
            FOR_TYPE(a->type_gate, experts_panels(at, n8, type, 2, false, a->n_out, a->y_stride, gate, up, (DEV float *)b.p[4], pairs, &w, col, p, p + n))
        } else {
            for (u32 second = 0; second < 2u; second++)
                FOR_TYPE(second ? a->type_up : a->type_gate, experts_panels(at, n8, type, 1, second == 1u, a->n_out, a->y_stride, second ? up : gate, up,
                                                                            (DEV float *)b.p[4], pairs, &w, col, p, p + n))
        }
        unit += n;
    }
}

/* Panels of all pairs' outputs, joined by rows. */
KFN void experts_join(struct at at, const u32 type, CON const struct experts_out_args *a, struct bufs b, THR const struct experts_where *w, u32 n_rows,
                      u32 p0, u32 p1)
{
    DEV const u32 *route = (DEV const u32 *)b.p[5], *ids = route + a->ids_at;
    DEV const float *rank_w = (DEV const float *)(route + a->w_at);
    DEV float *x = (DEV float *)b.p[6];
    const u32 tile = GPU_TILE_BYTES(type);
    u32 n_panels = panels_of(a->n_out), n_pairs = n_rows * a->n_used, tiles = n_pairs * w->n_seg, half = tiles * 16u;
    u64 mat_bytes = (u64)n_panels * w->n_seg * tile;
    u32 turn = 0;
    for (u32 p = p0; p < p1; p++) {
        DEV const u8 *from = (DEV const u8 *)b.p[3] + (u64)p * w->n_seg * tile;
        SHM float *sums = w->sums + turn * half;
        u32 seg, pair = split_u32(at.simd, w->n_seg, &seg);
        w4 r[TILE_REGS];
        if (TILE_AHEAD(type) && at.simd < tiles)
            tile_load(at, type, from + ids[pair] * mat_bytes + seg * tile, r);
        NO_UNROLL
        for (u32 i = at.simd; i < tiles; i += GPU_SIMDS) {
            w4 next[TILE_REGS];
            float v[16];
            u32 next_seg, next_pair = split_u32(i + GPU_SIMDS, w->n_seg, &next_seg);
            if (!TILE_AHEAD(type))
                tile_load(at, type, from + ids[pair] * mat_bytes + seg * tile, r);
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_load(at, type, from + ids[next_pair] * mat_bytes + next_seg * tile, next);
            struct columns col[4];
            col[0].q = pair * STAGE_STRIDE(w->n_pad) + (at.lane & 3u) * 4u; /* all columns the same: column 0 is used */
            col[0].s0 = 2u * pair;
            col[0].s1 = 2u * pair;
            tile_sums(at, 1, type, r, w->stage, w->n_pad, w->n_cols, seg, col, v);
            if ((at.lane & 3u) == 0u) {
                sums[i * 16u + (at.lane >> 2)] = v[0];
                sums[i * 16u + (at.lane >> 2) + 8u] = v[2];
            }
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_take(type, r, next);
            seg = next_seg;
            pair = next_pair;
        }
        BARRIER(at);
        for (u32 i = at.thread; i < n_rows * 16u; i += GPU_THREADS) {
            u32 row = i / 16u, out = p * GPU_PANEL + (i & 15u);
            if (out >= a->n_out)
                continue;
            float acc = 0.0f;
            for (u32 k = row * a->n_used; k < (row + 1u) * a->n_used; k++)
                acc = EX_FMA(rank_w[k], ex_flush(sums_get(sums + k * w->n_seg * 16u + (i & 15u), w->n_seg, 16u)), acc);
            x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + acc;
        }
        turn ^= 1u;
    }
}

KFN void experts_out_few(struct at at, const u32 n8, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *act = (DEV const u32 *)b.p[2], *route = (DEV const u32 *)b.p[5];
    DEV const u32 *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    u32 n_rows = in[IN_ROWS + a->which], n_panels = panels_of(a->n_out), act_words = GPU_ACT_BYTES(a->n_in) / 4u, unit, end;
    struct experts_where w;
    w.n_pad = GPU_PAD(a->n_in);
    w.n_seg = w.n_pad / GPU_SEG;
    w.n_cols = a->fused ? n_rows * a->n_used : 8u * n8;
    w.stage = shm;
    w.sums = (SHM float *)(shm + STAGE_WORDS(w.n_cols, w.n_pad));
    w.turn = 0;
    if (a->fused) {
        for (u32 c = at.simd; c < w.n_cols; c += GPU_SIMDS) {
            if (a->source == SRC_ACT)
                stage_act(w.stage, w.n_cols, c, w.n_pad, act + (u64)c * act_words, at.lane, 32u);
            else
                stage_floats(at, w.stage, w.n_cols, c, a->n_in, (DEV const float *)b.p[1] + (u64)c * a->x_stride, (DEV const float *)0, 0.0f, at.lane,
                             32u, (DEV u32 *)0);
        }
        share_units(at, n_panels, &unit, &end);
        BARRIER(at);
        FOR_TYPE(a->type, experts_join(at, type, a, b, &w, n_rows, unit, end))
        return;
    }
    u64 mat_bytes = (u64)n_panels * w.n_seg * GPU_TILE_BYTES(a->type);
    share_units(at, tiles[0] * n_panels, &unit, &end);
    while (unit < end) {
        u32 p, tile = split_u32(unit, n_panels, &p), n = least_u32(n_panels - p, end - unit);
        struct columns col[4];
        w.expert = tiles[1u + 2u * tile];
        w.first = tiles[2u + 2u * tile] & 0xFFFFFFu;
        w.n_pairs = tiles[2u + 2u * tile] >> 24;
        for (u32 c = at.simd; c < w.n_pairs; c += GPU_SIMDS) {
            u32 rest, pair = split_u32(pairs[w.first + c], a->per, &rest);
            if (a->source == SRC_ACT)
                stage_act(w.stage, w.n_cols, c, w.n_pad, act + (u64)pair * act_words, at.lane, 32u);
            else
                stage_floats(at, w.stage, w.n_cols, c, a->n_in, (DEV const float *)b.p[1] + (u64)pair * a->x_stride, (DEV const float *)0, 0.0f,
                             at.lane, 32u, (DEV u32 *)0);
        }
        columns_in_order(at, n8, w.n_pad, col);
        BARRIER(at);
        DEV const u8 *down = (DEV const u8 *)b.p[3] + w.expert * mat_bytes;
        FOR_TYPE(a->type, experts_panels(at, n8, type, 1, false, a->n_out, a->y_stride, down, down, (DEV float *)b.p[4], pairs, &w, col, p, p + n))
        unit += n;
    }
}

KFN void k_experts_in_1(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    experts_in_few(at, 1, a, b, shm);
}

KFN void k_experts_in_2(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    experts_in_few(at, 2, a, b, shm);
}

KFN void k_experts_out_1(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    experts_out_few(at, 1, a, b, shm);
}

KFN void k_experts_out_2(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    experts_out_few(at, 2, a, b, shm);
}
