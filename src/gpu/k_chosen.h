/* Experts that a launch chooses for itself, from what the router left, instead of reading lists (rule 8: whoever
 * chooses chooses the same): few_in and few_out, whose pairs go by themselves (k_few_experts.h), and in Apple's shape
 * experts_in_1, of at most 8 rows (k_experts.h).
 *
 * A group chooses for the rows that its share of the work touches, or all, a row a SIMD group. The last group, whose
 * share is none of the larger ones, chooses for all rows, and writes what later launches read of the lists.
 *
 *   `chosen`, words of shared memory: ids [rows][n_used] (64) | ranks of a SIMD group's row [8][FEW_ALONE] |
 *                                     chosen_lists: masks (32)
 *
 * chosen_lists: at most 64 pairs in order, as k_group has them: an expert's rows are the bits of a byte, a pair's place
 * is the number of bits in the bytes before its own, and of rows before its own. The lists take the ranks' place. */

enum {
    CHOSEN_TILES = 64, /* as in the route lists: how many, then two words for each */
    CHOSEN_PAIRS = CHOSEN_TILES + 132,
    CHOSEN_MASKS = 64 + GPU_SIMDS * FEW_ALONE
};

/* The rows [first, + n) whose experts a group chooses: those that its units [from, to) touch, for the last group all;
 * staged: how many are touched. */
struct few_touched {
    u32 first, n, staged;
};

/* How many experts the pairs of all rows hit, by one SIMD group. */
KFN u32 few_hits(struct at at, SHM const u32 *chosen, u32 n)
{
    u32 hits = 0;
    NO_UNROLL
    for (u32 i = at.lane; i < n + at.lane; i += 32u) {
        u32 mine = i < n ? chosen[i] : 0u, before = 0;
        NO_UNROLL
        for (u32 j = 0; j < n; j++)
            before |= j < i && chosen[j] == mine ? 1u : 0u;
        hits += popcount(simd_ballot(at, i < n && !before));
    }
    return hits;
}

/* What a SIMD group is to choose from: row first + simd of those touched, and later its experts into `chosen`;
 * returns the expert of the row's rank `lane`. Between the two anything else may be waited for; then `chosen` is
 * there for all. */
KFN void few_choose_ask(struct at at, CON const struct route_args *route, DEV const float *logits,
                        THR const struct few_touched *t, THR w4 *v)
{
    few_ask(route, logits + (t->first + at.simd) * route->stride, 4u * at.lane, at.simd < t->n, v);
}

KFN u32 few_choose_rows(struct at at, CON const struct route_args *route, DEV const float *logits,
                        THR const struct few_touched *t, THR const w4 *v, SHM u32 *chosen)
{
    u32 row = t->first + at.simd, id = 0u;
    w4 x = few_sum(route, logits + row * route->stride, 4u * at.lane, at.simd < t->n, v);
    if (at.simd < t->n) {
        id = few_alone(at, route, logits, row, x, chosen + 64u + at.simd * FEW_ALONE);
        if (at.lane < route->n_used)
            chosen[row * route->n_used + at.lane] = id;
    }
    BARRIER(at);
    return id;
}

/* What the kernels after this one read of the route: by the last group, whose SIMD group has row `simd`. */
KFN void few_choose_put(struct at at, CON const struct route_args *route, struct bufs b, u32 n_rows, u32 id,
                        SHM const u32 *chosen)
{
    struct lists l;
    u32 n = n_rows * route->n_used;
    lists_at(&l, route, (DEV u32 *)b.p[5], (DEV u32 *)b.p[8]);
    if (at.simd < n_rows)
        few_alone_put(at, route, &l, (DEV const float *)b.p[7], at.simd, id);
    if (at.simd == GPU_SIMDS - 1u && l.hits) {
        u32 hits = few_hits(at, chosen, n);
        if (at.lane == 0u)
            *l.hits = route->per_row && n > 32u ? n : hits;
    }
}

/* A group's units; where experts are chosen the last group has none, if there is another. */
KFN void few_share(struct at at, u32 choose, u32 units, THR u32 *from, THR u32 *to)
{
    struct at of = at;
    of.n_groups = choose && at.n_groups > 1u ? at.n_groups - 1u : at.n_groups;
    share_units(of, units, from, to);
    if (at.group >= of.n_groups)
        *from = *to = 0u;
}

/* How many bytes of v are not 0. */
KFN u32 bytes_some(u32 v)
{
    return popcount((((v & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | v) & 0x80808080u);
}

/* The experts that are chosen, id: of the rank `lane` of row t->first + simd, as lists in `chosen`, there for all.
 * per_row: every pair of n_rows is a tile of its own, in order, and those that are not touched are not written. The
 * masks are 0, behind a barrier. */
KFN void chosen_lists(struct at at, CON const struct route_args *route, THR const struct few_touched *t, u32 n_rows,
                      u32 id, SHM u32 *chosen)
{
    const bool each = route->per_row;
    SHM u32 *tiles = chosen + CHOSEN_TILES, *masks = chosen + CHOSEN_MASKS;
    u32 row = t->first + at.simd, bit = id % 4u * 8u, pair = row * route->n_used + at.lane;
    bool live = at.simd < t->n && at.lane < route->n_used;
    if (live)
        shm_add_u32(masks + id / 4u, 1u << (bit + row));
    BARRIER(at);
    u32 mask = masks[at.lane], mine = popcount(mask) | bytes_some(mask) << 16, ends = simd_scan(at, mine);
    u32 before = shuffle_from(at, ends - mine, id / 4u), here = shuffle_from(at, mask, id / 4u);
    u32 below = here & ((1u << bit) - 1u), rows = here >> bit & 255u, ahead = rows & ((1u << row) - 1u);
    u32 to = (before & 0xFFFFu) + popcount(below) + popcount(ahead);
    u32 tile = each ? pair : (before >> 16) + bytes_some(below);
    to = each ? pair : to;
    if (live) {
        chosen[CHOSEN_PAIRS + to] = pair;
        if (each || ahead == 0u) {
            tiles[1u + 2u * tile] = id;
            tiles[2u + 2u * tile] = to | (each ? 1u : popcount(rows)) << 24;
        }
    }
    if (at.id == 31u)
        tiles[0] = each ? n_rows * route->n_used : ends >> 16;
    BARRIER(at);
}

/* They and what few_choose_put writes to the lists on the device. */
KFN void chosen_lists_put(struct at at, CON const struct route_args *route, struct bufs b, u32 n_rows, u32 id,
                          SHM const u32 *chosen)
{
    DEV u32 *lists = (DEV u32 *)b.p[5];
    few_choose_put(at, route, b, n_rows, id, chosen);
    if (at.id < n_rows * route->n_used)
        lists[route->pairs_at + at.id] = chosen[CHOSEN_PAIRS + at.id];
    if (at.id <= 2u * chosen[CHOSEN_TILES])
        lists[route->tiles_at + at.id] = chosen[CHOSEN_TILES + at.id];
}
