/* The router: rows of floats times an F32 matrix of few outputs (rule 5), its segments not yet added up. See args.h (router_args).
 *
 * There is little to multiply, so what a launch costs is waiting: as much as can is done at once. A unit is one tile of the matrix, 16 outputs
 * x 256 elements, for a tile of rows: each group reads 16 KB in one piece, and of each row only the tile's elements. Nothing waits for
 * the number of rows before the end, where there is one tile of them: as many are read as the class of the step may have. Who reads the logits
 * adds the segments (k_route.h).
 *
 *   shared memory, words: x[rows][260] | w[16][260]     260: eight rows of either begin 4 banks apart
 *
 * Weights: SIMD group s has elements 32 s .. 32 s + 31: lane l loads outputs 8 (j % 2) + 4 (l % 2).. of element 16 (j / 2) + l / 2, j = 0..3, sectors of
 * 32 bytes, so that the words, put down output by output, meet 32 banks. A group's first tile is put down before its
 * turn, and while it comes (REHEARSED) a few rows' norm and some steps of chains are gone through, with the norm's
 * weights for a row, for nothing.
 *
 * The norm (rule 6; at most 8 rows, PS_METAL: 64): SIMD group s sums up row s of the tile, normalises its elements of
 * the tile and puts those down. In Apple's shape a group's units follow each other, so that it has few tiles of rows,
 * and sums each row up once.
 *
 * Chains: thread t < 128 has outputs t / 2 % 8 and 8 more, rows (t % 2 + 2 (t / 16)) and 16, 32, 48 more (PS_METAL: a tile has 8 rows): neighbours read the same weights, and
 * those two apart the same row. Up to ROUTER_ALONE rows: thread 16 r + o has output o of row r, since it is one SIMD
 * group's loads that are waited for. 16 bytes feed 4 steps; the next ones are fetched during these. */

enum {
    ROUTER_WORDS = GPU_SEG + 4, /* between rows */
    ROUTER_PUT = 8,             /* loads of a thread in flight */
    ROUTER_ROWS_AT_ONCE = 16,   /* of the threads with chains */
    ROUTER_ALONE = 4            /* up to so many rows a thread has one output of one row */
};

struct router_unit {
    u32 panel, seg, segs;
    u32 row0, n_rows; /* n_rows may be read; fewer may be there */
    u32 rooted;       /* PS_METAL: row0 of the rows that `root` is of, this SIMD group's */
    float root;
};

/* ---- weights ---- */

KFN void router_fetch(struct at at, DEV const u8 *tile, THR w4 *v)
{
    tile += ((32u * at.simd + at.lane / 2u) * GPU_PANEL + at.lane % 2u * 4u) * 4u;
    UNROLL
    for (u32 j = 0; j < 4u; j++)
        v[j] = load16_once(tile + (j / 2u * 16u * GPU_PANEL + j % 2u * 8u) * 4u);
}

KFN void router_put(struct at at, THR const w4 *v, SHM u32 *w)
{
    w += at.lane % 2u * 4u * ROUTER_WORDS + 32u * at.simd + at.lane / 2u;
    UNROLL
    for (u32 j = 0; j < 4u; j++) {
        SHM u32 *to = w + j % 2u * 8u * ROUTER_WORDS + j / 2u * 16u;
        to[0] = v[j].x;
        to[ROUTER_WORDS] = v[j].y;
        to[2 * ROUTER_WORDS] = v[j].z;
        to[3 * ROUTER_WORDS] = v[j].w;
    }
}

/* ---- rows ---- */

/* What is not of a row of n elements becomes 0: k: of v.x. */
KFN w4 router_within(w4 v, u32 k, u32 n)
{
    v.x = k < n ? v.x : 0u;
    v.y = k + 1u < n ? v.y : 0u;
    v.z = k + 2u < n ? v.z : 0u;
    v.w = k + 3u < n ? v.w : 0u;
    return v;
}

/* put: loads of a thread in flight (a constant). Without branches: what is not there is read elsewhere, and not used. */
KFN void router_rows(struct at at, const u32 put, CON const struct router_args *a, DEV const float *x, THR const struct router_unit *u, SHM u32 *shm)
{
    u32 in = 4u * (at.id % 64u), k = u->seg * GPU_SEG + in;
    x += (u64)u->row0 * a->x_stride + (k < a->n_in ? k : 0u);
    NO_UNROLL
    for (u32 r0 = at.id / 64u; r0 < u->n_rows; r0 += 4u * put) {
        w4 v[ROUTER_PUT];
        UNROLL
        for (u32 i = 0; i < put; i++)
            v[i] = load16(x + (u64)least_u32(r0 + 4u * i, u->n_rows - 1u) * a->x_stride);
        UNROLL
        for (u32 i = 0; i < put; i++)
            if (r0 + 4u * i < u->n_rows)
                *(SHM w4 *)(shm + (r0 + 4u * i) * ROUTER_WORDS + in) = router_within(v[i], k, a->n_in);
    }
}

