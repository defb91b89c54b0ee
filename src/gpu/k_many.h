/* Products of many rows: prompts. A unit is 8 panels (128 outputs), one to each SIMD group, for up to 8 * MANY_8 rows, its columns; the group walks along
 * the row tile by tile. While one tile is multiplied the next act rows are copied into the other half of the stage and the next weights into the SIMD
 * group's ring: one barrier a tile. Sums stay in registers from the first tile to the last.
 *
 *   shared memory: for each SIMD group its ring (marks, slots; none in a PS_METAL build) | 2 x stage: the columns' integers of one tile, as k_stage.h has
 *                  them, scales [4 pairs of blocks][columns][2], then as large those times the sums of integers | row of each column |
 *                  experts: the list's tiles in order, octets of each, how many of so many
 *
 * What a weight costs beside the matrix tiles (fetching, unpacking) is shared by all columns, so they are as many as registers hold; how many octets
 * (8 columns) there are is told in the machine code, a loop for each number of them: an expert has the rows that it has. Neighbouring groups work on the
 * same panels for other rows at the same time, so that weights come from memory once and from the L2 cache afterwards. */

enum {
    MANY_COLS = GPU_MANY_COLS,
    MANY_8 = MANY_COLS / 8,
    MANY_PAIR = 2 * MANY_COLS + 8, /* words between pairs of blocks: four of them in different banks */
    MANY_SUMS = 4 * MANY_8,        /* a lane's of a panel */
    MANY_STAGE = GPU_MANY_STAGE,
    MANY_OWN = PS_METAL ? 0 : RING_MARKS + GPU_MANY_RING / 4, /* words of a SIMD group's ring */
    MANY_OWN_IN = PS_METAL ? 0 : RING_MARKS + GPU_MANY_RING_IN / 4 /* experts_in's */
};

/* ---- act rows ---- */

/* Where a thread's part of the columns begins, in words: pieces of 16 bytes of every 16th column; scales of two blocks of one column, these on their way. */
struct many_from {
    u32 q[MANY_8 / 2], s;
    w2 d, sum;
};

KFN void many_from_rows(struct at at, SHM const u32 *rows, u32 n_in, const u32 n8, THR struct many_from *f)
{
    u32 words = GPU_ACT_BYTES(n_in) / 4u;
    UNROLL
    for (u32 k = 0; 2u * k < n8; k++)
        f->q[k] = rows[(at.id >> 4) + 16u * k] * words + (at.id & 15u) * 4u;
    f->s = rows[at.id >> 2 & (MANY_COLS - 1u)] * words + GPU_PAD(n_in) / 4u + (at.id & 3u) * 2u;
    f->d.x = f->d.y = f->sum.x = f->sum.y = 0u;
}

/* Integers of tile seg on their way into the stage, scales into registers. */
KFN void many_fetch(struct at at, const u32 type, const u32 n8, DEV const u32 *act, u32 n_in, u32 seg, SHM u32 *stage, THR struct many_from *f)
{
    DEV const u32 *q = act + seg * 64u, *d = act + seg * 8u;
    UNROLL
    for (u32 k = 0; 2u * k < n8; k++)
        if (2u * k + 2u <= n8 || at.id < GPU_THREADS / 2u)
            copy16(stage + ((at.id >> 4) + 16u * k) * STAGE_STRIDE(256u) + (at.id & 15u) * 4u, q + f->q[k]);
    if (at.id < 32u * n8) {
        f->d = load8(d + f->s);
        if (TYPE_HAS_LOW(type))
            f->sum = load8(d + GPU_PAD(n_in) / 32u + f->s);
    }
}

