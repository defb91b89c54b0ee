/* Products of many rows: prompts. A unit is 8 panels (128 outputs), one to each SIMD group, for 8 * MANY_8 rows; the group walks along the row
 * tile by tile. While one tile is multiplied the next act rows are fetched into registers and then put into the other half of shared memory, and the
 * next weights into the ring: one barrier a tile. Sums stay in registers from the first tile to the last.
 *
 *   shared memory: ring | 2 x staged rows of one tile (k_stage.h, n_pad = 256) | row of each column
 *
 * Neighbouring groups work on the same panels for other rows at the same time, so that weights come from memory once and from the L2 cache afterwards. */

enum { MANY_8 = 4, MANY_COLS = 8 * MANY_8, MANY_STAGE = STAGE_WORDS(MANY_COLS, 256) };

struct many_fetched { /* a thread's part of the staged rows of a tile */
    w4 q[MANY_8 / 2];     /* 16 of 16 pieces of 16 bytes of a column, spread over 256 threads */
    w2 s[MANY_8 / 4];     /* scale and sum of a block and column */
};

KFN void many_fetch(struct at at, DEV const u32 *act, u32 act_words, u32 n_pad, SHM const u32 *rows, u32 seg, THR struct many_fetched *f)
{
    UNROLL
    for (u32 k = 0; k < MANY_8 / 2u; k++) {
        u32 i = at.id + GPU_THREADS * k;
        f->q[k] = load16(act + (u64)rows[i / 16u] * act_words + seg * 64u + i % 16u * 4u);
    }
    UNROLL
    for (u32 k = 0; k < MANY_8 / 4u; k++) {
        u32 i = at.id + GPU_THREADS * k;
        DEV const u32 *d = act + (u64)rows[i / 8u] * act_words + n_pad / 4u + seg * 8u + i % 8u;
        f->s[k].x = d[0];
        f->s[k].y = d[n_pad / 32u];
    }
}

KFN void many_put(struct at at, SHM u32 *stage, THR const struct many_fetched *f)
{
    UNROLL
    for (u32 k = 0; k < MANY_8 / 2u; k++) {
        u32 i = at.id + GPU_THREADS * k;
        SHM u32 *q = stage + i / 16u * STAGE_STRIDE(256u) + i % 16u * 4u;
        q[0] = f->q[k].x;
        q[1] = f->q[k].y;
        q[2] = f->q[k].z;
        q[3] = f->q[k].w;
    }
    UNROLL
    for (u32 k = 0; k < MANY_8 / 4u; k++) {
        u32 i = at.id + GPU_THREADS * k;
        SHM u32 *s = stage + MANY_COLS * STAGE_STRIDE(256u) + i % 8u * 2u * MANY_COLS + i / 8u * 2u;
        s[0] = f->s[k].x;
        s[1] = f->s[k].y;
    }
}

/* total[4 * MANY_8] = a panel's outputs for all staged columns. rows: act row of each column, in shared memory, filled before a barrier. */
KFN void many_product(struct at at, u32 type_of, DEV const u8 *panel, DEV const u32 *act, u32 n_in, SHM u32 *ring, SHM const u32 *rows, THR float *total)
{
    const u32 tile = GPU_TILE_BYTES(type_of);
    SHM u32 *stage = ring + RING_WORDS;
    u32 n_pad = GPU_PAD(n_in), n_seg = n_pad / GPU_SEG, act_words = GPU_ACT_BYTES(n_in) / 4u, slots = ring_slots(tile), slot = 0;
    struct columns col[MANY_8];
    struct many_fetched f;
    columns_in_order(at, MANY_8, 256, col);
    UNROLL
    for (u32 i = 0; i < 4u * MANY_8; i++)
        total[i] = 0.0f;
    for (u32 i = 0; i < slots && i < n_seg; i++)
        ring_fetch(at, ring, i, RING_MARKS + i * tile / 4u, panel + i * tile, tile);
    many_fetch(at, act, act_words, n_pad, rows, 0, &f);
    many_put(at, stage, &f);
    BARRIER(at);
    NO_UNROLL
    for (u32 seg = 0; seg < n_seg; seg++) {
        float v[4 * MANY_8];
        if (seg + 1u < n_seg)
            many_fetch(at, act, act_words, n_pad, rows, seg + 1u, &f);
        ring_take(at, ring, slot);
        WGT const u32 *w = ring_tile(at, ring, slot * tile / 4u, 1u);
        FOR_TYPE(type_of, tile_sums(at, MANY_8, type, w, stage + seg % 2u * MANY_STAGE, 256, MANY_COLS, 0, col, v))
        SIMD_BARRIER(at);
        if (seg + slots < n_seg)
            ring_fetch(at, ring, slot, RING_MARKS + slot * tile / 4u, panel + (seg + slots) * tile, tile);
        slot = slot + 1u == slots ? 0u : slot + 1u;
        UNROLL
        for (u32 i = 0; i < 4u * MANY_8; i++)
            total[i] = total[i] + v[i];
        if (seg + 1u < n_seg)
            many_put(at, stage + (seg + 1u) % 2u * MANY_STAGE, &f);
        BARRIER(at);
    }
}

