/* Attention of single rows over their past (rule 7): a chunk of 256 positions of a few query heads that share a key/value head is one
 * group's work; k_join joins a row's chunks. What decides here is latency at few rows and the arena's bandwidth at many.
 *
 * Before a launch's turn the chunk's keys are on their way to shared memory, as they lie in the arena, and a slice's
 * first two stages of values. What the launch stores itself comes afterwards: a key to its place among the others, a
 * value as a last step of each chain.
 *
 * Scores: lane = position. A thread holds `heads` x `panels` chains (1 x 1, 2 x 1, 4 x 1, 4 x 2 for 1, 2, 4, 8 heads in
 * an item), so that a key, once a float, serves up to four heads; SIMD group s has heads from s / m on and panels s % m,
 * s % m + m, ... (m SIMD groups share heads).
 * Weights: each thread its own scores, after one exchange of the panels' maxima.
 * Values: a stage of 16 KB (PS_METAL: 4 KB) at a time, f16 of fewer than eight heads turned on the way through registers;
 * all SIMD groups (four of one head) then hold dims x heads chains a thread (1 x 1, 1 x 1, 1 x 2, 2 x 2), and walk
 * positions in order.
 * A launch runs most of its code once, and fetching instructions is a good part of its time, some seven cycles for each
 * where there are branches: loops are short rather than flat.
 *
 *   shared memory: [values: 2 stages] [keys; not PS_METAL] [f16: the row's own value]
 *                  [f16: a head of each SIMD group, being stored]
 *                  [q: floats, or words and scales] [w: (head, 260) floats]
 *                  [q8_0: w * dv: (head, 4 blocks, 260)] [maxima: (head, 8 panels)] [l, m: (head, 2)]
 *
 * Where there are too few items for all groups, an item's dimensions are shared out over 2 or 4 groups, each of which finds the scores
 * for itself. */
#include "gpu/k_attend_parts.h"

/* ---- weights ---- */

/* A thread's scores become weights in shared memory; 0 where the row does not see. A barrier comes before they are read. */
KFN void attend_weights(struct at at, THR const struct attend_item *it, THR const struct attend_place *at_s, THR float *acc,
                        THR const struct attend_shm *s, const u32 n)
{
    const u32 heads = attend_score_heads(n), each = n / heads;
    UNROLL
    for (u32 i = 0; i < heads * each; i++) {
        u32 h = at_s->head + i / each, panel = at_s->first + i % each * at_s->m;
        acc[i] = panel * 32 + at.lane < it->n_pos ? acc[i] : ATT_NONE;
        u32 key = simd_max_u32(at, attend_key(acc[i]));
        if (at.lane == 0)
            s->top[h * 8 + panel] = key;
    }
    BARRIER(at);
    UNROLL
    for (u32 h = 0; h < heads; h++) {
        float m = attend_unkey(simd_max_u32(at, s->top[(at_s->head + h) * 8 + at.lane % 8]));
        if (at_s->first == 0 && at.lane == 0)
            s->ml[2 * (at_s->head + h)] = m;
        UNROLL
        for (u32 p = 0; p < each; p++) {
            u32 j = (at_s->first + p * at_s->m) * 32 + at.lane;
            s->w[(at_s->head + h) * ATT_BANK + j] = attend_weight(acc[h * each + p] - m);
        }
    }
}

/* l of one head: weight j joins sum j % 32. Weights not seen are +0 and change nothing. */
KFN void attend_sum(struct at at, THR const struct attend_shm *s, u32 h)
{
    float l = 0.0f;
    UNROLL
    for (u32 p = 0; p < 8; p++)
        l = l + s->w[h * ATT_BANK + 32 * p + at.lane];
    l = simd_tree(at, l);
    if (at.lane == 0)
        s->ml[2 * h + 1] = l;
}

/* ---- values ---- */

/* Chains of values that a thread holds: dimensions, and heads of each. All threads hold some, at one head half of them. */
KFN u32 attend_dims(const u32 n) { return n < 8 ? 1 : 2; }
KFN u32 attend_heads(const u32 n) { return n < 4 ? 1 : 2; }
KFN u32 attend_threads(const u32 n) { return n < 2 ? GPU_THREADS / 2 : GPU_THREADS; }
KFN bool attend_turns(const u32 n, const u32 q8) { return n < 8 && !q8; }