/* They are there, behind a barrier. */
KFN void many_put(struct at at, const u32 type, const u32 n8, SHM u32 *stage, THR const struct many_from *f)
{
    if (at.id < 32u * n8) {
        SHM u32 *to = stage + MANY_COLS * STAGE_STRIDE(256u) + (at.id & 3u) * MANY_PAIR + (at.id >> 2) * 2u;
        *(SHM w2 *)to = f->d;
        if (TYPE_HAS_LOW(type)) {
            to[4u * MANY_PAIR] = EX_BITS(EX_FLOAT(f->d.x) * (float)(i32)f->sum.x);
            to[4u * MANY_PAIR + 1u] = EX_BITS(EX_FLOAT(f->d.y) * (float)(i32)f->sum.y);
        }
    }
    copies_done();
}

/* ---- a tile ---- */

/* Two blocks of weights, of rows g and g + 8. */
struct many_pair {
    u32 a[2][4];             /* [block]: as a matrix tile wants them */
    float d[2][2], e[2][2];  /* [block][row]: dense_scale */
};

/* Integers without offset: q4_0 16 times as large (tile_words_flipped), q5_0 signed. */
KFN void many_words(struct at at, const u32 type, WGT const u32 *w, u32 two, u32 flip, THR struct many_pair *t)
{
    struct tile_pair as;
    as.m[0] = as.m[1] = 0u; /* types without a second sum have none */
    if (type == GT_Q4_0) {
        tile_words_flipped(at, GT_Q4_0, w, two, flip, t->a);
    } else {
        tile_words(type, w, at.lane >> 2, two, at.lane & 3u, t->a);
    }
    if (type == GT_Q5_0) {
        UNROLL
        for (u32 i = 0; i < 8u; i++) { /* 0 .. 31 less 16 */
            u32 y = t->a[i / 4u][i % 4u] ^ 0x10101010u;
            t->a[i / 4u][i % 4u] = y + (y & 0x10101010u) * 14u;
        }
    }
    tile_scales(at, type, w, two, &as);
    UNROLL
    for (u32 i = 0; i < 4u; i++)
        dense_scale(type, &as, i / 2u, i % 2u, &t->d[i / 2u][i % 2u], &t->e[i / 2u][i % 2u]);
}

/* Those blocks join the sums of eight columns. q: the lane's words of the first column that it brings to the tile, s: scales of its sums' columns. */
KFN void many_octet(struct at at, const u32 type, const u32 tall, THR const struct many_pair *t, SHM const u32 *q, SHM const u32 *s, THR const i32 *from, THR float *p, THR float *low)
{
    w4 both[TILE_COLS], dx = load16(s), sum = dx;
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++)
        both[i] = load16(q + i * STAGE_STRIDE(256u));
    if (TYPE_HAS_LOW(type))
        sum = load16(s + 4u * MANY_PAIR);
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 b[2 * TILE_COLS];
        columns_b(both, k, b);
        UNROLL
        for (u32 m = 0; m < tall; m++) {
            i32 c[4], h[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
            if (type == GT_Q6_K) {
                c[0] = c[1] = c[2] = c[3] = MAGIC_BITS;
                tile_16(at, c, t[m].a[k][0], t[m].a[k][1], b);
                tile_16(at, h, t[m].a[k][2], t[m].a[k][3], b + TILE_COLS);
            } else if (TYPE_IS_SIGNED(type)) {
                tile_s_from(at, c, t[m].a[k], b, from);
            } else {
                tile_u_from(at, c, t[m].a[k], b, from);
            }
            UNROLL
            for (u32 i = 0; i < 4u; i++)
                dense_add(type, type == GT_Q4_0 ? 0.0625f : 1.0f, t[m].d[k][i / 2u], t[m].e[k][i / 2u], c[i], h[i],
                          EX_FLOAT(i % 2u ? (k ? dx.w : dx.z) : (k ? dx.y : dx.x)),
                          EX_FLOAT(i % 2u ? (k ? sum.w : sum.z) : (k ? sum.y : sum.x)), &p[m * MANY_SUMS + i], &low[m * MANY_SUMS + i]);
        }
    }
}

/* total += the sums of a tile, w, and where tall is 2 of w1, for n8 octets from the one whose words and scales are at q and s. The usual type's code is without a
 * loop. */
