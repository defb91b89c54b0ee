/* One to three products of the same rows, few of them: product_1, _2, _4 take 8, 16, 32 rows at a time.
 *
 * A group takes a contiguous share of units; a unit is a panel of 16 outputs for one tile of rows. The tile's rows are staged once
 * (k_stage.h); the tiles of the panel's weights along the row, `n_seg` of them, are dealt to the 8 SIMD groups, each tile read once,
 * straight into registers, the next one while this one is worked on. Sums of tiles meet in shared memory and are added left to right.
 *
 *   shared memory: staged rows | sums [2][batch panels][n_seg][n8][32 lanes][4]
 *
 * Short rows leave SIMD groups idle, so several panels make a batch: enough for 8 tiles. With 32 rows there is room for one batch of sums. */

/* Panels in a batch. */
KFN u32 product_batch(u32 n_seg)
{
    return n_seg >= 8u ? 1u : n_seg == 1u || n_seg == 3u || n_seg >= 5u ? 8u : n_seg == 2u ? 4u : 2u;
}

struct product_where { /* of the share being worked on */
    u32 row0, n_rows;      /* rows of the tile */
    u32 n_pad, n_seg;
    SHM u32 *stage;
    SHM float *sums;
    u32 turn;              /* which half of sums comes next */
};

/* Sums of tiles become outputs: panels [p0, p0 + n) of matrix m. */
KFN void product_end(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, THR const struct product_where *w,
                     SHM const float *sums, u32 m, u32 p0, u32 n)
{
    u32 n_out = m == 0u ? a->n_out[0] : m == 1u ? a->n_out[1] : a->n_out[2];
    u32 stride = m == 0u ? a->y_stride[0] : m == 1u ? a->y_stride[1] : a->y_stride[2];
    u32 has_bias = m == 0u ? a->has_bias[0] : m == 1u ? a->has_bias[1] : a->has_bias[2];
    DEV float *y = (DEV float *)(m == 0u ? b.p[9] : m == 1u ? b.p[10] : b.p[11]);
    DEV const float *bias = (DEV const float *)(m == 0u ? b.p[6] : m == 1u ? b.p[7] : b.p[8]);
    DEV float *x = (DEV float *)b.p[12];
    for (u32 i = at.thread; i < n * n8 * 128u; i += GPU_THREADS) {
        u32 lane = i / 4u & 31u, c = i & 3u, j = i / 128u & (n8 - 1u), panel = i / 128u / n8;
        u32 col = 8u * j + 2u * (lane & 3u) + (c & 1u), out = (p0 + panel) * GPU_PANEL + (lane >> 2) + (c >> 1) * 8u;
        if (col >= w->n_rows || out >= n_out)
            continue;
        SHM const float *part = sums + panel * w->n_seg * n8 * 128u + (i & (n8 * 128u - 1u));
        float total = 0.0f;
        for (u32 s = 0; s < w->n_seg; s++)
            total = total + part[s * n8 * 128u];
        if (has_bias)
            total = total + bias[out];
        u32 row = w->row0 + col;
        y[(u64)row * stride + out] = total;
        if (a->add && m == 0u)
            x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + total;
    }
}

/* Panels [p0, p1) of matrix m, whose weights begin at `weights`. */
KFN void product_panels(struct at at, const u32 n8, const u32 type, CON const struct product_args *a, struct bufs b,
                        THR struct product_where *w, DEV const u8 *weights, u32 m, u32 p0, u32 p1)
{
    const u32 tile = GPU_TILE_BYTES(type);
    u32 most = product_batch(w->n_seg), half = most * w->n_seg * n8 * 128u;
    struct columns col[4];
    columns_in_order(at, n8, w->n_pad, col);
    for (u32 p = p0; p < p1; p += most) {
        u32 n = least_u32(most, p1 - p), tiles = n * w->n_seg;
        DEV const u8 *from = weights + (u64)p * w->n_seg * tile;
        SHM float *sums = w->sums + (n8 < 4u ? w->turn * half : 0u);
        u32 seg = at.simd;
        w4 r[TILE_REGS];
        while (seg >= w->n_seg)
            seg -= w->n_seg;
        if (TILE_AHEAD(type) && at.simd < tiles)
            tile_load(at, type, from + at.simd * tile, r);
        NO_UNROLL
        for (u32 i = at.simd; i < tiles; i += GPU_SIMDS) {
            w4 next[TILE_REGS];
            float v[16];
            if (!TILE_AHEAD(type))
                tile_load(at, type, from + i * tile, r);
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_load(at, type, from + (i + GPU_SIMDS) * tile, next);
            else if (p + most < p1)
                tile_prefetch(at, from + (u64)tiles * tile + at.simd * tile, tile);
            tile_sums(at, n8, type, r, w->stage, w->n_pad, 8u * n8, seg, col, v);
            UNROLL
            for (u32 j = 0; j < n8; j++) {
                SHM float *to = sums + (i * n8 + j) * 128u + at.lane * 4u;
                to[0] = v[4u * j];
                to[1] = v[4u * j + 1u];
                to[2] = v[4u * j + 2u];
                to[3] = v[4u * j + 3u];
            }
            if (TILE_AHEAD(type) && i + GPU_SIMDS < tiles)
                tile_take(type, r, next);
            seg += GPU_SIMDS;
            while (seg >= w->n_seg)
                seg -= w->n_seg;
        }
        BARRIER(at);
        product_end(at, n8, a, b, w, sums, m, p, n);
        if (n8 == 4u)
            BARRIER(at);
        w->turn ^= 1u;
    }
}