/* A stage from position p0 on is asked for: into x, to be turned, or straight to its place. */
KFN void attend_ask_stage(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v,
                          THR const struct attend_slice *c, u32 p0, SHM u32 *stage, const u32 n,
                          const u32 q8)
{
    if (attend_turns(n, q8))
        attend_fetch_turned(at, x, a, v, c, p0);
    else
        attend_copy_v(at, a, v, c, p0, stage, q8);
}

/* It is there, for others behind a barrier. */
KFN void attend_have_stage(struct at at, THR const w4 *x, THR const struct attend_slice *c,
                           SHM u32 *stage, const u32 n, const u32 q8)
{
    if (attend_turns(n, q8))
        attend_put_turned(at, x, c, stage);
    else
        copies_done();
}

/* The other one of two stages. */
KFN SHM u32 *attend_stage(THR const struct attend_shm *s, THR const struct attend_slice *c, u32 p0)
{
    return s->stage + (p0 & c->pos ? ATT_STAGE / 4 : 0);
}

/* A slice's first two stages, behind a barrier. Others follow by x, or by its place, when there is room. */
KFN void attend_begin(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v,
                      THR const struct attend_slice *c, THR const struct attend_shm *s, const u32 n,
                      const u32 q8)
{
    NO_UNROLL
    for (u32 p0 = 0; p0 < 2u * c->pos && (p0 == 0 || p0 < c->past); p0 += c->pos) {
        SHM u32 *stage = attend_stage(s, c, p0);
        attend_ask_stage(at, x, a, v, c, p0, stage, n, q8);
        if (attend_turns(n, q8))
            attend_have_stage(at, x, c, stage, n, q8);
    }
}

/* Values that are turned wait in registers for room: those of the third stage, where there is one. */
KFN void attend_third(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v,
                      THR const struct attend_slice *c, THR const struct attend_shm *s, const u32 n,
                      const u32 q8)
{
    if (attend_turns(n, q8) && 2u * c->pos < c->past)
        attend_ask_stage(at, x, a, v, c, 2u * c->pos, s->stage, n, q8);
}

/* o of a slice, whose first two stages are there behind a barrier; x: its third. own: a word of the row's own value,
 * where it is not among those of the stages. Ends after a barrier. */
KFN void attend_values(struct at at, CON const struct attend_args *a,
                       THR const struct attend_item *it, THR struct attend_slice *c, THR w4 *x,
                       THR float *o, u32 own, THR const struct attend_shm *s, const u32 n,
                       const u32 q8)
{
    const u32 dims = attend_dims(n), heads = attend_heads(n),
              across = attend_threads(n) / (n / heads), w_stride = q8 ? 4 * ATT_BANK : ATT_BANK;
    const bool turns = attend_turns(n, q8);
    u32 d = at.id % across * dims, h = at.id / across * heads, p0 = 0, p1;
    bool adds = at.id < attend_threads(n) && d >> c->log2 == 0;
    SHM const float *w = s->wd + (q8 ? h * 4 + d / 32 : h) * ATT_BANK;
    UNROLL
    for (u32 i = 0; i < dims * heads; i++)
        o[i] = 0.0f;
    NO_UNROLL
    do {
        u32 n_here = least_u32(c->past - p0, c->pos);
        SHM u32 *stage = attend_stage(s, c, p0), *other = attend_stage(s, c, p0 + c->pos);
        p1 = p0 + c->pos;
        if (!turns)
            copies_done();
        BARRIER(at);
        if (p0 && p1 < c->past) {
            if (turns)
                attend_have_stage(at, x, c, other, n, q8);
            if (!turns || p1 + c->pos < c->past)
                attend_ask_stage(at, x, a, it->v, c, turns ? p1 + c->pos : p1, other, n, q8);
        }
        if (p0 == 0 && c->first) {
            for (u32 i = GPU_SIMDS - 1u - at.simd; i < n; i += GPU_SIMDS)
                attend_sum(at, s, i);
        }
        if (adds && turns)
            attend_add_turned(o, stage, d, attend_log2_pos(c), w + p0, n_here, heads);
        else if (adds)
            attend_add(o, (SHM const u8 *)stage + d * (q8 ? 1 : 2), (q8 ? 1u : 2u) << c->log2,
                       w + p0, w_stride, n_here, dims, heads, q8);
        p0 = p1;
    } while (p0 < c->past);
    if (adds && it->past < it->n_pos) {
        UNROLL
        for (u32 i = 0; i < dims * heads; i++)
            o[i] = EX_FMA(w[i / dims * w_stride + it->past], attend_value(own, i % dims, q8), o[i]);
    }
    BARRIER(at);
}