KFN void many_octets(struct at at, const u32 n8, const u32 type, const u32 tall, WGT const u32 *w, WGT const u32 *w1, SHM const u32 *q, SHM const u32 *s, THR const i32 *from, u32 flip,
                     THR float *total)
{
    const u32 step = type == GT_Q4_0 && tall == 1u ? 4u : 1u;
    float p[2 * MANY_SUMS], low[2 * MANY_SUMS];
    UNROLL
    for (u32 m = 0; m < tall; m++)
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++)
            p[m * MANY_SUMS + i] = low[m * MANY_SUMS + i] = 0.0f;
    NO_UNROLL
    for (u32 first = 0; first < 4u; first += step) {
        UNROLL
        for (u32 k = 0; k < step; k++) {
            u32 two = first + k;
            struct many_pair t[2];
            many_words(at, type, w, two, flip, &t[0]);
            if (tall == 2u)
                many_words(at, type, w1, two, flip, &t[1]);
            UNROLL
            for (u32 j = 0; j < n8; j++)
                many_octet(at, type, tall, t, q + two * 16u + j * 8u * STAGE_STRIDE(256u), s + two * MANY_PAIR + j * 16u, from, p + 4u * j, low + 4u * j);
        }
    }
    UNROLL
    for (u32 m = 0; m < tall; m++)
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++)
            total[m * MANY_SUMS + i] = total[m * MANY_SUMS + i] + tile_end(type, m ? w1 : w, (at.lane >> 2) + (i % 4u < 2u ? 0u : 8u), p[m * MANY_SUMS + i], low[m * MANY_SUMS + i]);
}

/* ---- a unit ---- */

#if !PS_METAL
/* One tile, or one of each of two panels, on the way into a slot. */
KFN void many_weights(struct at at, const u32 tall, SHM u32 *own, u32 slot, u32 to, DEV const u8 *from, DEV const u8 *from1, u32 bytes)
{
    if (tall == 2u)
        ring_fetch_two(at, own, slot, to, from, from1, bytes);
    else
        ring_fetch_once(at, own, slot, to, from, bytes);
}
#endif

/* total[4 * n8] = a panel's outputs for the first 8 * n8 columns. rows: act row of each, in shared memory, filled before a barrier. The ring is empty before
 * and after. Types with a second sum: four octets at a time. */
