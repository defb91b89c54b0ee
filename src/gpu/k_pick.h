/* The best tokens of each row of logits, in order: by (logit down, id up), -0 equal to 0. Exact whatever the logits are.
 *
 * A candidate is one number, bigger is better: its key, the logit's ordered bits, << 24 | (2^24 - 1 - its id or place); 0 is none. No two are equal, so a
 * set and its order never depend on who found it first, and "better than this number" is all that is ever asked.
 *
 * Pick: rows are cut into blocks (GPU_PICK_BLOCK, at most PICK_BLOCKS of them). A SIMD group finds the key of the best logit of four blocks at a time: all
 * that is done with every logit is done here, over the whole GPU, at the speed of its memory.
 *
 * Pick join, a row a group: the 64 blocks with the best keys (of equal keys the first) hold the 64 best logits: whatever lies in another block, 64 are better.
 * The least of the 64 keys is a bound for the logits of these blocks: those that reach it are collected (64 to 256, near 66 for logits that look like
 * chance) and ranked by counting. The blocks are chosen in the same way: a thread has 8 keys; of the threads' best, the 8th of each SIMD group's 32 and the
 * least of those 8 is the bound. Where more than PICK_ROOM reach one of the bounds, it is found bit by bit instead, and exactly as many reach it as are wanted.
 *
 * Of at most PICK_ALONE logits pick join ranks all, without keys of blocks.
 *
 * Rows of logits begin 16-byte aligned and are readable to a multiple of 4.
 * Shared memory of pick_join (GPU_SHM_PICK_JOIN):
 *   [0, 2048)     candidates found, u64
 *   [2048, 3072)  their logits
 *   [3072, 3328)  blocks chosen, by rank
 *   [3328, 3332)  the least of their keys
 *   [3344, 3408)  bounds, best keys: a word of each SIMD group
 *   [3408, 3472)  sums, twice: the one in hand and the one that some may still read */

enum {
    PICK_ROOM = GPU_THREADS,
    PICK_AHEAD = 4,                       /* blocks that a SIMD group looks at together */
    PICK_KEYS = PICK_BLOCKS / GPU_THREADS /* of a thread */
};

KFN u32 pick_order(u32 bits) /* ordered as floats are, -0 before 0; of what is finite never 0 and never all bits */
{
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}

KFN u32 pick_key(u32 bits)
{
    return bits == 0x80000000u ? bits : pick_order(bits);
}

KFN u64 pick_number(u32 key, u32 id)
{
    return (u64)key << 24 | (0xFFFFFFu - id);
}

KFN u32 pick_blocks(u32 n_vocab)
{
    u32 rest, n = split_u32(n_vocab, GPU_PICK_BLOCK(n_vocab), &rest);
    return n + (rest ? 1u : 0u);
}

/* ---- the best of each block ---- */

/* Four logits from number i on; what lies past the last is as low as a finite one can be, which makes no key another. */
KFN w4 pick_load(DEV const float *row, u32 i, u32 n)
{
    const u32 low = 0xFF7FFFFFu;
    w4 v = {low, low, low, low};
    if (i >= n)
        return v;
    v = load16(row + i);
    if (i + 4u > n) {
        v.y = i + 1u < n ? v.y : low;
        v.z = i + 2u < n ? v.z : low;
        v.w = low;
    }
    return v;
}

KFN void pick_look(u32 bits, THR u32 *best, THR u32 *worst)
{
    u32 key = pick_order(bits), size = bits & 0x7FFFFFFFu;
    *best = key > *best ? key : *best;
    *worst = size > *worst ? size : *worst;
}