/* Finished dimensions of a head, `dims` a lane from lane * dims on, as blocks of the row's act row: the first is block b. `some`: blocks there are. All lanes
 * call. */
KFN void attend_put_act(struct at at, CON const struct attend_args *a, struct bufs b, u32 row, u32 block, u32 some, THR const float *v, const u32 dims)
{
    u32 n_pad = GPU_PAD(a->n_heads * a->d_head);
    DEV u8 *act = (DEV u8 *)b.p[5] + (u64)row * GPU_ACT_BYTES(a->n_heads * a->d_head);
    float d[2];
    i32 sum[2], q[2];
    if (dims == 2u)
        act_quantise_64(at, v, q, d, sum);
    else
        q[0] = act_quantise_32(at, v[0], d, sum);
    UNROLL
    for (u32 k = 0; k < dims; k++)
        if (k < some)
            act_put_32(at, act, n_pad, block + k, q[k], d[k], sum[k]);
}

/* Into the parts, or finished. Where act rows are written a head is whole blocks. */
KFN void attend_put(struct at at, CON const struct attend_args *a, struct bufs b, THR const struct attend_item *it,
                    THR const struct attend_slice *c, u32 d0, THR const float *o, THR const struct attend_shm *s, const u32 n)
{
    const u32 dims = attend_dims(n), heads = attend_heads(n), across = attend_threads(n) / (n / heads);
    u32 d = at.id % across * dims, h0 = at.id / across * heads, end = least_u32(d0 + (1u << c->log2), a->d_head);
    u32 d_simd = at.simd * 32u % across * dims; /* of the SIMD group's first lane */
    DEV float *part = (DEV float *)b.p[3] + ((u64)it->item * a->n_heads + it->head) * (a->d_head + 2);
    DEV float *att = (DEV float *)b.p[4] + (u64)it->row * a->att_stride + it->head * a->d_head;
    bool whole = it->pos < GPU_CHUNK;                     /* the row has no other chunk */
    if (at.id >= attend_threads(n) || d0 + d_simd >= end) /* whole SIMD groups */
        return;
    NO_UNROLL
    for (u32 h = 0; h < heads; h++) {
        float l = s->ml[2 * (h0 + h) + 1], v[2];
        UNROLL
        for (u32 i = 0; i < dims; i++) {
            u32 at_d = d0 + d + i;
            float x = o[i];
            UNROLL
            for (u32 k = 1; k < heads; k++)
                x = h == k ? o[k * dims + i] : x;
            v[i] = 0.0f;
            if (at_d >= end)
                continue;
            if (whole)
                att[(h0 + h) * a->d_head + at_d] = v[i] = ex_flush(div_rn(x, l));
            else
                part[(h0 + h) * (a->d_head + 2) + at_d] = x;
        }
        if (whole && a->write_act)
            attend_put_act(at, a, b, it->row, ((it->head + h0 + h) * a->d_head + d0 + d_simd) / 32u, (end - d0 - d_simd) / 32u, v, dims);
        if (!whole && d0 == 0 && d == 0) {
            part[(h0 + h) * (a->d_head + 2) + a->d_head] = s->ml[2 * (h0 + h)];
            part[(h0 + h) * (a->d_head + 2) + a->d_head + 1] = l;
        }
    }
}

/* ---- the kernel, for each number of heads in an item ---- */

/* What a kernel of one row and one chunk needs, read at once and not one after another: a wait for memory each. */
struct attend_first {
    u32 n_items, word;      /* item 0 */
    w4 row;                 /* row 0 */
};