KFN void many_walk(struct at at, const u32 own_words, const u32 type, const u32 tall, const u32 n8, DEV const u8 *panel, DEV const u8 *panel1, DEV const u32 *act, u32 n_in, SHM u32 *shm,
                   THR float *total)
{
    const u32 tile = GPU_TILE_BYTES(type), most = TYPE_HAS_LOW(type) ? 4u : 8u;
    SHM u32 *stage = shm + GPU_SIMDS * own_words;
    u32 n_seg = GPU_PAD(n_in) / GPU_SEG, flip = again(TILE_FLIP);
    u32 at_q = tile_col(at, 0) * STAGE_STRIDE(256u) + tile_word(at) * 4u, at_s = MANY_COLS * STAGE_STRIDE(256u) + 4u * (at.lane & 3u);
    i32 from[4];
    float sum[2 * MANY_SUMS];
    struct many_from f;
#if !PS_METAL
    const u32 bytes = tall * tile, most_slots = (own_words - RING_MARKS) * 4u / bytes, slots = most_slots > 3u ? 3u : most_slots;
    SHM u32 *own = shm + at.simd * own_words;
    u32 slot = 0;
    for (u32 i = 0; i < slots && i < n_seg; i++)
        many_weights(at, tall, own, i, RING_MARKS + i * bytes / 4u, panel + i * tile, panel1 + i * tile, tile);
#endif
    UNROLL
    for (u32 i = 0; i < 4u; i++)
        from[i] = (i32)again(MAGIC_BITS);
    UNROLL
    for (u32 i = 0; i < tall * MANY_SUMS; i++)
        sum[i] = 0.0f;
    many_from_rows(at, stage + 2u * MANY_STAGE, n_in, n8, &f);
    many_fetch(at, type, n8, act, n_in, 0, stage, &f);
    many_put(at, type, n8, stage, &f);
    BARRIER(at);
    NO_UNROLL
    for (u32 seg = 0; seg < n_seg; seg++) {
        SHM const u32 *now = stage + seg % 2u * MANY_STAGE;
        SHM u32 *next = stage + (seg + 1u) % 2u * MANY_STAGE;
        if (seg + 1u < n_seg)
            many_fetch(at, type, n8, act, n_in, seg + 1u, next, &f);
#if PS_METAL
        WGT const u32 *w = (WGT const u32 *)(panel + seg * tile), *w1 = (WGT const u32 *)(panel1 + seg * tile);
#else
        WGT const u32 *w = own + RING_MARKS + slot * bytes / 4u, *w1 = w + tile / 4u;
        ring_take_own(at, own, slot);
#endif
        UNROLL
        for (u32 j = 0; j < n8; j += most)
            many_octets(at, n8 - j < most ? n8 - j : most, type, tall, w, w1, now + at_q + j * 8u * STAGE_STRIDE(256u), now + at_s + j * 16u, from, flip, sum + 4u * j);
#if !PS_METAL
        SIMD_BARRIER(at);
        if (seg + slots < n_seg)
            many_weights(at, tall, own, slot, RING_MARKS + slot * bytes / 4u, panel + (seg + slots) * tile, panel1 + (seg + slots) * tile, tile);
        slot = slot + 1u == slots ? 0u : slot + 1u;
#endif
        if (seg + 1u < n_seg)
            many_put(at, type, n8, next, &f);
        BARRIER(at);
    }
    UNROLL
    for (u32 i = 0; i < tall * MANY_SUMS; i++)
        total[i] = EX_FLOAT(again(EX_BITS(sum[i]))); /* else the loop's sums would stand where total does: in memory */
}

/* Runs CALL with `octets` a constant, n8 or the next one up that there is code for. */
#define OCTETS_CASE(n, CALL) case n: { const u32 octets = n < MANY_8 ? n : MANY_8; CALL; break; }
#define FOR_OCTETS(n8, CALL)                                                                                     \
    switch (n8) {                                                                                                \
        OCTETS_CASE(1, CALL) OCTETS_CASE(2, CALL) OCTETS_CASE(3, CALL) OCTETS_CASE(4, CALL)                      \
        OCTETS_CASE(5, CALL) OCTETS_CASE(6, CALL) OCTETS_CASE(7, CALL)                                           \
    default: { const u32 octets = MANY_8; CALL; break; }                                                         \
    }
#define FOR_OCTETS_2(n8, CALL)                                                                                   \
    switch (((n8) + 1u) & ~1u) {                                                                                 \
        OCTETS_CASE(2, CALL) OCTETS_CASE(4, CALL) OCTETS_CASE(6, CALL)                                           \
    default: { const u32 octets = MANY_8; CALL; break; }                                                         \
    }
#define FOR_OCTETS_4(n8, CALL)                                                                                   \
    switch (((n8) + 3u) & ~3u) {                                                                                 \
        OCTETS_CASE(4, CALL)                                                                                     \
    default: { const u32 octets = MANY_8; CALL; break; }                                                         \
    }

/* many_walk of any type and number of octets. */
KFN void many_product(struct at at, const u32 own_words, u32 type, DEV const u8 *panel, DEV const u32 *act, u32 n_in, SHM u32 *shm, u32 n8, THR float *total)
{
#define WALK(type, each) each(n8, many_walk(at, own_words, type, 1, octets, panel, panel, act, n_in, shm, total))
    switch (type) {
    case GT_Q4_0: WALK(GT_Q4_0, FOR_OCTETS) break;
    case GT_Q4_K: WALK(GT_Q4_K, FOR_OCTETS_2) break;
    case GT_Q6_K: WALK(GT_Q6_K, FOR_OCTETS_2) break;
    case GT_Q8_0: WALK(GT_Q8_0, FOR_OCTETS_4) break;
    case GT_Q4_1: WALK(GT_Q4_1, FOR_OCTETS_4) break;
    case GT_Q5_0: WALK(GT_Q5_0, FOR_OCTETS_4) break;
    case GT_Q5_1: WALK(GT_Q5_1, FOR_OCTETS_4) break;
    default: WALK(GT_Q5_K, FOR_OCTETS_4) break;
    }
#undef WALK
}