/* The rows of a tile into shared memory. */
KFN void product_stage(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, THR const struct product_where *w)
{
    u32 cols = 8u * n8;
    if (a->source == SRC_ACT) {
        DEV const u32 *act = (DEV const u32 *)b.p[1];
        for (u32 c = at.simd; c < w->n_rows; c += GPU_SIMDS)
            stage_act(w->stage, cols, c, w->n_pad, act + (u64)(w->row0 + c) * (GPU_ACT_BYTES(a->n_in) / 4u), at.lane, 32u);
        return;
    }
    DEV const float *x = (DEV const float *)b.p[1];
    DEV const float *norm = a->source == SRC_NORM ? (DEV const float *)b.p[2] : (DEV const float *)0;
    bool write = a->write_act && at.group == 0u;
    if (w->n_rows == 1u) { /* the whole group for the one row */
        DEV const float *row = x + (u64)w->row0 * a->x_stride;
        float r = norm ? norm_of_row(at, row, a->n_in, a->eps) : 0.0f;
        stage_floats(at, w->stage, cols, 0, a->n_in, row, norm, r, at.thread, GPU_THREADS,
                     write ? (DEV u32 *)b.p[13] + (u64)w->row0 * (GPU_ACT_BYTES(a->n_in) / 4u) : (DEV u32 *)0);
        return;
    }
    for (u32 c = at.simd; c < w->n_rows; c += GPU_SIMDS) {
        DEV const float *row = x + (u64)(w->row0 + c) * a->x_stride;
        float r = norm ? norm_of_row(at, row, a->n_in, a->eps) : 0.0f;
        stage_floats(at, w->stage, cols, c, a->n_in, row, norm, r, at.lane, 32u,
                     write ? (DEV u32 *)b.p[13] + (u64)(w->row0 + c) * (GPU_ACT_BYTES(a->n_in) / 4u) : (DEV u32 *)0);
    }
}

KFN u32 panels_of(u32 n_out)
{
    return (n_out + GPU_PANEL - 1u) / GPU_PANEL;
}

KFN void product_few(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 all_rows = in[IN_ROWS + a->which], n_pad = GPU_PAD(a->n_in);
    u32 ends[3];
    ends[0] = panels_of(a->n_out[0]);
    ends[1] = ends[0] + (a->n_mats > 1u ? panels_of(a->n_out[1]) : 0u);
    ends[2] = ends[1] + (a->n_mats > 2u ? panels_of(a->n_out[2]) : 0u);
    struct product_where w;
    w.n_pad = n_pad;
    w.n_seg = n_pad / GPU_SEG;
    w.stage = shm;
    w.sums = (SHM float *)(shm + STAGE_WORDS(8u * n8, n_pad));
    w.turn = 0;
    u32 unit, end, tiles = (all_rows + 8u * n8 - 1u) / (8u * n8), done = ~0u;
    share_units(at, tiles * ends[2], &unit, &end);
    while (unit < end) { /* a matrix's panels of one tile of rows at a time; the same for the whole group */
        u32 p, tile = split_u32(unit, ends[2], &p);
        u32 m = p < ends[0] ? 0u : p < ends[1] ? 1u : 2u;
        u32 first = m == 0u ? 0u : m == 1u ? ends[0] : ends[1], last = m == 0u ? ends[0] : m == 1u ? ends[1] : ends[2];
        u32 n = least_u32(last - p, end - unit), t = m == 0u ? a->type[0] : m == 1u ? a->type[1] : a->type[2];
        DEV const u8 *weights = (DEV const u8 *)(m == 0u ? b.p[3] : m == 1u ? b.p[4] : b.p[5]);
        if (tile != done) {
            u32 bytes = GPU_TILE_BYTES(t);
            tile_prefetch(at, weights + ((u64)(p - first) * w.n_seg + least_u32(at.simd, w.n_seg - 1u)) * bytes, bytes);
            w.row0 = tile * 8u * n8;
            w.n_rows = least_u32(8u * n8, all_rows - w.row0);
            product_stage(at, n8, a, b, &w);
            BARRIER(at);
            done = tile;
        }
        FOR_TYPE(t, product_panels(at, n8, type, a, b, &w, weights, m, p - first, p - first + n))
        unit += n;
    }
}

KFN void k_product_1(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    product_few(at, 1, a, b, shm);
}

KFN void k_product_2(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    product_few(at, 2, a, b, shm);
}

KFN void k_product_4(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    product_few(at, 4, a, b, shm);
}
