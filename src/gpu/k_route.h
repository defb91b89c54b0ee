/* The choice of experts (rule 8) and the lists that grouped products walk (args.h).
 *
 * Route: a row a SIMD group. Lane l has the logits of experts l, l + 32, ... as keys in registers, so that its share is also its partial
 * sum of rule 6. A key is a word that orders as route.c does: a larger logit higher, -0 as 0, NaN under all, 0 for what is not there or
 * was taken. A rank is one maximum over the lanes, then the lowest expert that has it. Lane r keeps ranks r and r + 32.
 *
 * Group: a stable counting sort of pairs by expert, by one group. A SIMD group owns a stretch of the pairs and a row of counters, so no
 * two add to one word; pairs of 32 lanes with the same expert find each other by ballots over the expert's bits. At most 32 pairs (a few
 * rows of decode) need one SIMD group only: each lane compares its pair with the 31 others.
 *
 * Shared memory of route_group and group, words (E = n_experts; GPU_SHM_ROUTE; route: FEW_ALONE words for each SIMD group):
 *   [0, 8 E)         counters: (SIMD group, expert); after the scan the place of the next such pair. route_group before that: the ids
 *                    of at most 32 pairs
 *   [8 E, 8 E + 24)  the scan: pairs, tiles and experts that are hit, of each SIMD group's lanes
 *
 * Where there are at most 128 experts and 8 of them used, route chooses by shorter keys, group has its own way with up to 64 rows, and route_group does both at once, below ("few experts").
 * route_group is for rows that are few: one SM reads 32 KB of sums in half a microsecond, the 256 KB of 64 rows and 8 segments in five. */

/* ---- the lists ---- */

/* e: of pair `lane`, where there are at most 32. */
KFN void group_per_row(struct at at, THR const struct lists *l, u32 n, u32 e)
{
    for (u32 i = at.id; i < n; i += GPU_THREADS) {
        l->pairs[i] = i;
        l->tiles[1 + 2u * i] = l->ids[i];
        l->tiles[2 + 2u * i] = i | 1u << 24;
    }
    u32 hits = n;
    if (n <= 32u && at.simd == 0) {
        u32 seen = 0; /* ahead of this pair, with its expert */
        for (u32 j = 0; j < n; j++)
            seen |= shuffle_from(at, e, j) == e && j < at.lane ? 1u : 0u;
        hits = popcount(simd_ballot(at, at.lane < n && !seen));
    }
    if (at.id == 0) {
        l->tiles[0] = n;
        if (l->hits)
            *l->hits = hits;
    }
}

/* n <= 32 pairs by one SIMD group: lane i has pair i, of expert e. */
KFN void group_few(struct at at, THR const struct lists *l, u32 n, u32 e, u32 tile_rows)
{
    u32 mine = at.lane < n ? e : ~0u, lower = 0, same = 0, i = at.lane;
    for (u32 j0 = 0; j0 < n; j0 += 8u) {
        UNROLL
        for (u32 k = 0; k < 8; k++) {
            u32 j = j0 + k, other = shuffle_from(at, mine, j);
            same |= (other == mine ? 1u : 0u) << j;
            lower |= (other < mine || (other == mine && j < i) ? 1u : 0u) << j;
        }
    }
    u32 rank, begins, hits, before = popcount(same & ((1u << i) - 1u)); /* pairs of this expert ahead of this one */
    split_u32(before, tile_rows, &rank);
    begins = simd_ballot(at, i < n && rank == 0);
    hits = simd_ballot(at, i < n && before == 0);
    if (i < n) {
        u32 to = popcount(lower), tile = popcount(lower & begins);
        l->pairs[to] = i;
        if (rank == 0) {
            l->tiles[1 + 2u * tile] = e;
            l->tiles[2 + 2u * tile] = to | least_u32(tile_rows, popcount(same) - before) << 24;
        }
    }
    if (i == 0) {
        l->tiles[0] = popcount(begins);
        if (l->hits)
            *l->hits = popcount(hits);
    }
}

