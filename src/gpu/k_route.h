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
 * Shared memory of route_group and group, words (E = n_experts; GPU_SHM_ROUTE):
 *   [0, 8 E)         counters: (SIMD group, expert); after the scan the place of the next such pair. route_group before that: the ids
 *                    of at most 32 pairs
 *   [8 E, 8 E + 24)  the scan: pairs, tiles and experts that are hit, of each SIMD group's lanes */

/* Of the lists, on pointers. */
struct lists {
    DEV u32 *ids;
    DEV float *w;
    DEV u32 *pairs, *tiles;
    DEV u32 *hits; /* or NULL */
};

KFN void lists_at(THR struct lists *l, CON const struct route_args *a, DEV u32 *words, DEV u32 *hits)
{
    l->hits = a->hits ? hits + a->hits_at : (DEV u32 *)0;
    l->ids = words + a->ids_at;
    l->w = (DEV float *)words + a->w_at;
    l->pairs = words + a->pairs_at;
    l->tiles = words + a->tiles_at;
}

/* ---- top-k of a row ---- */

KFN u32 route_key(float x)
{
    u32 u = EX_BITS(x);
    u = (u & 0x7FFFFFFFu) == 0 ? 0 : u;
    u32 key = u >> 31 ? ~u : u | 0x80000000u; /* -infinity: 0x007FFFFF */
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? 1u : key;
}