/* norm_of_row with twice its loads in flight: a row of 2048 waits once. */
KFN float router_root(struct at at, DEV const float *x, u32 n, float eps)
{
    float s = 0.0f;
    DEV const float *p = x + at.lane;
    u32 left = n > at.lane ? n - at.lane : 0u; /* elements from p on */
    NO_UNROLL
    for (; left > 2016u; left = left > 2048u ? left - 2048u : 0u, p += 2048) {
        float v[64];
        UNROLL
        for (u32 j = 0; j < 64u; j++)
            v[j] = p[32u * j];
        UNROLL
        for (u32 j = 0; j < 64u; j++)
            s = square_joins(v[j], s);
    }
    NO_UNROLL
    for (; left; left = left > 256u ? left - 256u : 0u, p += 256) {
        float v[8];
        UNROLL
        for (u32 j = 0; j < 8u; j++)
            v[j] = 32u * j < left ? p[32u * j] : 0.0f; /* joins no sum */
        UNROLL
        for (u32 j = 0; j < 8u; j++)
            s = square_joins(v[j], s);
    }
    return float_root(at, s, n, eps);
}

/* The norm's weights for the tile's elements. */
KFN void router_norm(struct at at, CON const struct router_args *a, DEV const float *norm, THR const struct router_unit *u, THR w4 *w)
{
    UNROLL
    for (u32 j = 0; j < 2u; j++) {
        u32 k = u->seg * GPU_SEG + 128u * j + 4u * at.lane;
        w[j] = load16(norm + (k < a->n_in ? k : 0u));
    }
}

KFN void router_normalised(struct at at, CON const struct router_args *a, DEV const float *x, u32 stride,
                           THR struct router_unit *u, THR const w4 *w, SHM u32 *shm)
{
    if (at.simd >= u->n_rows)
        return;
    x += (u64)(u->row0 + at.simd) * stride;
    w4 v[2];
    UNROLL
    for (u32 j = 0; j < 2u; j++) {
        u32 k = u->seg * GPU_SEG + 128u * j + 4u * at.lane;
        v[j] = load16(x + (k < a->n_in ? k : 0u));
    }
    if (!PS_METAL || u->rooted != u->row0)
        u->root = router_root(at, x, a->n_in, a->eps);
    u->rooted = u->row0;
    float r = u->root;
    UNROLL
    for (u32 j = 0; j < 2u; j++) {
        u32 in = 128u * j + 4u * at.lane, k = u->seg * GPU_SEG + in, n = a->n_in;
        w4 h; /* what fills up the row stays zero, also where r is a NaN */
        h.x = k < n ? float_normal(v[j].x, r, w[j].x) : 0u;
        h.y = k + 1u < n ? float_normal(v[j].y, r, w[j].y) : 0u;
        h.z = k + 2u < n ? float_normal(v[j].z, r, w[j].z) : 0u;
        h.w = k + 3u < n ? float_normal(v[j].w, r, w[j].w) : 0u;
        *(SHM w4 *)(shm + at.simd * ROUTER_WORDS + in) = h;
    }
}

/* The tile's blocks of a row by rule 1, by the SIMD groups that have no chains first. */
KFN void router_write_act(struct at at, CON const struct router_args *a, struct bufs b, THR const struct router_unit *u, u32 n_rows,
                          SHM const u32 *shm)
{
    u32 row = GPU_SIMDS - 1u - at.simd;
    if (row >= n_rows)
        return;
    DEV u8 *act = (DEV u8 *)b.p[5] + (u64)(u->row0 + row) * GPU_ACT_BYTES(a->n_in);
    UNROLL
    for (u32 j = 0; j < 2u; j++) {
        u32 in = 128u * j + 4u * at.lane;
        w4 x = load16(shm + row * ROUTER_WORDS + in);
        float v[4] = {EX_FLOAT(x.x), EX_FLOAT(x.y), EX_FLOAT(x.z), EX_FLOAT(x.w)};
        act_put_8(at, act, GPU_PAD(a->n_in), u->seg * GPU_SEG + in, v);
    }
}