enum {
    EXPERT_BITS = 10, /* of the largest expert's number; ballots on all of them cost less than a loop on as many as there are */
    GROUP_AHEAD = 4   /* times 32 ids that a SIMD group loads before it counts them */
};

/* The lanes whose pair has the same expert as this one's; the pair is there where live. */
KFN u32 group_same(struct at at, u32 e, u32 live)
{
    u32 same = simd_ballot(at, live);
    UNROLL
    for (u32 k = 0; k < EXPERT_BITS; k++) {
        u32 ones = simd_ballot(at, e >> k & 1u);
        same &= e >> k & 1u ? ones : ~ones;
    }
    return same;
}

/* A SIMD group's pairs [from, to), in order, through its counters: counted, or put where the counters say. */
KFN void group_walk(struct at at, THR const struct lists *l, SHM u32 *counters, u32 from, u32 to, bool put)
{
    for (u32 i0 = from; i0 < to; i0 += 32u * GROUP_AHEAD) {
        u32 e[GROUP_AHEAD];
        UNROLL
        for (u32 k = 0; k < GROUP_AHEAD; k++) {
            u32 i = i0 + 32u * k + at.lane;
            e[k] = i < to ? l->ids[i] : 0u;
        }
        UNROLL
        for (u32 k = 0; k < GROUP_AHEAD; k++) {
            u32 i = i0 + 32u * k + at.lane;
            if (i0 + 32u * k < to) {
                u32 same = group_same(at, e[k], i < to), ahead = popcount(same & ((1u << at.lane) - 1u));
                u32 have = counters[e[k]];
                SIMD_BARRIER(at);
                if (i < to && ahead == 0)
                    counters[e[k]] = have + popcount(same);
                if (i < to && put)
                    l->pairs[have + ahead] = i;
                SIMD_BARRIER(at);
            }
        }
    }
}

/* Sum of v over the lanes up to this one. */
KFN u32 simd_scan(struct at at, u32 v)
{
    UNROLL
    for (u32 d = 1; d < 32; d *= 2) {
        u32 u = shuffle_from(at, v, (at.lane - d) & 31u);
        v += at.lane >= d ? u : 0u;
    }
    return v;
}

/* Counters of the SIMD groups -> where each one's pairs of each expert begin; and the tiles. Thread t has PER experts from PER t on. */
KFN void group_scan(struct at at, CON const struct route_args *a, THR const struct lists *l, SHM u32 *counters, SHM u32 *sums, u32 per)
{
    u32 n_experts = a->n_experts, pairs = 0, tiles = 0, hits = 0, rest;
    u32 e0 = at.id * per, e1 = least_u32(e0 + per, n_experts);
    for (u32 e = e0; e < e1; e++) {
        u32 n = 0;
        UNROLL
        for (u32 s = 0; s < GPU_SIMDS; s++)
            n += counters[s * n_experts + e];
        pairs += n;
        tiles += split_u32(n + a->tile_rows - 1u, a->tile_rows, &rest);
        hits += n ? 1u : 0u;
    }
    hits = (u32)simd_sum_i32(at, (i32)hits);
    u32 pairs_to = simd_scan(at, pairs), tiles_to = simd_scan(at, tiles);
    if (at.lane == 31u) {
        sums[at.simd] = pairs_to;
        sums[GPU_SIMDS + at.simd] = tiles_to;
        sums[2 * GPU_SIMDS + at.simd] = hits;
    }
    BARRIER(at);
    u32 pair = pairs_to - pairs, tile = tiles_to - tiles;
    for (u32 s = 0; s < at.simd; s++) {
        pair += sums[s];
        tile += sums[GPU_SIMDS + s];
    }
    if (at.id == GPU_THREADS - 1u) {
        l->tiles[0] = tile + tiles;
        for (u32 s = 0; s < GPU_SIMDS - 1u; s++)
            hits += sums[2 * GPU_SIMDS + s];
        if (l->hits)
            *l->hits = hits;
    }
    for (u32 e = e0; e < e1; e++) {
        u32 begin = pair;
        UNROLL
        for (u32 s = 0; s < GPU_SIMDS; s++) {
            u32 n = counters[s * n_experts + e];
            counters[s * n_experts + e] = pair;
            pair += n;
        }
        for (; begin < pair; begin += a->tile_rows, tile++) {
            l->tiles[1 + 2u * tile] = e;
            l->tiles[2 + 2u * tile] = begin | least_u32(a->tile_rows, pair - begin) << 24;
        }
    }
}