KFN void attend_find(CON const struct attend_args *a, struct bufs b,
                     THR const struct attend_first *first, u32 item, u32 heads_at, bool stores,
                     const u32 n, const u32 q8, THR struct attend_item *it)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 word = item ? in[a->items_at + item] : first->word, rest, share = split_u32(a->n_heads, a->n_kv, &rest), chunk = word >> 16;
    it->row = word & 0xFFFFu;
    it->item = item;
    it->head = heads_at * n;
    w4 row = first->row;
    if (it->row)
        row = load16(in + a->rows_at + 4 * it->row);
    u32 kv = split_u32(it->head, share, &rest), seen = row.z + 1 - chunk * GPU_CHUNK;
    u64 at = (u64)chunk * (GPU_CHUNK / GPU_KV_PANEL) * GPU_KV_PANEL_BYTES(a->d_head, q8);
    it->n_pos = least_u32(seen, GPU_CHUNK);
    it->past = it->n_pos - (stores && chunk == row.z / GPU_CHUNK);
    it->pos = row.z;
    it->k = kv_head(b.p[2], row.y, a->slot_lo, a->slot_hi, a->head_bytes, kv) + at;
    it->v = kv_head(b.p[2], row.y, a->slot_lo, a->slot_hi, a->head_bytes, a->n_kv + kv) + at;
}

/* An item's values, slice by slice; x and own_v are the first one's. once: there is no other, which
 * the compiler should know. */
KFN void attend_slices(struct at at, CON const struct attend_args *a, struct bufs b,
                       THR const struct attend_item *it, THR struct attend_slice *c, u32 widest,
                       THR w4 *x, u32 own_v, THR const struct attend_shm *s, const bool once,
                       const u32 n, const u32 q8)
{
    float o[4];
    NO_UNROLL
    for (;;) {
        if (q8) {
            if (c->first && n > attend_score_heads(n)) /* else a thread's weights are its own */
                BARRIER(at);
            attend_scale_w(at, a, it->v, c, it->n_pos, s, n);
        }
        attend_values(at, a, it, c, x, o, own_v, s, n, q8);
        attend_put(at, a, b, it, c, c->d0, o, s, n);
        c->d0 += 1u << widest;
        if (once || c->d0 >= a->d_head)
            break;
        c->first = 0;
        attend_begin(at, x, a, it->v, c, s, n, q8);
        attend_third(at, x, a, it->v, c, s, n, q8);
    }
}

/* An item's queries, to shared memory; st: and what is to be stored first, in its turn. */
KFN void attend_queries(struct at at, CON const struct attend_args *a,
                        CON const struct store_args *st, struct bufs b,
                        THR const struct attend_item *it, u32 kv, DEV const float *q, const u32 n,
                        const u32 q8, THR const struct attend_shm *s)
{
    if (st) {
        struct store_with with;
        attend_store_read(at, st, b, it, at.simd, n, &with);
        IN_TURN(at); /* above it nothing is read that a launch of this step writes */
        attend_store(at, st, b, it, kv, q, n, q8, &with, s);
    } else if (q8) {
        attend_put_q8(at, a, q, n, s);
    } else {
        attend_put_q(at, a, q, n, s);
    }
}

