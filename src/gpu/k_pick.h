/* The best tokens of each row of logits, in order: by (logit down, id up), -0 equal to 0. Exact whatever the logits are.
 *
 * A candidate is one number, bigger is better: the logit's ordered bits << 24 | (2^24 - 1 - id); 0 is none. No two are equal, so a
 * set and its order never depend on who found it first, and "better than this number" is all that is ever asked.
 *
 * Pick: a part of a row by a group. A thread has vectors of 4 logits, 1024 apart, so that good tokens that lie together fall to many
 * threads. Of the threads' best, the 8th of each SIMD group's 32 and the least of those 8 is a bound that 64 logits at least reach:
 * those that do are collected (64 to 256, near 100 for logits that look like chance) and ranked by counting. Where more than
 * PICK_ROOM reach it, the bound is found bit by bit instead, and exactly as many reach it as are wanted.
 *
 * Pick join: the sorted lists of a row's parts, two by two: an entry's place in the joined list is its own place plus the
 * number of better ones in the other list, by bisection; what falls behind the 64th is dropped. Five rounds make one list.
 *
 * Rows of logits begin 16-byte aligned and are readable to a multiple of 4.
 * Shared memory of pick (GPU_SHM_PICK):           of pick_join (GPU_SHM_PICK_JOIN):
 *   [0, 2048)     candidates found, u64             [0, 16384)      32 lists of 64 candidates, u64; then 8 lists, 2 lists
 *   [2048, 3072)  their logits                      [16384, 24576)  16 lists, 4 lists, 1 list
 *   [3072, 3136)  bounds, what is not finite: a     [24576, 24580)  1 when every part is finite
 *                 word of each SIMD group
 *   [3136, 3200)  sums, twice: the one in hand and the one that some may still read */

enum { PICK_ROOM = GPU_THREADS, PICK_AHEAD = 8 }; /* vectors that a thread loads before it looks at them */

struct pick_part { /* logits [first, last) of a row; first is a multiple of 4 */
    DEV const float *row;
    u32 first, last;
};

KFN u32 pick_key(u32 bits) /* ordered as floats are; of what is finite never 0 */
{
    u32 u = (bits & 0x7FFFFFFFu) == 0 ? 0 : bits;
    return u >> 31 ? ~u : u | 0x80000000u;
}

KFN u64 pick_number(u32 bits, u32 id)
{
    return (u64)pick_key(bits) << 24 | (0xFFFFFFu - id);
}

/* ---- a part ---- */

/* A thread's vectors from i0 on, PICK_AHEAD of them, 1024 logits apart; 0 where there is none. */
KFN void pick_load(struct at at, THR w4 *v, THR const struct pick_part *p, u32 i0)
{
    UNROLL
    for (u32 k = 0; k < PICK_AHEAD; k++) {
        w4 none = {0, 0, 0, 0};
        u32 i = i0 + 4u * (k * GPU_THREADS + at.id);
        v[k] = i < p->last ? load16(p->row + i) : none;
    }
}