KFN void group_many(struct at at, CON const struct route_args *a, THR const struct lists *l, u32 n, SHM u32 *shm)
{
    u32 n_experts = a->n_experts;
    SHM u32 *mine = shm + at.simd * n_experts;
    for (u32 e = at.lane; e < n_experts; e += 32u)
        mine[e] = 0;
    SIMD_BARRIER(at);
    u32 each = (n + GPU_THREADS - 1u) / GPU_THREADS * 32u; /* pairs of a SIMD group: whole 32s */
    u32 from = least_u32(at.simd * each, n), to = least_u32(from + each, n);
    group_walk(at, l, mine, from, to, false);
    BARRIER(at);
    group_scan(at, a, l, shm, shm + GPU_SIMDS * n_experts, (n_experts + GPU_THREADS - 1u) / GPU_THREADS);
    BARRIER(at);
    group_walk(at, l, mine, from, to, true);
}

/* expert: of pair `lane`, where there are at most 32. */
KFN void group_all(struct at at, CON const struct route_args *a, THR const struct lists *l, u32 n, u32 expert, SHM u32 *shm)
{
    if (a->per_row)
        group_per_row(at, l, n, expert);
    else if (n > 32u)
        group_many(at, a, l, n, shm);
    else if (at.simd == 0)
        group_few(at, l, n, expert, a->tile_rows);
}

/* ---- few experts: at most 128 (a multiple of 4), 8 used, 64 rows, all by one group ----
 *
 * SIMD group w has rows w, w + 8, w + 16, ..., up to 8 of them. Lane l has experts 4l..4l+3 of a row as short keys: 25 bits that order as the
 * logit does, then the expert, so that no two are the same. One row: a rank is the number of larger keys (few_choose_1). More: all of
 * 2, 4 or 8 at once, since each is a chain of steps that wait; a rank is a maximum over the lanes (few_choose). What 25 bits cannot tell shows in
 * the ranks (few_wrong), and such a row is chosen again with whole keys: one row in some hundreds.
 *
 * Then lane 8 s + r has rank r of the SIMD group's row s, or s + 4: its pair. A row has an expert once, so the rows that chose an expert are
 * a set of bits; a pair's place is the number of pairs of experts before its own, and of rows before its own in the set.
 *
 * Shared memory, words:
 *   [0, 256)     chosen: 128 (row / 32) + expert: bit row % 32
 *   [256, 288)   counts: rows that chose expert e, byte e % 4 of word e / 4 (at most 64)
 *   [288, 1056)  ranks: (SIMD group, its row s): the short keys of ranks 0..8, and 3 words unused so that four rows meet no bank twice */

enum {
    FEW_EXPERTS = 128,
    FEW_ID = FEW_EXPERTS - 1,
    FEW_USED = 8,
    FEW_COUNTS = 256,
    FEW_RANKS = 288,
    FEW_ROW_RANKS = 12,
    FEW_ALONE = 8 * FEW_ROW_RANKS
};

KFN bool few_experts(CON const struct route_args *a)
{
    return GPU_FEW_CHOOSES(a->n_experts, a->n_used);
}

/* As route_key, but for the zeros and NaN: few_wrong finds those. */
KFN u32 few_key(u32 u, u32 e)
{
    u32 key = u ^ ((u32)((i32)u >> 31) | 0x80000000u);
    return (key & ~(u32)FEW_ID) | e;
}