/* Column and output of a lane's sum i (a constant). */
KFN u32 many_col(struct at at, const u32 i)
{
    return i / 4u * 8u + 2u * (at.lane & 3u) + (i & 1u);
}

KFN u32 many_out(struct at at, u32 panel, const u32 i)
{
    return panel * GPU_PANEL + (at.lane >> 2) + (i >> 1 & 1u) * 8u;
}

/* Units that a matrix's panels make. */
KFN u32 many_blocks(u32 n_out)
{
    return (panels_of(n_out) + GPU_SIMDS - 1u) / GPU_SIMDS;
}

KFN void k_product_many(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *act = (DEV const u32 *)b.p[1];
    DEV float *x = (DEV float *)b.p[12];
    SHM u32 *rows = shm + RING_WORDS + 2u * MANY_STAGE;
    u32 n_rows = in[IN_ROWS + a->which], row_tiles = (n_rows + MANY_COLS - 1u) / MANY_COLS, n_seg = GPU_PAD(a->n_in) / GPU_SEG;
    u32 ends[3];
    ends[0] = many_blocks(a->n_out[0]);
    ends[1] = ends[0] + (a->n_mats > 1u ? many_blocks(a->n_out[1]) : 0u);
    ends[2] = ends[1] + (a->n_mats > 2u ? many_blocks(a->n_out[2]) : 0u);
    for (u32 unit = at.group; unit < ends[2] * row_tiles; unit += at.n_groups) {
        u32 tile, block = split_u32(unit, row_tiles, &tile);
        u32 m = block < ends[0] ? 0u : block < ends[1] ? 1u : 2u, row0 = tile * MANY_COLS;
        block -= m == 0u ? 0u : m == 1u ? ends[0] : ends[1];
        u32 n_out = m == 0u ? a->n_out[0] : m == 1u ? a->n_out[1] : a->n_out[2], t = m == 0u ? a->type[0] : m == 1u ? a->type[1] : a->type[2];
        u32 stride = m == 0u ? a->y_stride[0] : m == 1u ? a->y_stride[1] : a->y_stride[2];
        u32 has_bias = m == 0u ? a->has_bias[0] : m == 1u ? a->has_bias[1] : a->has_bias[2];
        DEV const u8 *w = (DEV const u8 *)(m == 0u ? b.p[3] : m == 1u ? b.p[4] : b.p[5]);
        DEV const float *bias = (DEV const float *)(m == 0u ? b.p[6] : m == 1u ? b.p[7] : b.p[8]);
        DEV float *y = (DEV float *)(m == 0u ? b.p[9] : m == 1u ? b.p[10] : b.p[11]);
        u32 panel = block * GPU_SIMDS + at.simd, mine = least_u32(panel, panels_of(n_out) - 1u); /* one too many works on the last, for nothing */
        float total[4 * MANY_8];
        if (at.id < MANY_COLS)
            rows[at.id] = least_u32(row0 + at.id, n_rows - 1u);
        BARRIER(at);
        many_product(at, t, w + (u64)mine * n_seg * GPU_TILE_BYTES(t), act, a->n_in, shm, rows, total);
        UNROLL
        for (u32 i = 0; i < 4u * MANY_8; i++) {
            u32 row = row0 + many_col(at, i), out = many_out(at, panel, i);
            if (row >= n_rows || out >= n_out)
                continue;
            float v = total[i];
            if (has_bias)
                v = v + bias[out];
            y[(u64)row * stride + out] = v;
            if (a->add && m == 0u)
                x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + v;
        }
    }
}