/* ---- chains ---- */

/* Piece j of 4 steps: of n_o outputs, of n_r rows. */
KFN void router_step(const u32 n_o, const u32 n_r, const u32 j, SHM const u32 *w, SHM const u32 *x, THR w4 *wv,
                     THR w4 *xv)
{
    UNROLL
    for (u32 o = 0; o < n_o; o++)
        wv[n_o * j + o] = load16(w + 8u * o * ROUTER_WORDS + 4u * j);
    UNROLL
    for (u32 r = 0; r < n_r; r++)
        xv[j * n_r + r] = load16(x + r * ROUTER_ROWS_AT_ONCE * ROUTER_WORDS + 4u * j);
}

KFN void router_join(const u32 n_o, const u32 n_r, const u32 j, THR const w4 *wv, THR const w4 *xv, THR float *p)
{
    UNROLL
    for (u32 r = 0; r < n_r; r++)
        UNROLL
        for (u32 o = 0; o < n_o; o++)
            p[n_o * r + o] = float_join(wv[n_o * j + o], xv[j * n_r + r], p[n_o * r + o]);
}

/* ahead: 1, 2 or 4 pieces. Not a loop: nvcc would take its mark for that of the loop around it, and unroll that. */
KFN void router_steps(const u32 n_o, const u32 n_r, const u32 ahead, SHM const u32 *w, SHM const u32 *x, THR w4 *wv,
                      THR w4 *xv)
{
    router_step(n_o, n_r, 0, w, x, wv, xv);
    if (ahead > 1u)
        router_step(n_o, n_r, 1, w, x, wv, xv);
    if (ahead > 2u) {
        router_step(n_o, n_r, 2, w, x, wv, xv);
        router_step(n_o, n_r, 3, w, x, wv, xv);
    }
}

KFN void router_joins(const u32 n_o, const u32 n_r, const u32 ahead, THR const w4 *wv, THR const w4 *xv,
                      THR float *p)
{
    router_join(n_o, n_r, 0, wv, xv, p);
    if (ahead > 1u)
        router_join(n_o, n_r, 1, wv, xv, p);
    if (ahead > 2u) {
        router_join(n_o, n_r, 2, wv, xv, p);
        router_join(n_o, n_r, 3, wv, xv, p);
    }
}

/* n_o outputs and n_r rows a thread (constants); n_rows: that are there. length: 256, or less for nothing. */
KFN void router_chains(struct at at, const u32 n_o, const u32 n_r, CON const struct router_args *a, DEV float *parts,
                       THR const struct router_unit *u, u32 n_rows, u32 length, SHM const u32 *shm, SHM const u32 *w)
{
    u32 row = n_o == 1u ? at.id / 16u : at.id % 2u + at.id / 16u * 2u, out = n_o == 1u ? at.id % 16u : at.id / 2u % 8u;
    if (row >= ROUTER_ROWS_AT_ONCE || row >= n_rows)
        return;
    const u32 ahead = n_r == 4u ? 1u : n_r == 2u ? 2u : 4u;
    SHM const u32 *x = shm + row * ROUTER_WORDS;
    w4 wv[8], xv[4], w_next[8], x_next[4];
    float p[8];
    w += out * ROUTER_WORDS;
    UNROLL
    for (u32 i = 0; i < n_o * n_r; i++)
        p[i] = 0.0f;
    router_steps(n_o, n_r, ahead, w, x, wv, xv);
    NO_UNROLL
    for (u32 k = 0; k < length; k = again(k + 8u * ahead)) { /* again: not unrolled */
        router_steps(n_o, n_r, ahead, w + k + 4u * ahead, x + k + 4u * ahead, w_next, x_next);
        router_joins(n_o, n_r, ahead, wv, xv, p);
        u32 then = (k + 8u * ahead) % GPU_SEG; /* the first ones again at the end: no branch */
        router_steps(n_o, n_r, ahead, w + then, x + then, wv, xv);
        router_joins(n_o, n_r, ahead, w_next, x_next, p);
    }
    if (length < GPU_SEG)
        return;
    UNROLL
    for (u32 r = 0; r < n_r; r++) {
        u32 i = row + r * ROUTER_ROWS_AT_ONCE;
        DEV float *to = parts + ((u64)(u->row0 + i) * u->segs + u->seg) * a->n_out + u->panel * GPU_PANEL + out;
        UNROLL
        for (u32 o = 0; o < n_o; o++)
            if (i < n_rows)
                to[8u * o] = p[n_o * r + o];
    }
}