/* How many of 32 keys are larger. */
KFN u32 few_larger(SHM const u32 *keys, u32 key)
{
    u32 n = 0;
    UNROLL
    for (u32 i = 0; i < 32u; i += 4u) {
        w4 v = load16(keys + i);
        n += v.x > key ? 1u : 0u;
        n += v.y > key ? 1u : 0u;
        n += v.z > key ? 1u : 0u;
        n += v.w > key ? 1u : 0u;
    }
    return n;
}

/* A row by itself: what a lane asks for of its experts e..e+3 (nothing where not `there`); their sums, all bits set where there are none. Between the two
 * anything else may be waited for. */
KFN void few_ask(CON const struct route_args *a, DEV const float *logits, u32 e, bool there, THR w4 *v)
{
    const w4 zero = {0, 0, 0, 0};
    u32 parts = a->n_parts ? a->n_parts : 1u;
    UNROLL
    for (u32 p = 0; p < ROUTE_PARTS; p++) {
        v[p] = zero;
        if (there && e < a->n_experts && p < parts)
            v[p] = load16(logits + p * a->parts_stride + e);
    }
}

KFN void few_plus(THR w4 *x, w4 v)
{
    x->x = route_plus(x->x, v.x);
    x->y = route_plus(x->y, v.y);
    x->z = route_plus(x->z, v.z);
    x->w = route_plus(x->w, v.w);
}

KFN w4 few_sum(CON const struct route_args *a, DEV const float *logits, u32 e, bool there, THR const w4 *v)
{
    const w4 none = {~0u, ~0u, ~0u, ~0u};
    w4 x = {0, 0, 0, 0};
    bool mine = there && e < a->n_experts;
    UNROLL
    for (u32 p = 0; p < ROUTE_PARTS; p++)
        few_plus(&x, v[p]);
    NO_UNROLL
    for (u32 p = ROUTE_PARTS; mine && p < a->n_parts; p++)
        few_plus(&x, load16(logits + p * a->parts_stride + e));
    return mine ? x : none;
}

/* Short keys of ranks 0..8 of a row with sums x, by a SIMD group. The nine highest stand in the nine lanes whose largest keys are the highest, and in the
 * ninth of these only that one: first the 32 largest are compared, then the 33 keys that are left. Both stand behind the ranks. */
KFN void few_choose_1(struct at at, w4 x, SHM u32 *ranks)
{
    SHM u32 *largest = ranks + FEW_ROW_RANKS, *left = largest + 32;
    u32 e = 4u * at.lane;
    w4 k;
    k.x = few_key(x.x, e);
    k.y = few_key(x.y, e + 1u);
    k.z = few_key(x.z, e + 2u);
    k.w = few_key(x.w, e + 3u);
    u32 xy = k.x > k.y ? k.x : k.y, zw = k.z > k.w ? k.z : k.w, most = xy > zw ? xy : zw;
    largest[at.lane] = most;
    SIMD_BARRIER(at);
    u32 before = few_larger(largest, most);
    if (before < 8u)
        *(SHM w4 *)(left + 4u * before) = k;
    if (before == 8u)
        left[32] = ranks[8] = most;
    SIMD_BARRIER(at);
    u32 mine = left[at.lane];
    before = few_larger(left, mine) + (left[32] > mine ? 1u : 0u);
    if (before <= 8u)
        ranks[before] = mine;
}

KFN void few_order(THR u32 *a, THR u32 *b)
{
    u32 most = *a > *b ? *a : *b, least = *a > *b ? *b : *a;
    *a = most;
    *b = least;
}