KFN void many_open(struct at at, const u32 own_words, SHM u32 *shm)
{
#if PS_METAL
    (void)at, (void)own_words, (void)shm;
#else
    ring_open_own(at, shm + at.simd * own_words);
#endif
}

KFN SHM u32 *many_rows(const u32 own_words, SHM u32 *shm)
{
    return shm + GPU_SIMDS * own_words + 2u * MANY_STAGE;
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

/* Octets of a unit, so that the rounds in which the groups do all units cost least: a unit costs its octets and about one more. */
KFN u32 many_width(struct at at, u32 n_rows, u32 blocks)
{
    u32 best = MANY_8, least = 0xFFFFFFFFu;
    NO_UNROLL
    for (u32 n8 = 1; n8 <= MANY_8; n8++) {
        u32 rest, units = split_u32(n_rows + 8u * n8 - 1u, 8u * n8, &rest) * blocks;
        u32 cost = split_u32(units + at.n_groups - 1u, at.n_groups, &rest) * (n8 + 1u);
        if (cost <= least) {
            least = cost;
            best = n8;
        }
    }
    return best;
}

KFN void k_product_many(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *act = (DEV const u32 *)b.p[1];
    DEV float *x = (DEV float *)b.p[12];
    SHM u32 *rows = many_rows(MANY_OWN, shm);
    u32 n_rows = in[IN_ROWS + a->which], n_seg = GPU_PAD(a->n_in) / GPU_SEG, rest;
    u32 ends[3];
    ends[0] = many_blocks(a->n_out[0]);
    ends[1] = ends[0] + (a->n_mats > 1u ? many_blocks(a->n_out[1]) : 0u);
    ends[2] = ends[1] + (a->n_mats > 2u ? many_blocks(a->n_out[2]) : 0u);
    u32 cols = 8u * many_width(at, n_rows, ends[2]), row_tiles = split_u32(n_rows + cols - 1u, cols, &rest);
    many_open(at, MANY_OWN, shm);
    for (u32 unit = at.group; unit < ends[2] * row_tiles; unit += at.n_groups) {
        u32 tile, block = split_u32(unit, row_tiles, &tile);
        u32 m = block < ends[0] ? 0u : block < ends[1] ? 1u : 2u, row0 = tile * cols;
        block -= m == 0u ? 0u : m == 1u ? ends[0] : ends[1];
        u32 n_out = m == 0u ? a->n_out[0] : m == 1u ? a->n_out[1] : a->n_out[2], t = m == 0u ? a->type[0] : m == 1u ? a->type[1] : a->type[2];
        u32 stride = m == 0u ? a->y_stride[0] : m == 1u ? a->y_stride[1] : a->y_stride[2];
        u32 has_bias = m == 0u ? a->has_bias[0] : m == 1u ? a->has_bias[1] : a->has_bias[2];
        DEV const u8 *w = (DEV const u8 *)(m == 0u ? b.p[3] : m == 1u ? b.p[4] : b.p[5]);
        DEV const float *bias = (DEV const float *)(m == 0u ? b.p[6] : m == 1u ? b.p[7] : b.p[8]);
        DEV float *y = (DEV float *)(m == 0u ? b.p[9] : m == 1u ? b.p[10] : b.p[11]);
        u32 panel = block * GPU_SIMDS + at.simd, mine = least_u32(panel, panels_of(n_out) - 1u); /* one too many works on the last, for nothing */
        u32 n8 = (least_u32(cols, n_rows - row0) + 7u) / 8u;
        float total[4 * MANY_8];
        if (at.id < MANY_COLS)
            rows[at.id] = least_u32(row0 + at.id, n_rows - 1u);
        BARRIER(at);
        many_product(at, MANY_OWN, t, w + (u64)mine * n_seg * GPU_TILE_BYTES(t), act, a->n_in, shm, n8, total);
        UNROLL
        for (u32 i = 0; i < 4u * MANY_8; i++) {
            u32 c = many_col(at, i), row = row0 + c, out = many_out(at, panel, i);
            if (c >= cols || row >= n_rows || out >= n_out)
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
    u32 first, n, n8, panel; /* pairs; octets; the SIMD group's panel */
    u64 tiles;               /* weight tiles before that panel's first */
};

/* The list's tiles, those of most octets first, where there is room for them: units end together better (experts_out has
 * so many that it would only cost time). A SIMD group takes the tiles of so many octets. */
KFN void many_order(struct at at, DEV const u32 *tiles, SHM u32 *order)
{
    u32 n = tiles[0], mine = MANY_8 - at.simd, to = 0u;
    SHM u32 *octets = order + GPU_MANY_LIST, *counts = octets + GPU_MANY_LIST;
    if (n > GPU_MANY_LIST)
        return;
    UNROLL
    for (u32 k = 0; k < GPU_MANY_LIST; k += GPU_THREADS)
        if (k + at.id < n)
            octets[k + at.id] = ((tiles[2u + 2u * (k + at.id)] >> 24) + 7u) / 8u;
    BARRIER(at);
    NO_UNROLL
    for (u32 pass = 0; pass < 2u; pass++) {
        NO_UNROLL
        for (u32 i = at.lane; i < ((n + 31u) & ~31u); i += 32u) {
            bool one = i < n && octets[i] == mine;
            u32 all = simd_ballot(at, one);
            if (pass && one)
                order[to + popcount(all & ((1u << at.lane) - 1u))] = i;
            to += popcount(all);
        }
        if (pass == 0u) {
            if (at.lane == 0u)
                counts[at.simd] = to;
            BARRIER(at);
            to = 0u;
            for (u32 k = 0; k < at.simd; k++)
                to += counts[k];
        }
    }
    BARRIER(at);
}

/* The unit that is this group's in a round, from 0 on: the groups in turn forwards and backwards. */
KFN u32 many_turn(struct at at, u32 round)
{
    return round * at.n_groups + (round & 1u ? at.n_groups - 1u - at.group : at.group);
}

/* rows: act rows of the tile's pairs, of which `per` share one; behind the barrier they are there. in_order: many_order has been called. */
KFN void many_unit_of(struct at at, DEV const u32 *tiles, DEV const u32 *pairs, u32 per, u32 n_in, u32 n_out, u32 unit, const bool in_order, SHM u32 *rows,
                      THR struct many_unit *u)
{
    SHM const u32 *order = rows + MANY_COLS;
    u32 block, place = split_u32(unit, many_blocks(n_out), &block), tile = !in_order || tiles[0] > GPU_MANY_LIST ? place : order[place];
    u32 word = tiles[2u + 2u * tile], rest;
    u->first = word & 0xFFFFFFu;
    u->n = word >> 24;
    u->n8 = (u->n + 7u) / 8u;
    u->panel = block * GPU_SIMDS + at.simd;
    u->tiles = ((u64)tiles[1u + 2u * tile] * panels_of(n_out) + least_u32(u->panel, panels_of(n_out) - 1u)) * (GPU_PAD(n_in) / GPU_SEG);
    if (at.id < MANY_COLS)
        rows[at.id] = split_u32(pairs[u->first + least_u32(at.id, u->n - 1u)], per, &rest);
    BARRIER(at);
}

/* What a unit's sums are, to the rows of its pairs. up: they are those of up, and the rows hold gate's, which nobody else has touched. */
KFN void many_pairs_out(struct at at, THR const struct many_unit *u, DEV const u32 *pairs, DEV float *y, u32 stride, u32 n_out, bool up, THR const float *total)
{
    UNROLL
    for (u32 i = 0; i < 4u * MANY_8; i++) {
        u32 c = many_col(at, i), out = many_out(at, u->panel, i);
        if (c >= u->n || out >= n_out)
            continue;
        DEV float *to = y + (u64)pairs[u->first + c] * stride + out;
        *to = up ? silu_times(*to, total[i]) : total[i];
    }
}

/* A unit whose gate and up are in q4_0: a panel of each at once, which share what is loaded of the columns. */
KFN void many_both(struct at at, CON const struct experts_in_args *a, struct bufs b, DEV const u32 *act, THR const struct many_unit *u, DEV const u32 *pairs, SHM u32 *shm)
{
    DEV const u8 *gate = (DEV const u8 *)b.p[2] + u->tiles * GPU_TILE_BYTES(GT_Q4_0), *up = (DEV const u8 *)b.p[3] + u->tiles * GPU_TILE_BYTES(GT_Q4_0);
    DEV float *y = (DEV float *)b.p[4];
    float total[2 * MANY_SUMS];
    FOR_OCTETS(u->n8, many_walk(at, MANY_OWN_IN, GT_Q4_0, 2, octets, gate, up, act, a->n_in, shm, total))
    UNROLL
    for (u32 i = 0; i < MANY_SUMS; i++) {
        u32 c = many_col(at, i), out = many_out(at, u->panel, i);
        if (c < u->n && out < a->n_out)
            y[(u64)pairs[u->first + c] * a->y_stride + out] = silu_times(total[i], total[MANY_SUMS + i]);
    }
}

KFN void k_experts_in_many(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *act = (DEV const u32 *)b.p[1], *route = (DEV const u32 *)b.p[5], *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    DEV float *y = (DEV float *)b.p[4];
    bool both = a->type_gate == GT_Q4_0 && a->type_up == GT_Q4_0;
    u32 units = tiles[0] * many_blocks(a->n_out);
    many_open(at, MANY_OWN_IN, shm);
    many_order(at, tiles, many_rows(MANY_OWN_IN, shm) + MANY_COLS);
    for (u32 round = 0; round * at.n_groups < units; round++) {
        u32 unit = many_turn(at, round);
        struct many_unit u;
        if (unit >= units)
            continue;
        many_unit_of(at, tiles, pairs, a->n_used, a->n_in, a->n_out, unit, true, many_rows(MANY_OWN_IN, shm), &u);
        if (both) {
            many_both(at, a, b, act, &u, pairs, shm);
            continue;
        }
        NO_UNROLL
        for (u32 up = 0; up < 2u; up++) { /* one after the other */
            u32 type = up ? a->type_up : a->type_gate;
            float total[4 * MANY_8];
            many_product(at, MANY_OWN_IN, type, (DEV const u8 *)b.p[2u + up] + u.tiles * GPU_TILE_BYTES(type), act, a->n_in, shm, u.n8, total);
            many_pairs_out(at, &u, pairs, y, a->y_stride, a->n_out, up, total);
        }
    }
}

KFN void k_experts_out_many(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *act = (DEV const u32 *)b.p[2], *route = (DEV const u32 *)b.p[5], *pairs = route + a->pairs_at, *tiles = route + a->tiles_at;
    many_open(at, MANY_OWN, shm);
    for (u32 unit = at.group; unit < tiles[0] * many_blocks(a->n_out); unit += at.n_groups) {
        struct many_unit u;
        float total[4 * MANY_8];
        many_unit_of(at, tiles, pairs, a->per, a->n_in, a->n_out, unit, false, many_rows(MANY_OWN, shm), &u);
        many_product(at, MANY_OWN, a->type, (DEV const u8 *)b.p[3] + u.tiles * GPU_TILE_BYTES(a->type), act, a->n_in, shm, u.n8, total);
        many_pairs_out(at, &u, pairs, (DEV float *)b.p[4], a->y_stride, a->n_out, false, total);
    }
}