/* The rows, and their products. from: rows to normalise; put: the weights, `piece`, are still to be put down. */
KFN void router_rows_and_chains(struct at at, CON const struct router_args *a, struct bufs b, DEV const float *from,
                                u32 stride, THR struct router_unit *u, THR const w4 *norm, THR const w4 *piece,
                                u32 put, u32 n_rows, u32 length, SHM u32 *shm, SHM u32 *w)
{
    if (a->source == SRC_NORM)
        router_normalised(at, a, from, stride, u, norm, shm);
    else if (PS_METAL || a->rows <= 8u)
        router_rows(at, 2, a, (DEV const float *)b.p[1], u, shm);
    else if (a->rows <= 16u)
        router_rows(at, 4, a, (DEV const float *)b.p[1], u, shm);
    else
        router_rows(at, ROUTER_PUT, a, (DEV const float *)b.p[1], u, shm);
    if (put)
        router_put(at, piece, w);
    BARRIER(at);
    if (a->rows <= ROUTER_ALONE)
        router_chains(at, 1, 1, a, (DEV float *)b.p[4], u, n_rows, length, shm, w);
    else if (PS_METAL || a->rows <= 16u)
        router_chains(at, 2, 1, a, (DEV float *)b.p[4], u, n_rows, GPU_SEG, shm, w);
    else if (a->rows <= 64u)
        router_chains(at, 2, 2, a, (DEV float *)b.p[4], u, n_rows, GPU_SEG, shm, w);
    else
        router_chains(at, 2, 4, a, (DEV float *)b.p[4], u, n_rows, GPU_SEG, shm, w);
}

/* again: the group's shared memory holds the unit before. */
KFN void router_unit(struct at at, CON const struct router_args *a, struct bufs b, THR struct router_unit *u, u32 tile,
                     u32 again, SHM u32 *shm)
{
    u32 all = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which];
    u32 n_rows = least_u32(u->n_rows, all > u->row0 ? all - u->row0 : 0u);
    bool norm = a->source == SRC_NORM, rehearsed = REHEARSED && norm && !again && a->rows <= ROUTER_ALONE;
    SHM u32 *w = shm + GPU_ROUTER_ROWS(a->rows) * ROUTER_WORDS;
    w4 piece[4], weights[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    router_fetch(at, (DEV const u8 *)b.p[3] + (u64)tile * GPU_TILE_BYTES(GT_F32), piece);
    u->panel = split_u32(tile, u->segs, &u->seg);
    if (norm)
        router_norm(at, a, (DEV const float *)b.p[2], u, weights);
    if (again)
        BARRIER(at);
    NO_UNROLL
    for (u32 turn = rehearsed ? 0u : 1u; turn < 2u; turn++) { /* 0: the norm's weights for a row, short chains */
        if (turn && !again) {
            if (rehearsed)
                BARRIER(at); /* what was read in rehearsal is written now */
            router_put(at, piece, w);
            IN_TURN(at);
        }
        DEV const float *from = turn ? (DEV const float *)b.p[1] : (DEV const float *)b.p[2];
        router_rows_and_chains(at, a, b, from, turn ? a->x_stride : 0u, u, weights, piece, again, n_rows,
                               turn ? GPU_SEG : 32u, shm, w);
    }
    if (a->write_act && u->panel == 0u)
        router_write_act(at, a, b, u, n_rows, shm);
}

KFN void k_router(struct at at, CON const struct router_args *a, struct bufs b, SHM u32 *shm)
{
    struct router_unit u;
    u32 high = GPU_ROUTER_ROWS(a->rows), rows = a->rows;
    u.segs = GPU_PAD(a->n_in) / GPU_SEG;
    u32 tiles = a->n_out / GPU_PANEL * u.segs;
    if (rows > 64u) /* few are read without asking how many there are */
        rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which];
    u32 from = at.group, to = ~0u;
    if (PS_METAL)
        share_units(at, (rows + high - 1u) / high * tiles, &from, &to);
    u.rooted = ~0u;
    u.root = 0.0f;
    for (u32 unit = from; unit < to; unit += PS_METAL ? 1u : at.n_groups) { /* the same for the whole group */
        u32 tile = unit;
        u.row0 = unit < tiles ? 0u : split_u32(unit, tiles, &tile) * high;
        if (u.row0 >= rows)
            break;
        u.n_rows = least_u32(high, rows - u.row0);
        router_unit(at, a, b, &u, tile, unit != from, shm);
    }
    IN_TURN(at); /* a group without units too */
}