/* Short keys of ranks 0..n_used of this SIMD group's first n rows (n: a constant, 2, 4 or 8); a row that is not there has any. */
KFN void few_choose(struct at at, const u32 n, CON const struct route_args *a, DEV const float *logits, u32 rows, SHM u32 *ranks)
{
    u32 key[8][4], e = 4u * at.lane;
    w4 x[8];
    route_rows(n, a, logits, at.simd, rows, e, x); /* where there are none: keys below all others' */
    UNROLL
    for (u32 s = 0; s < n; s++) {
        THR u32 *k = key[s];
        k[0] = few_key(x[s].x, e);
        k[1] = few_key(x[s].y, e + 1u);
        k[2] = few_key(x[s].z, e + 2u);
        k[3] = few_key(x[s].w, e + 3u);
        few_order(&k[0], &k[1]);
        few_order(&k[2], &k[3]);
        few_order(&k[0], &k[2]);
        few_order(&k[1], &k[3]);
        few_order(&k[1], &k[2]);
    }
    for (u32 r = 0; r <= a->n_used; r++, ranks++) {
        UNROLL
        for (u32 s = 0; s < n; s++) {
            THR u32 *k = key[s];
            u32 top = simd_max_u32(at, k[0]);
            bool mine = k[0] == top;
            if (mine)
                ranks[FEW_ROW_RANKS * s] = top;
            k[0] = mine ? k[1] : k[0];
            k[1] = mine ? k[2] : k[1];
            k[2] = mine ? k[3] : k[2]; /* k[3] stays: who has no more comes first again, and few_wrong sees it */
        }
    }
}

/* Whether short keys may not say that a rank with `key` comes where it does, before one with `after`: NaN or infinite, a zero (or so small)
 * with its sign, or no difference. */
KFN u32 few_wrong(u32 key, u32 after)
{
    const u32 minus_zero = 0x7FFFFFFFu / FEW_EXPERTS;
    u32 k = key / FEW_EXPERTS, next = after / FEW_EXPERTS;
    return (u32)(key - 0x00800000u >= 0xFF000000u) | (u32)(k == next) | (u32)(k == minus_zero) | (u32)(next == minus_zero);
}

/* The expert of a lane's pair: rank lane % 8 of row lane / 8 of `ranks`; any where not live. row: lane 0's. */
KFN u32 few_expert(struct at at, CON const struct route_args *a, DEV const float *logits, u32 row, bool live, SHM u32 *ranks)
{
    SHM u32 *mine = ranks + FEW_ROW_RANKS * (at.lane / 8u) + at.lane % 8u;
    u32 key = mine[0], wrong = simd_ballot(at, few_wrong(key, mine[1]) & (u32)live);
    if (wrong) {
        NO_UNROLL
        for (u32 s = 0; s < 4u; s++) {
            u32 found[2] = {0, 0}, kept[2];
            if ((wrong >> 8u * s & 255u) == 0)
                continue;
            route_choose_4(at, a, logits + (row + GPU_SIMDS * s) * a->stride, found, kept);
            if (at.lane < a->n_used)
                ranks[FEW_ROW_RANKS * s + at.lane] = found[0];
        }
        SIMD_BARRIER(at);
        key = mine[0];
    }
    return key & FEW_ID;
}

/* Weight of a lane's pair, of the logit x; row: lane 0's. No branches, and lanes without a pair divide 1 by n_used, not 0 by 0: a division
 * out of the usual takes long. */
KFN float few_weight(struct at at, CON const struct route_args *a, DEV const float *logits, u32 row, u32 rows, float x)
{
    u32 eight = at.lane & 24u, mask = at.lane % 8u < a->n_used ? ~0u : 0u;
    float top = EX_FLOAT(shuffle_from(at, EX_BITS(x), eight)), v[FEW_USED];
    float e = ex_flush(ex_exp(x - top)), sum = 0.0f;
    UNROLL
    for (u32 k = 0; k < FEW_USED; k++)
        v[k] = EX_FLOAT(shuffle_from(at, EX_BITS(e) & mask, eight + k));
    UNROLL
    for (u32 k = 0; k < FEW_USED; k++)
        sum = sum + v[k]; /* + 0 past the last */
    if (!a->used_norm) {
        NO_UNROLL
        for (u32 s = 0; s < 4u; s++) {
            u32 r = row + GPU_SIMDS * s;
            float t = EX_FLOAT(shuffle_from(at, EX_BITS(top), 8u * s));
            if (r < rows)
                t = route_sum_all(at, a, logits + r * a->stride, t);
            sum = s == at.lane / 8u ? t : sum;
        }
    }
    return ex_flush(div_rn(e, sum) * a->used_scale);
}