/* The logit again; a zero without its sign, a NaN without its payload. */
KFN float route_logit(u32 key)
{
    return EX_FLOAT(key == 1u ? 0x7FC00000u : key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

/* Sum of the chosen in rank order, from lane 0 on. */
KFN float route_sum_used(struct at at, u32 n_used, THR const float *e)
{
    float sum = 0.0f;
    for (u32 r0 = 0; r0 < n_used; r0 += 8u) {
        float v[8];
        UNROLL
        for (u32 k = 0; k < 8; k++) {
            u32 r = r0 + k;
            v[k] = EX_FLOAT(shuffle_from(at, EX_BITS(r0 < 32u ? e[0] : e[1]), r % 32u));
        }
        UNROLL
        for (u32 k = 0; k < 8; k++)
            sum = r0 + k < n_used ? sum + v[k] : sum;
    }
    return sum;
}

/* Sum over all experts by rule 6. */
KFN float route_sum_all(struct at at, u32 n, DEV const float *logits, float top)
{
    float s = 0.0f;
    for (u32 e = at.lane; e < n; e += 32u)
        s = s + ex_flush(ex_exp(logits[e] - top));
    return simd_tree(at, s);
}

KFN void route_weights(struct at at, CON const struct route_args *a, DEV const float *logits, THR const u32 *kept, u32 first,
                       THR float *w)
{
    float top = route_logit(first), e[2];
    UNROLL
    for (u32 s = 0; s < 2; s++)
        e[s] = ex_flush(ex_exp(route_logit(kept[s]) - top));
    float sum = a->used_norm ? route_sum_used(at, a->n_used, e) : route_sum_all(at, a->n_experts, logits, top);
    UNROLL
    for (u32 s = 0; s < 2; s++)
        w[s] = ex_flush(div_rn(e[s], sum) * a->used_scale);
}

/* One row, experts in PER registers of each lane: PER * 32 >= n_experts. found: rank r's expert in lane r % 32 of found[r / 32]. */
#define ROUTE_ROW(PER)                                                                                           \
    KFN void route_row_##PER(struct at at, CON const struct route_args *a, DEV const float *logits, THR u32 *found, THR float *w) \
    {                                                                                                            \
        u32 key[PER];                                                                                            \
        UNROLL                                                                                                   \
        for (u32 j = 0; j < PER; j++) {                                                                          \
            u32 e = 32u * j + at.lane;                                                                           \
            key[j] = e < a->n_experts ? route_key(logits[e]) : 0u;                                               \
        }                                                                                                        \
        u32 first = 0, kept[2] = {0, 0};                                                                         \
        for (u32 r = 0; r < a->n_used; r++) {                                                                    \
            u32 best = key[0], id = at.lane;                                                                     \
            UNROLL                                                                                               \
            for (u32 j = 1; j < PER; j++) {                                                                      \
                id = key[j] > best ? 32u * j + at.lane : id;                                                     \
                best = key[j] > best ? key[j] : best;                                                            \
            }                                                                                                    \
            u32 top = simd_max_u32(at, best);                                                                    \
            id = ~simd_max_u32(at, best == top ? ~id : 0u);                                                      \
            UNROLL                                                                                               \
            for (u32 j = 0; j < PER; j++)                                                                        \
                key[j] = id == 32u * j + at.lane ? 0u : key[j];                                                  \
            first = r ? first : top;                                                                             \
            UNROLL                                                                                               \
            for (u32 s = 0; s < 2; s++)                                                                          \
                if (r == 32u * s + at.lane) {                                                                    \
                    found[s] = id;                                                                               \
                    kept[s] = top;                                                                               \
                }                                                                                                \
        }                                                                                                        \
        route_weights(at, a, logits, kept, first, w);                                                            \
    }

ROUTE_ROW(4)
ROUTE_ROW(16)
ROUTE_ROW(32)

/* A row's ids and weights to the lists; what a lane found stays in found. */
KFN void route_row(struct at at, CON const struct route_args *a, DEV const float *logits, THR const struct lists *l, u32 row,
                   THR u32 *found)
{
    float w[2];
    logits += (u64)row * a->stride;
    if (a->n_experts <= 128u)
        route_row_4(at, a, logits, found, w);
    else if (a->n_experts <= 512u)
        route_row_16(at, a, logits, found, w);
    else
        route_row_32(at, a, logits, found, w);
    UNROLL
    for (u32 s = 0; s < 2; s++) {
        u32 r = 32u * s + at.lane;
        if (r < a->n_used) {
            l->ids[row * a->n_used + r] = found[s];
            l->w[row * a->n_used + r] = w[s];
        }
    }
}

KFN void k_route(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], found[2] = {0, 0};
    struct lists l;
    (void)shm;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    for (u32 row = at.simd * at.n_groups + at.group; row < rows; row += GPU_SIMDS * at.n_groups)
        route_row(at, a, (DEV const float *)b.p[1], &l, row, found);
}

/* ---- the lists ---- */

/* e: of pair `lane`, where there are at most 32. */
KFN void group_per_row(struct at at, THR const struct lists *l, u32 n, u32 e)
{
    for (u32 i = at.thread; i < n; i += GPU_THREADS) {
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
    if (at.thread == 0) {
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
    u32 e0 = at.thread * per, e1 = least_u32(e0 + per, n_experts);
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
    if (at.thread == GPU_THREADS - 1u) {
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

KFN void k_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 n = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which] * a->n_used;
    struct lists l;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    if (at.group == 0)
        group_all(at, a, &l, n, at.lane < n ? l.ids[at.lane] : 0u, shm);
}

/* Rows over the SIMD groups, then the lists. Few pairs go from one to the other through shared memory. */
KFN void k_route_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], n = rows * a->n_used, found[2] = {0, 0};
    struct lists l;
    lists_at(&l, a, (DEV u32 *)b.p[2], (DEV u32 *)b.p[3]);
    if (at.group == 0) {
        for (u32 row = at.simd; row < rows; row += GPU_SIMDS) {
            route_row(at, a, (DEV const float *)b.p[1], &l, row, found);
            if (n <= 32u && at.lane < a->n_used)
                shm[row * a->n_used + at.lane] = found[0];
        }
        BARRIER(at);
        group_all(at, a, &l, n, n <= 32u && at.lane < n ? shm[at.lane] : 0u, shm);
    }
}