KFN void k_pick(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], n = a->n_vocab, len = GPU_PICK_BLOCK(n), blocks = pick_blocks(n);
    struct walk w;
    (void)shm;
    for (walk_start(at, (blocks + PICK_AHEAD - 1u) / PICK_AHEAD, &w); w.row < rows; walk_on(&w)) {
        DEV const float *row = (DEV const float *)b.p[1] + (u64)w.row * a->stride;
        u32 first = w.piece * PICK_AHEAD, best[PICK_AHEAD], worst[PICK_AHEAD], mine = 0;
        UNROLL
        for (u32 j = 0; j < PICK_AHEAD; j++)
            best[j] = worst[j] = 0;
        NO_UNROLL
        for (u32 i0 = 4u * at.lane; i0 < len; i0 += 128u) {
            w4 v[PICK_AHEAD];
            UNROLL
            for (u32 j = 0; j < PICK_AHEAD; j++)
                v[j] = pick_load(row, (first + j) * len + i0, n);
            UNROLL
            for (u32 j = 0; j < PICK_AHEAD; j++) {
                pick_look(v[j].x, &best[j], &worst[j]);
                pick_look(v[j].y, &best[j], &worst[j]);
                pick_look(v[j].z, &best[j], &worst[j]);
                pick_look(v[j].w, &best[j], &worst[j]);
            }
        }
        UNROLL
        for (u32 j = 0; j < PICK_AHEAD; j++) {
            u32 top = simd_max_u32(at, worst[j] >= 0x7F800000u ? ~0u : best[j]);
            mine = at.lane == j ? top : mine;
        }
        if (at.lane < PICK_AHEAD && first + at.lane < blocks)
            ((DEV u32 *)b.p[3])[w.row * PICK_BLOCKS + first + at.lane] = mine == 0x7FFFFFFFu ? 0x80000000u : mine; /* -0 */
    }
}

/* ---- the best of a row ---- */

struct pick_row {
    DEV const float *logits;
    u32 n, len;            /* of the row, of a block */
    u32 key[PICK_KEYS];    /* a thread's, of blocks GPU_THREADS apart; 0: none */
    SHM u64 *list;
    SHM u32 *bits, *blocks, *least, *words, *sums;
};

/* A thread's keys that reach a bound. */
KFN u32 pick_reach_keys(struct at at, THR const struct pick_row *p, u64 bound)
{
    u32 n = 0;
    UNROLL
    for (u32 k = 0; k < PICK_KEYS; k++)
        n += p->key[k] != 0u && pick_number(p->key[k], k * GPU_THREADS + at.id) >= bound ? 1u : 0u;
    return n;
}

/* The number of logit `bit` of a lane: it has four, of each of eight chosen blocks, from place i0 of the block on. */
KFN u32 pick_id(struct at at, THR const struct pick_row *p, u32 i0, u32 bit)
{
    return p->blocks[at.simd * 8u + bit / 4u] * p->len + i0 + 4u * at.lane + bit % 4u;
}