/* A row by itself, of sums x: lane r < n_used has its rank r's expert. ranks: FEW_ALONE words of this SIMD group's. */
KFN u32 few_alone(struct at at, CON const struct route_args *a, DEV const float *logits, u32 row, w4 x, SHM u32 *ranks)
{
    few_choose_1(at, x, ranks);
    SIMD_BARRIER(at);
    return few_expert(at, a, logits, row, at.lane < a->n_used, ranks);
}

KFN void few_alone_put(struct at at, CON const struct route_args *a, THR const struct lists *l, DEV const float *logits, u32 row, u32 e)
{
    bool live = at.lane < a->n_used;
    float x = live ? route_value(a, logits + row * a->stride, e) : 0.0f, w = few_weight(at, a, logits, row, row + 1u, x);
    if (live) {
        l->ids[row * a->n_used + at.lane] = e;
        l->w[row * a->n_used + at.lane] = w;
    }
}

/* A lane's four experts, and what it takes to find a pair's place. */
struct few_counts {
    u32 count, tiles;         /* a byte an expert */
    u32 before;               /* pairs | tiles << 16 of the experts of lanes before */
    u32 per_tile, whole;      /* pairs in a tile; x * whole >> 20 = x / per_tile for x <= 318 */
};

KFN void few_count(struct at at, CON const struct route_args *a, SHM const u32 *counts, THR struct few_counts *c)
{
    u32 rest, whole = split_u32(1u << 20, a->tile_rows, &rest) + 1u;
    c->count = counts[at.lane];
    c->per_tile = a->tile_rows;
    c->whole = whole;
    c->tiles = 0;
    UNROLL
    for (u32 k = 0; k < 4; k++)
        c->tiles |= ((c->count >> 8u * k & 255u) + c->per_tile - 1u) * whole >> 20 << 8u * k;
    u32 mine = (u32)dot4(c->count, 0x01010101u, 0) | (u32)dot4(c->tiles, 0x01010101u, 0) << 16;
    c->before = simd_scan(at, mine) - mine;
}

/* A pair, i, of expert e, with `ahead` pairs of it before, goes to its place, and begins a tile or does not. */
KFN void few_place(struct at at, THR const struct lists *l, THR const struct few_counts *c, u32 i, u32 e, u32 ahead, bool live)
{
    u32 from = e / 4u, byte = e % 4u * 8u;
    u32 before = shuffle_from(at, c->before, from), count = shuffle_from(at, c->count, from), tiles = shuffle_from(at, c->tiles, from);
    u32 to = (before & 0xFFFFu) + (count * 0x01010100u >> byte & 255u) + ahead, tile = ahead * c->whole >> 20; /* sums of bytes: at most 192 */
    if (!live)
        return;
    l->pairs[to] = i;
    if (ahead == tile * c->per_tile) {
        DEV u32 *t = l->tiles + 1 + 2u * ((before >> 16) + (tiles * 0x01010100u >> byte & 255u) + tile);
        t[0] = e;
        t[1] = to | least_u32(c->per_tile, (count >> byte & 255u) - ahead) << 24;
    }
}

/* Numbers of tiles and of experts that were chosen: by one SIMD group. */
KFN void few_totals(struct at at, CON const struct route_args *a, THR const struct lists *l, u32 n, SHM const u32 *counts, u32 tiles)
{
    u32 hits = (u32)simd_sum_i32(at, (i32)popcount((counts[at.lane] + 0x7F7F7F7Fu) & 0x80808080u));
    if (at.lane == 31u) {
        l->tiles[0] = tiles;
        if (l->hits)
            *l->hits = a->per_row && n > 32u ? n : hits;
    }
}