/* st: what is to be stored first, or NULL. */
KFN void attend_items(struct at at, CON const struct attend_args *a, CON const struct store_args *st, struct bufs b, SHM u32 *shm, THR const struct attend_first *first,
                      const u32 n, const u32 q8)
{
    const u32 heads = attend_score_heads(n), each = n / heads;
    u32 rest, pieces = a->n_heads / n, units = first->n_items * pieces;
    const bool wide = n == 8 && !q8; /* many items: a width that the compiler knows */
    u32 widest = !wide && a->d_head <= 64 ? 6 : 7;
    u32 parts = 2 * units > at.n_groups ? 0 : 4 * units > at.n_groups ? 1 : 2; /* log2 of the groups that share an item's dimensions */
    parts = wide ? 0 : parts > widest - 5 ? widest - 5 : parts;
    u32 m = GPU_SIMDS / each, panel_bytes = GPU_KV_PANEL_BYTES(a->d_head, q8), own_v = 0;
    struct attend_shm s;
    struct attend_place place = {at.simd / m * heads, at.simd % m, m, 0, 0};
    attend_lay(shm, n, a->d_head, q8, &s);
    for (u32 u = at.group; u < units << parts; u += at.n_groups) {
        struct attend_item it;
        struct attend_slice c = {(u & ((1u << parts) - 1)) << (widest - parts), widest - parts, 1,
                                 0, 0};
        u32 piece, item = split_u32(u >> parts, pieces, &piece), n_panels;
        attend_find(a, b, first, item, piece, st != 0, n, q8, &it);
        n_panels = (it.n_pos + 31) / 32;
        c.pos = ATT_STAGE >> (c.log2 + (q8 ? 0 : 1));
        c.past = it.past;
        DEV const float *q = (DEV const float *)b.p[1] + (u64)it.row * a->q_stride + it.head * a->d_head;
        place.step = place.first + m < n_panels ? m * panel_bytes : 0u;
        place.k =
            wgt_at(s.keys, it.k) + (place.first < n_panels ? place.first * panel_bytes : 0u);
        u32 share = split_u32(a->n_heads, a->n_kv, &rest), of_kv, kv = split_u32(it.head, share, &of_kv);
        u32 sharers = share / n << parts, mine = of_kv / n << parts | (u & ((1u << parts) - 1));
        w4 x[ATT_FETCH];
        float acc[8];
        attend_copy_k(at, it.k, 0, n_panels * panel_bytes,
                      !q8 && it.past < it.n_pos ? it.past : ~0u, panel_bytes, &s);
        if (2u * c.pos < it.past)
            attend_ahead(at, it.v, it.n_pos, panel_bytes, mine, sharers);
        attend_begin(at, x, a, it.v, &c, &s, n, q8);
        attend_queries(at, a, st, b, &it, kv, q, n, q8, &s);
        copies_done();
        BARRIER_DEV(at);
        if (it.past < it.n_pos) {
            own_v = attend_own_value(a, it.v, it.past,
                                     c.d0 + at.id % (attend_threads(n) / (n / attend_heads(n))) *
                                                attend_dims(n),
                                     &s, attend_dims(n), q8);
            if (q8 && !PS_METAL) { /* what was stored is not yet among the keys */
                u32 panel = it.past / GPU_KV_PANEL * panel_bytes;
                attend_copy_k(at, it.k, panel, panel + panel_bytes, ~0u, panel_bytes, &s);
                copies_done();
                BARRIER(at);
            }
        }
        attend_scores(at, a, &place, acc, &s, n, q8);
        attend_third(at, x, a, it.v, &c, &s, n, q8);
        attend_weights(at, &it, &place, acc, &s, n);
        attend_slices(at, a, b, &it, &c, widest, x, own_v, &s, st != 0, n, q8);
    }
}

KFN void attend_all(struct at at, CON const struct attend_args *a, CON const struct store_args *st, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    struct attend_first first = {in[IN_ITEMS + a->which], in[a->items_at], load16(in + a->rows_at)};
    u32 n = in[IN_HEADS + a->which];
    if (a->kv_q8) {
        if (n == 1)
            attend_items(at, a, st, b, shm, &first, 1, 1);
        else if (n == 2)
            attend_items(at, a, st, b, shm, &first, 2, 1);
        else if (n == 4)
            attend_items(at, a, st, b, shm, &first, 4, 1);
        else
            attend_items(at, a, st, b, shm, &first, 8, 1);
        return;
    }
    if (n == 1)
        attend_items(at, a, st, b, shm, &first, 1, 0);
    else if (n == 2)
        attend_items(at, a, st, b, shm, &first, 2, 0);
    else if (n == 4)
        attend_items(at, a, st, b, shm, &first, 4, 0);
    else
        attend_items(at, a, st, b, shm, &first, 8, 0);
}

KFN void k_attend(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    attend_all(at, a, (CON const struct store_args *)0, b, shm);
}

KFN void k_attend_store(struct at at, CON const struct attend_store_args *a, struct bufs b, SHM u32 *shm)
{
    attend_all(at, &a->attend, &a->store, b, shm);
    IN_TURN(at); /* a group without items too */
}