/* Which of them reach a bound: a bit each. */
KFN u32 pick_reach_bits(struct at at, THR const struct pick_row *p, u32 i0, u64 bound)
{
    u32 reach = 0, high = (u32)(bound >> 24), low = (u32)bound & 0xFFFFFFu, first[8];
    w4 v[8];
    UNROLL
    for (u32 j = 0; j < 8u; j++) {
        w4 none = {0, 0, 0, 0};
        first[j] = i0 + 4u * at.lane < p->len ? pick_id(at, p, i0, 4u * j) : p->n;
        v[j] = first[j] < p->n ? load16(p->logits + first[j]) : none;
    }
    UNROLL
    for (u32 j = 0; j < 8u; j++) {
        u32 u[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
        UNROLL
        for (u32 i = 0; i < 4u; i++) {
            u32 key = pick_key(u[i]), id = first[j] + i;
            bool better = key > high || (key == high && 0xFFFFFFu - id >= low);
            reach |= id < p->n && better ? 1u << (4u * j + i) : 0u;
        }
    }
    return reach;
}

KFN u32 pick_reach_logits(struct at at, THR const struct pick_row *p, u64 bound)
{
    u32 n = 0;
    NO_UNROLL
    for (u32 i0 = 0; i0 < p->len; i0 += 128u)
        n += popcount(pick_reach_bits(at, p, i0, bound));
    return n;
}

/* The 8th of a SIMD group's 32 keys. */
KFN u32 pick_eighth(struct at at, u32 key)
{
    u32 better = 0;
    UNROLL
    for (u32 j = 0; j < 32; j++) {
        u32 other = shuffle_from(at, key, j);
        better += other > key || (other == key && j < at.lane) ? 1u : 0u;
    }
    return simd_max_u32(at, better == 7u ? key : 0u);
}

/* Sum of v over the group, and over the threads before this one. words: one of each SIMD group, not those of the sum before. */
KFN u32 pick_sum(struct at at, SHM u32 *words, u32 v, THR u32 *before)
{
    u32 to = simd_scan(at, v), sum = 0, ahead = 0;
    if (at.lane == 31u)
        words[at.simd] = to;
    BARRIER(at);
    UNROLL
    for (u32 s = 0; s < GPU_SIMDS; s++) {
        u32 n = words[s];
        ahead += s < at.simd ? n : 0u;
        sum += n;
    }
    *before = ahead + to - v;
    return sum;
}

/* How many reach *bound, and how many of them are threads' before this one. Where they are more than there is room for, the bound that exactly `want`
 * reach: its bits from the highest down. logits: of the chosen blocks; else the threads' keys. */
KFN u32 pick_count(struct at at, const bool logits, THR const struct pick_row *p, u32 want, THR u64 *bound, THR u32 *before)
{
    u64 least = *bound;
    u32 n = pick_sum(at, p->sums, logits ? pick_reach_logits(at, p, least) : pick_reach_keys(at, p, least), before);
    if (n <= PICK_ROOM)
        return n;
    least = 0;
    NO_UNROLL
    for (u32 bit = 56; bit-- > 0;) {
        u64 more = least | (u64)1 << bit;
        u32 mine = logits ? pick_reach_logits(at, p, more) : pick_reach_keys(at, p, more);
        n = pick_sum(at, p->sums + bit % 2u * GPU_SIMDS, mine, before);
        least = n >= want ? more : least;
    }
    *bound = least;
    return pick_sum(at, p->sums + GPU_SIMDS, logits ? pick_reach_logits(at, p, least) : pick_reach_keys(at, p, least), before);
}

/* Of n candidates, those that are better. */
KFN u32 pick_better(SHM const u64 *list, u64 number, u32 n)
{
    u32 better = 0;
    for (u32 j0 = 0; j0 < n; j0 += 8u) {
        UNROLL
        for (u32 k = 0; k < 8; k++)
            better += (j0 + k < n) & (list[j0 + k] > number); /* what is read past n lies in the list's room */
    }
    return better;
}

/* A candidate, of n, to its place in what comes out. */
KFN void pick_rank(SHM const u64 *list, u64 number, u32 bits, u32 n, u32 want, DEV u32 *out)
{
    u32 better = pick_better(list, number, n);
    if (better < want) {
        out[2u + 2u * better] = 0xFFFFFFu - (u32)(number & 0xFFFFFFu);
        out[3u + 2u * better] = bits;
    }
}

/* bound: a key that some blocks reach, 64 of them or all. */
KFN void pick_choose(struct at at, THR const struct pick_row *p, u32 bound)
{
    u64 least = (u64)bound << 24;
    u32 to, n = pick_count(at, false, p, PICK_TOP, &least, &to);
    UNROLL
    for (u32 k = 0; k < PICK_KEYS; k++) {
        u64 number = pick_number(p->key[k], k * GPU_THREADS + at.id);
        if (p->key[k] != 0u && number >= least)
            p->list[to++] = number;
    }
    BARRIER(at);
    if (at.id < n) {
        u64 number = p->list[at.id];
        u32 better = pick_better(p->list, number, n);
        if (better < PICK_TOP)
            p->blocks[better] = 0xFFFFFFu - (u32)(number & 0xFFFFFFu);
        if (better == PICK_TOP - 1u)
            *p->least = (u32)(number >> 24);
    }
    BARRIER(at);
}

/* Of the chosen blocks, the best logits. */
KFN void pick_put(struct at at, THR const struct pick_row *p, DEV u32 *out)
{
    u64 least = (u64)*p->least << 24;
    u32 want = least_u32(p->n, PICK_TOP), to, n = pick_count(at, true, p, want, &least, &to);
    NO_UNROLL
    for (u32 i0 = 0; i0 < p->len; i0 += 128u) {
        u32 reach = pick_reach_bits(at, p, i0, least);
        while (reach) {
            u32 id = pick_id(at, p, i0, popcount((reach & (0u - reach)) - 1u)), u = EX_BITS(p->logits[id]);
            p->list[to] = pick_number(pick_key(u), id);
            p->bits[to++] = u;
            reach &= reach - 1u;
        }
    }
    BARRIER(at);
    if (at.id < n)
        pick_rank(p->list, p->list[at.id], p->bits[at.id], n, want, out);
    if (at.id == 0) {
        out[0] = 1;
        out[1] = want;
    }
}

/* At most as many logits as there are threads. */
KFN void pick_alone(struct at at, THR const struct pick_row *p, DEV u32 *out)
{
    u32 u = at.id < p->n ? EX_BITS(p->logits[at.id]) : 0, bad = simd_ballot(at, (u & 0x7FFFFFFFu) >= 0x7F800000u), want = least_u32(p->n, PICK_TOP);
    u64 number = pick_number(pick_key(u), at.id);
    p->list[at.id] = number;
    if (at.lane == 0)
        p->words[at.simd] = bad;
    BARRIER(at);
    bad = 0;
    UNROLL
    for (u32 s = 0; s < GPU_SIMDS; s++)
        bad |= p->words[s];
    if (!bad && at.id < p->n)
        pick_rank(p->list, number, u, p->n, want, out);
    if (at.id == 0) {
        out[0] = bad ? 0u : 1u;
        out[1] = bad ? 0u : want;
    }
    BARRIER(at); /* the next row is written where this one is read */
}

KFN void k_pick_join(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which], blocks = pick_blocks(a->n_vocab);
    struct pick_row p;
    p.n = a->n_vocab;
    p.len = GPU_PICK_BLOCK(a->n_vocab);
    p.list = (SHM u64 *)shm;
    p.bits = shm + 2u * PICK_ROOM;
    p.blocks = shm + 3u * PICK_ROOM;
    p.least = p.blocks + PICK_TOP;
    p.words = p.least + 4;
    p.sums = p.words + 2u * GPU_SIMDS;
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        DEV const u32 *keys = (DEV const u32 *)b.p[3] + row * PICK_BLOCKS;
        DEV u32 *out = (DEV u32 *)b.p[2] + (u64)row * PICK_WORDS;
        p.logits = (DEV const float *)b.p[1] + (u64)row * a->stride;
        u32 best = 0, bound = ~0u, top = 0;
        if (p.n <= PICK_ALONE) {
            pick_alone(at, &p, out);
            continue;
        }
        UNROLL
        for (u32 k = 0; k < PICK_KEYS; k++)
            p.key[k] = k * GPU_THREADS + at.id < blocks ? keys[k * GPU_THREADS + at.id] : 0u;
        UNROLL
        for (u32 k = 0; k < PICK_KEYS; k++)
            best = p.key[k] > best ? p.key[k] : best;
        u32 eighth = pick_eighth(at, best), most = simd_max_u32(at, best);
        if (at.lane == 0) {
            p.words[at.simd] = eighth;
            p.words[GPU_SIMDS + at.simd] = most;
        }
        BARRIER(at);
        UNROLL
        for (u32 s = 0; s < GPU_SIMDS; s++) {
            bound = least_u32(bound, p.words[s]);
            top = p.words[GPU_SIMDS + s] > top ? p.words[GPU_SIMDS + s] : top;
        }
        if (top != ~0u) {
            pick_choose(at, &p, bound ? bound : 1u);
            pick_put(at, &p, out);
        } else {
            if (at.id < 2u)
                out[at.id] = 0;
            BARRIER(at); /* words are read: the others have barriers of their own */
        }
    }
}