/* What a lane has of the lists, for each 32 rows. */
struct few_pair {
    u32 row, i, e; /* i: row * n_used + rank */
    float x;       /* the logit */
    bool live;
};

KFN void few_put(struct at at, CON const struct route_args *a, THR const struct lists *l, DEV const float *logits, u32 rows, u32 row,
                 THR const struct few_pair *p)
{
    float w = few_weight(at, a, logits, row, rows, p->x);
    if (p->live) {
        l->ids[p->i] = p->e;
        l->w[p->i] = w;
    }
}

/* Of 32 rows, number k: a lane's pair, of the row at `bit`, among the chosen. */
KFN void few_chosen(THR const struct few_pair *p, u32 k, u32 bit, SHM u32 *shm)
{
    if (p->live) {
        shm_add_u32(shm + FEW_EXPERTS * k + p->e, 1u << bit);
        shm_add_u32(shm + FEW_COUNTS + p->e / 4u, 1u << p->e % 4u * 8u);
    }
}

/* The lists, when all are among the chosen. */
KFN void few_lists(struct at at, CON const struct route_args *a, THR const struct lists *l, u32 rows, THR const struct few_pair *pair, SHM u32 *shm)
{
    u32 bit = at.lane / 8u * 8u + at.simd;
    struct few_counts c;
    few_count(at, a, shm + FEW_COUNTS, &c);
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        THR const struct few_pair *p = &pair[k];
        if (32u * k >= rows)
            break;
        u32 ahead = popcount(shm[FEW_EXPERTS * k + p->e] & ((1u << bit) - 1u)) + (k ? popcount(shm[p->e]) : 0u);
        few_place(at, l, &c, p->i, p->e, ahead, p->live);
    }
    if (at.simd == GPU_SIMDS - 1u) /* it has the fewest rows */
        few_totals(at, a, l, rows * a->n_used, shm + FEW_COUNTS, (c.before >> 16) + (u32)dot4(c.tiles, 0x01010101u, 0));
}

/* Rows that a launch before this one chose for. */
KFN void few_group(struct at at, CON const struct route_args *a, THR const struct lists *l, u32 rows, SHM u32 *shm)
{
    u32 bit = at.lane / 8u * 8u + at.simd;
    struct few_pair pair[2];
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        THR struct few_pair *p = &pair[k];
        p->row = bit + 32u * k;
        p->i = p->row * a->n_used + at.lane % 8u;
        p->live = at.lane % 8u < a->n_used && p->row < rows;
        p->e = p->live ? l->ids[p->i] : 0u;
    }
    shm[at.id] = 0;
    if (at.id < 32u)
        shm[FEW_COUNTS + at.id] = 0;
    BARRIER(at);
    UNROLL
    for (u32 k = 0; k < 2u; k++)
        few_chosen(&pair[k], k, bit, shm);
    BARRIER(at);
    few_lists(at, a, l, rows, pair, shm);
}