/* The key of a thread's best logit, 0 without one; *bad: 1 when one of them is not finite. */
KFN u32 pick_best(struct at at, THR const struct pick_part *p, THR u32 *bad)
{
    u32 best = 0, worst = 0;
    for (u32 i0 = p->first; i0 < p->last; i0 += 4u * PICK_AHEAD * GPU_THREADS) {
        w4 v[PICK_AHEAD];
        pick_load(at, v, p, i0);
        UNROLL
        for (u32 k = 0; k < PICK_AHEAD; k++) {
            u32 i = i0 + 4u * (k * GPU_THREADS + at.id), u[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
            UNROLL
            for (u32 j = 0; j < 4; j++) {
                u32 there = i + j < p->last, key = there ? pick_key(u[j]) : 0u, size = there ? u[j] & 0x7FFFFFFFu : 0u;
                best = key > best ? key : best;
                worst = size > worst ? size : worst;
            }
        }
    }
    *bad = worst >= 0x7F800000u;
    return best;
}

/* How many of a thread's logits reach a bound. keep: they go to the list from place `to` on, and their bits besides. */
KFN u32 pick_reach(struct at at, THR const struct pick_part *p, u64 bound, bool keep, SHM u64 *list, SHM u32 *logits, u32 to)
{
    u32 n = 0;
    for (u32 i0 = p->first; i0 < p->last; i0 += 4u * PICK_AHEAD * GPU_THREADS) {
        w4 v[PICK_AHEAD];
        pick_load(at, v, p, i0);
        UNROLL
        for (u32 k = 0; k < PICK_AHEAD; k++) {
            u32 i = i0 + 4u * (k * GPU_THREADS + at.id), u[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
            UNROLL
            for (u32 j = 0; j < 4; j++) {
                u64 number = pick_number(u[j], i + j);
                if (i + j < p->last && number >= bound) {
                    if (keep) {
                        list[to + n] = number;
                        logits[to + n] = u[j];
                    }
                    n++;
                }
            }
        }
    }
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

/* The bound that exactly `want` logits reach: its bits from the highest down. sums: twice a word of each SIMD group; begins with the
 * second, ends with the first. */
KFN u64 pick_bound(struct at at, THR const struct pick_part *p, u32 want, SHM u32 *sums)
{
    u64 bound = 0;
    NO_UNROLL
    for (u32 bit = 56; bit-- > 0;) {
        u64 more = bound | (u64)1 << bit;
        u32 before, n = pick_sum(at, sums + bit % 2u * GPU_SIMDS, pick_reach(at, p, more, false, 0, 0, 0), &before);
        bound = n >= want ? more : bound;
    }
    return bound;
}

/* best: this thread's key. bound: a key that some reach, 64 of them or all. */
KFN void pick_list(struct at at, THR const struct pick_part *p, u32 best, u32 bound, DEV u32 *out, SHM u32 *shm)
{
    SHM u64 *list = (SHM u64 *)shm;
    SHM u32 *logits = shm + 2u * PICK_ROOM, *sums = shm + 3u * PICK_ROOM + 2u * GPU_SIMDS;
    u64 least = (u64)bound << 24;
    u32 before, mine = best >= bound ? pick_reach(at, p, least, false, 0, 0, 0) : 0u, n = pick_sum(at, sums, mine, &before);
    if (n > PICK_ROOM) {
        least = pick_bound(at, p, PICK_TOP, sums);
        mine = pick_reach(at, p, least, false, 0, 0, 0);
        n = pick_sum(at, sums + GPU_SIMDS, mine, &before);
    }
    if (mine)
        pick_reach(at, p, least, true, list, logits, before);
    BARRIER(at);
    if (at.id < n) {
        u64 number = list[at.id];
        u32 better = 0;
        for (u32 j0 = 0; j0 < n; j0 += 8u) {
            UNROLL
            for (u32 k = 0; k < 8; k++)
                better += (j0 + k < n) & (list[j0 + k] > number); /* what is read past n lies in the list's room */
        }
        if (better < PICK_TOP) {
            out[2u + 2u * better] = 0xFFFFFFu - (u32)(number & 0xFFFFFFu);
            out[3u + 2u * better] = logits[at.id];
        }
    }
    if (at.id == 0) {
        out[0] = 1;
        out[1] = least_u32(n, PICK_TOP);
    }
}

KFN void k_pick(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    u32 items = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which] * PICK_PARTS;
    u32 each = (a->n_vocab + 4u * PICK_PARTS - 1u) / (4u * PICK_PARTS) * 4u;
    SHM u32 *words = shm + 3u * PICK_ROOM;
    for (u32 item = at.group; item < items; item += at.n_groups) {
        DEV u32 *out = (DEV u32 *)b.p[3] + (u64)item * PICK_WORDS;
        struct pick_part p;
        p.row = (DEV const float *)b.p[1] + (u64)(item / PICK_PARTS) * a->stride;
        p.first = least_u32(item % PICK_PARTS * each, a->n_vocab);
        p.last = least_u32(p.first + each, a->n_vocab);
        u32 bad, best = pick_best(at, &p, &bad), eighth = pick_eighth(at, best), bound = ~0u;
        bad = simd_ballot(at, bad);
        if (at.lane == 0) {
            words[at.simd] = eighth;
            words[GPU_SIMDS + at.simd] = bad;
        }
        BARRIER(at);
        bad = 0;
        UNROLL
        for (u32 s = 0; s < GPU_SIMDS; s++) {
            bound = least_u32(bound, words[s]);
            bad |= words[GPU_SIMDS + s];
        }
        if (!bad) {
            pick_list(at, &p, best, bound ? bound : 1u, out, shm);
        } else {
            if (at.id < 2u)
                out[at.id] = 0;
            BARRIER(at); /* words are read: pick_list has barriers of its own */
        }
    }
}

/* ---- the parts of a row ---- */

/* How many of a sorted list's 64 stand before a number; ties: before it too. */
KFN u32 pick_better(SHM const u64 *list, u64 number, u32 ties)
{
    u32 n = 0;
    u64 least = ties ? number : number + 1u;
    UNROLL
    for (u32 step = 32; step; step /= 2)
        n += list[n + step - 1u] >= least ? step : 0u;
    return n + (list[n] >= least ? 1u : 0u);
}

/* n lists of 64 become n / 2. Numbers of 0 take places too, so that each place is written. */
KFN void pick_merge(struct at at, SHM const u64 *from, SHM u64 *to, u32 n)
{
    for (u32 i = at.id; i < n * PICK_TOP; i += GPU_THREADS) {
        u32 list = i / PICK_TOP;
        u64 number = from[i];
        u32 place = i % PICK_TOP + pick_better(from + (list ^ 1u) * PICK_TOP, number, list & 1u);
        if (place < PICK_TOP)
            to[list / 2u * PICK_TOP + place] = number;
    }
    BARRIER(at);
}

KFN void pick_gather(struct at at, DEV const u32 *parts, SHM u64 *lists)
{
    u32 id[PICK_PARTS * PICK_TOP / GPU_THREADS], bits[PICK_PARTS * PICK_TOP / GPU_THREADS];
    UNROLL
    for (u32 k = 0; k < PICK_PARTS * PICK_TOP / GPU_THREADS; k++) {
        u32 i = k * GPU_THREADS + at.id, j = i % PICK_TOP;
        DEV const u32 *part = parts + i / PICK_TOP * PICK_WORDS;
        bits[k] = part[3u + 2u * j];
        id[k] = j < part[1] ? part[2u + 2u * j] : ~0u;
    }
    UNROLL
    for (u32 k = 0; k < PICK_PARTS * PICK_TOP / GPU_THREADS; k++)
        lists[k * GPU_THREADS + at.id] = id[k] != ~0u ? pick_number(bits[k], id[k]) : 0u;
}

KFN void k_pick_join(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rows = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which];
    SHM u64 *wide = (SHM u64 *)shm, *narrow = wide + PICK_PARTS * PICK_TOP;
    SHM u32 *finite = shm + 3u * PICK_PARTS * PICK_TOP;
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        DEV const u32 *parts = (DEV const u32 *)b.p[3] + (u64)row * PICK_PARTS * PICK_WORDS;
        DEV const u32 *logits = (DEV const u32 *)b.p[1] + (u64)row * a->stride;
        DEV u32 *out = (DEV u32 *)b.p[2] + (u64)row * PICK_WORDS;
        pick_gather(at, parts, wide);
        if (at.simd == 0) {
            u32 good = simd_ballot(at, parts[at.lane * PICK_WORDS]); /* 32 parts: a lane each */
            if (at.lane == 0)
                *finite = good == ~0u;
        }
        BARRIER(at);
        u32 n = *finite ? least_u32(a->n_vocab, PICK_TOP) : 0u; /* before the merges' barriers: the next row writes it again */
        pick_merge(at, wide, narrow, 32);
        pick_merge(at, narrow, wide, 16);
        pick_merge(at, wide, narrow, 8);
        pick_merge(at, narrow, wide, 4);
        pick_merge(at, wide, narrow, 2);
        if (at.id < n) {
            u32 id = 0xFFFFFFu - (u32)(narrow[at.id] & 0xFFFFFFu);
            out[2u + 2u * at.id] = id;
            out[3u + 2u * at.id] = logits[id]; /* the bits of a zero too */
        }
        if (at.id == 0) {
            out[0] = n ? 1u : 0u;
            out[1] = n;
        }
    }
}