/* A unit of experts: 8 panels of a tile of pairs, a panel to each SIMD group. One too many works on the last, for nothing. */
struct many_unit {
    u32 first, n, panel; /* pairs; the SIMD group's panel */
    u64 tiles;           /* weight tiles before that panel's first */
};

/* rows: act rows of the tile's pairs, of which `per` share one; behind the barrier they are there. */
KFN void many_unit_of(struct at at, DEV const u32 *tiles, DEV const u32 *pairs, u32 per, u32 n_in, u32 n_out, u32 unit, SHM u32 *rows, THR struct many_unit *u)
{
    u32 block, tile = split_u32(unit, many_blocks(n_out), &block), word = tiles[2u + 2u * tile], rest;
    u->first = word & 0xFFFFFFu;
    u->n = word >> 24;
    u->panel = block * GPU_SIMDS + at.simd;
    u->tiles = ((u64)tiles[1u + 2u * tile] * panels_of(n_out) + least_u32(u->panel, panels_of(n_out) - 1u)) * (GPU_PAD(n_in) / GPU_SEG);
    if (at.id < MANY_COLS)
        rows[at.id] = split_u32(pairs[u->first + least_u32(at.id, u->n - 1u)], per, &rest);
    BARRIER(at);
}

KFN void k_experts_in_many(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *act = (DEV const u32 *)b.p[1], *route = (DEV const u32 *)b.p[5], *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    DEV float *y = (DEV float *)b.p[4];
    SHM u32 *rows = shm + RING_WORDS + 2u * MANY_STAGE;
    for (u32 unit = at.group; unit < tiles[0] * many_blocks(a->n_out); unit += at.n_groups) {
        struct many_unit u;
        float gate[4 * MANY_8], up[4 * MANY_8];
        many_unit_of(at, tiles, pairs, a->n_used, a->n_in, a->n_out, unit, rows, &u);
        many_product(at, a->type_gate, (DEV const u8 *)b.p[2] + u.tiles * GPU_TILE_BYTES(a->type_gate), act, a->n_in, shm, rows, gate);
        many_product(at, a->type_up, (DEV const u8 *)b.p[3] + u.tiles * GPU_TILE_BYTES(a->type_up), act, a->n_in, shm, rows, up);
        UNROLL
        for (u32 i = 0; i < 4u * MANY_8; i++) {
            u32 c = many_col(at, i), out = many_out(at, u.panel, i);
            if (c < u.n && out < a->n_out)
                y[(u64)pairs[u.first + c] * a->y_stride + out] = silu_times(gate[i], up[i]);
        }
    }
}

KFN void k_experts_out_many(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *act = (DEV const u32 *)b.p[2], *route = (DEV const u32 *)b.p[5], *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    DEV float *y = (DEV float *)b.p[4];
    SHM u32 *rows = shm + RING_WORDS + 2u * MANY_STAGE;
    for (u32 unit = at.group; unit < tiles[0] * many_blocks(a->n_out); unit += at.n_groups) {
        struct many_unit u;
        float total[4 * MANY_8];
        many_unit_of(at, tiles, pairs, a->per, a->n_in, a->n_out, unit, rows, &u);
        many_product(at, a->type, (DEV const u8 *)b.p[3] + u.tiles * GPU_TILE_BYTES(a->type), act, a->n_in, shm, rows, total);
        UNROLL
        for (u32 i = 0; i < 4u * MANY_8; i++) {
            u32 c = many_col(at, i), out = many_out(at, u.panel, i);
            if (c < u.n && out < a->n_out)
                y[(u64)pairs[u.first + c] * a->y_stride + out] = total[i];
        }
    }
}