KFN void few_route_group(struct at at, CON const struct route_args *a, THR const struct lists *l, DEV const float *logits, u32 rows,
                         SHM u32 *shm)
{
    SHM u32 *counts = shm + FEW_COUNTS, *ranks = shm + FEW_RANKS + 8u * FEW_ROW_RANKS * at.simd;
    u32 n = rows * a->n_used, bit = at.lane / 8u * 8u + at.simd;
    const struct few_pair none = {0, 0, 0, 0.0f, false};
    struct few_pair pair[2];
    pair[0] = pair[1] = none;
    shm[at.id] = 0;
    if (at.id < 32u)
        counts[at.id] = 0;
    BARRIER(at);
    if (rows <= 8u) {
        DEV const float *row = logits + at.simd * a->stride;
        w4 v[ROUTE_PARTS];
        few_ask(a, row, 4u * at.lane, at.simd < rows, v);
        few_choose_1(at, few_sum(a, row, 4u * at.lane, at.simd < rows, v), ranks);
    } else if (rows <= 16u)
        few_choose(at, 2, a, logits, rows, ranks);
    else if (rows <= 32u)
        few_choose(at, 4, a, logits, rows, ranks);
    else
        few_choose(at, 8, a, logits, rows, ranks);
    SIMD_BARRIER(at);
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        THR struct few_pair *p = &pair[k];
        if (32u * k >= rows)
            break;
        p->row = bit + 32u * k;
        p->i = p->row * a->n_used + at.lane % 8u;
        p->live = at.lane % 8u < a->n_used && p->row < rows;
        p->e = few_expert(at, a, logits, 32u * k + at.simd, p->live, ranks + 4u * FEW_ROW_RANKS * k);
        p->x = p->live ? route_value(a, logits + p->row * a->stride, p->e) : 0.0f;
        few_chosen(p, k, bit, shm);
    }
    BARRIER(at);
    if (a->per_row) {
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            THR struct few_pair *p = &pair[k];
            if (32u * k >= rows)
                break;
            if (p->live) {
                l->pairs[p->i] = p->i;
                l->tiles[1 + 2u * p->i] = p->e;
                l->tiles[2 + 2u * p->i] = p->i | 1u << 24;
            }
            few_put(at, a, l, logits, rows, 32u * k + at.simd, p);
        }
        if (at.simd == GPU_SIMDS - 1u) /* it has the fewest rows */
            few_totals(at, a, l, n, counts, n);
        return;
    }
    few_lists(at, a, l, rows, pair, shm);
    UNROLL
    for (u32 k = 0; k < 2u; k++)
        if (32u * k < rows)
            few_put(at, a, l, logits, rows, 32u * k + at.simd, &pair[k]);
}

/* A row a SIMD group. */
KFN void few_route(struct at at, CON const struct route_args *a, THR const struct lists *l, DEV const float *logits, u32 rows, SHM u32 *shm)
{
    u32 e = 4u * at.lane;
    for (u32 row = at.simd * at.n_groups + at.group; row < rows; row += GPU_SIMDS * at.n_groups) {
        DEV const float *mine = logits + (u64)row * a->stride;
        w4 v[ROUTE_PARTS];
        few_ask(a, mine, e, true, v);
        u32 found = few_alone(at, a, logits, row, few_sum(a, mine, e, true, v), shm + at.simd * FEW_ALONE);
        few_alone_put(at, a, l, logits, row, found);
        SIMD_BARRIER(at); /* the next row's ranks stand where this one's do */
    }
}

KFN void k_route(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], found[2] = {0, 0};
    DEV const float *logits = (DEV const float *)b.p[1];
    struct lists l;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    if (few_experts(a))
        few_route(at, a, &l, logits, rows, shm);
    else
        for (u32 row = at.simd * at.n_groups + at.group; row < rows; row += GPU_SIMDS * at.n_groups)
            route_row(at, a, logits, &l, row, found);
}

KFN void k_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], n = rows * a->n_used;
    struct lists l;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    if (at.group == 0 && few_experts(a) && rows <= 64u && !a->per_row)
        few_group(at, a, &l, rows, shm);
    else if (at.group == 0)
        group_all(at, a, &l, n, at.lane < n ? l.ids[at.lane] : 0u, shm);
}

/* Rows over the SIMD groups, then the lists. Few pairs go from one to the other through shared memory. */
KFN void k_route_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], n = rows * a->n_used, found[2] = {0, 0};
    struct lists l;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    if (at.group == 0 && few_experts(a)) {
        few_route_group(at, a, &l, (DEV const float *)b.p[1], rows, shm);
    } else if (at.group == 0) {
        for (u32 row = at.simd; row < rows; row += GPU_SIMDS) {
            route_row(at, a, (DEV const float *)b.p[1], &l, row, found);
            if (n <= 32u && at.lane < a->n_used)
                shm[row * a->n_used + at.lane] = found[0];
        }
        BARRIER_DEV(at); /* the ids */
        group_all(at, a, &l, n, n <= 32u && at.lane < n ? shm[at.lane] : 0u, shm);
    }
}
