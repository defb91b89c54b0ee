/* Attention of single rows over their past (rule 7): a chunk of 256 positions of a few query heads that share a key/value head is one
 * group's work; k_join joins a row's chunks. What decides here is latency at few rows and the arena's bandwidth at many.
 *
 * Scores: lane = position. A thread holds `heads` x `panels` chains (1 x 1, 2 x 1, 4 x 1, 4 x 2 for 1, 2, 4, 8 heads in an item), so that a
 * key, once a float, serves up to four heads; SIMD group s has heads from s / m on and panels s % m, s % m + m, ... (m SIMD groups share
 * heads). Keys are fetched in two register files that take turns.
 * Weights: each thread its own scores, after one exchange of the panels' maxima.
 * Values: a stage of 16 KB (PS_METAL: 4 KB) at a time goes through registers to shared memory; all SIMD groups (four of one head) then hold
 * dims x heads chains a thread (1 x 1, 1 x 1, 1 x 2, 2 x 2), and walk positions in order.
 * A launch runs most of its code once, and fetching instructions is a good part of its time: loops are short rather than flat.
 *
 *   shared memory: [values: 2 stages] [q: floats, or words and scales] [w: (head, 260) floats]
 *                  [q8_0: w * dv: (head, 4 blocks, 260)] [maxima: (head, 8 panels)] [l, m: (head, 2)]
 *
 * Where there are too few items for all groups, an item's dimensions are shared out over 2 or 4 groups, each of which finds the scores
 * for itself. */

enum {
    ATT_BANK = 260,         /* floats from one row of weights to the next: four rows at one position lie in different banks */
    ATT_STAGE = GPU_ATTEND_STAGE, /* bytes of values in a stage: of 16 positions at least, since a row has 256 bytes at most */
    ATT_FETCH = ATT_STAGE / 16 / GPU_THREADS, /* 16-byte words of a stage that a thread fetches */
    ATT_EACH = GPU_APART_DIMS / 32, /* dimensions of a head that a lane stores */
    ATT_KEYS = 8            /* 16-byte words of keys in one of a thread's two register files */
};

struct attend_item {
    u32 row, head;          /* of the table; the first query head */
    u32 item, n_pos;        /* n_pos: positions of the chunk that the row sees, 1..256 */
    u32 whole;              /* the row has no other chunk */
    u32 slot, pos, last;    /* the row's; last: its own position is in this chunk */
    DEV const u8 *k, *v;    /* at the chunk */
};

struct attend_shm {
    SHM u32 *stage;         /* values */
    SHM u32 *q;             /* f16: (head, d_pad) floats; q8_0: (head, d_head / 4) words */
    SHM float *q_scale;     /* q8_0: (head, d_head / 32) */
    SHM float *w;           /* (head, ATT_BANK) */
    SHM float *wd;          /* q8_0: (head, 4, ATT_BANK); else w */
    SHM u32 *top;           /* (head, 8) */
    SHM float *ml;          /* (head, 2) */
};

KFN void attend_lay(SHM u32 *shm, u32 n, u32 d_head, u32 q8, THR struct attend_shm *s)
{
    u32 d_pad = (d_head + 7u) & ~7u;
    s->stage = shm;
    s->q = shm + 2 * ATT_STAGE / 4;
    s->q_scale = (SHM float *)(s->q + n * d_head / 4);
    s->w = (SHM float *)(s->q + n * d_pad);
    s->wd = q8 ? s->w + n * ATT_BANK : s->w;
    s->top = (SHM u32 *)(s->w + n * ATT_BANK * (q8 ? 5 : 1));
    s->ml = (SHM float *)(s->top + n * 8);
}

/* ---- queries ---- */

KFN void attend_put_q(struct at at, CON const struct attend_args *a, DEV const float *q, const u32 n, THR const struct attend_shm *s)
{
    u32 d_pad = (a->d_head + 7u) & ~7u, h = at.simd % n;
    for (u32 d = at.lane + at.simd / n * 32; d < d_pad; d += 256 / n)
        s->q[h * d_pad + d] = d < a->d_head ? EX_BITS(q[h * a->d_head + d]) : 0;
}

/* By rule 1; heads lie one behind the other and are whole blocks. */
KFN void attend_put_q8(struct at at, CON const struct attend_args *a, DEV const float *q, const u32 n, THR const struct attend_shm *s)
{
    u32 n_q = n * a->d_head;
    for (u32 i0 = 128 * at.simd; i0 < n_q; i0 += 128 * GPU_SIMDS) {
        u32 i = i0 + 4 * at.lane;
        float v[4], d;
        i32 sum;
        w4 x = {0, 0, 0, 0};
        if (i < n_q)
            x = load16(q + i);
        v[0] = EX_FLOAT(x.x), v[1] = EX_FLOAT(x.y), v[2] = EX_FLOAT(x.z), v[3] = EX_FLOAT(x.w);
        u32 word = act_quantise_8(at, v, &d, &sum);
        if (i < n_q) {
            s->q[i / 4] = word;
            if (i % 32 == 0)
                s->q_scale[i / 32] = d;
        }
    }
}

/* A query in a SIMD group's row of shared memory to where the two above would put it. */
KFN void attend_move_q(struct at at, u32 d_head, u32 h, SHM const float *x, u32 q8, THR const struct attend_shm *s)
{
    u32 d_pad = (d_head + 7u) & ~7u;
    if (!q8) {
        for (u32 d = at.lane; d < d_pad; d += 32u)
            s->q[h * d_pad + d] = d < d_head ? EX_BITS(x[d]) : 0u;
        return;
    }
    for (u32 i0 = 0; i0 < d_head; i0 += 128u) {
        u32 i = i0 + 4u * at.lane;
        float v[4], d;
        i32 sum;
        UNROLL
        for (u32 k = 0; k < 4u; k++)
            v[k] = i < d_head ? x[i + k] : 0.0f;
        u32 word = act_quantise_8(at, v, &d, &sum);
        if (i < d_head) {
            s->q[(h * d_head + i) / 4u] = word;
            if (i % 32u == 0u)
                s->q_scale[(h * d_head + i) / 32u] = d;
        }
    }
}

/* The jobs of an item that stores: n queries, then, where the chunk has the row's position, its key and its value. What a SIMD group's first one
 * needs besides the head itself, of which nothing is written in a step: it may be read while the launch before runs. */
KFN void attend_store_read(struct at at, CON const struct store_args *a, struct bufs b, THR const struct attend_item *it, u32 job, const u32 n,
                           THR struct store_with *with)
{
    DEV const float *none = 0, *norm = job < n ? (DEV const float *)b.p[8] : (DEV const float *)b.p[9];
    DEV const float *cs = (DEV const float *)b.p[10] + (u64)it->pos * a->d_rope;
    u32 plain = !a->has_norm || job > n;
    store_read(at, plain ? none : norm, job > n ? none : cs, a->d_head, a->d_rope, with, ATT_EACH);
}

/* What k_store does of an item's row: its queries, to shared memory, and where the chunk has the row's position its key and value, to the arena. A head is a SIMD
 * group's, and its row of shared memory stands where values will. BARRIER_DEV before anything of it is read. */
KFN void attend_store(struct at at, CON const struct store_args *a, struct bufs b, THR const struct attend_item *it, u32 kv, DEV const float *q, const u32 n,
                      const u32 q8, THR struct store_with *with, THR const struct attend_shm *s)
{
    SHM float *mine = (SHM float *)s->stage + at.simd * STORE_DIMS;
    u64 at_row = (u64)it->row * a->kv_stride + kv * a->d_head;
    NO_UNROLL
    for (u32 job = at.simd; job < n + (it->last ? 2u : 0u); job += GPU_SIMDS) {
        u32 what = job < n ? 0u : job - n + 1u;
        DEV const float *x = what == 0u ? q + job * a->d_head : (what == 1u ? (DEV const float *)b.p[6] : (DEV const float *)b.p[7]) + at_row;
        if (job != at.simd)
            attend_store_read(at, a, b, it, job, n, with);
        SIMD_BARRIER(at); /* the head before has been put away */
        store_fetch(at, x, with, !a->has_norm || what == 2u ? STORE_PLAIN : STORE_NORM, 0.0f, a->d_head, a->eps, mine, ATT_EACH);
        if (what < 2u)
            store_rotate(at, with, a->d_head, a->d_rope, a->neox, mine, ATT_EACH);
        if (what == 0u) {
            attend_move_q(at, a->d_head, job, mine, q8, s);
            continue;
        }
        DEV u8 *panel = kv_head(b.p[2], it->slot, a->slot_lo, a->slot_hi, a->head_bytes, what == 1u ? kv : a->n_kv + kv) +
                        (u64)(it->pos / GPU_KV_PANEL) * GPU_KV_PANEL_BYTES(a->d_head, q8);
        if (q8)
            store_q8(at, mine, a->d_head, it->pos, what == 1u, panel);
        else
            store_f16(at, mine, a->d_head, it->pos, what == 1u, panel);
    }
}

/* ---- scores ---- */

struct attend_place { /* a thread's part of the scores */
    u32 head, first, m;     /* first head, of the item's; first panel, step from panel to panel */
    u32 n, step;            /* panels of them that the row sees; bytes from one to the next */
    DEV const u8 *k;        /* its first word of the first panel */
};

/* Heads of a thread's chains; n / heads panels of them. */
KFN u32 attend_score_heads(const u32 n)
{
    return n < 4 ? n : 4;
}

/* Keys of 8 dimensions (q8_0: of half a block) of a thread's panels: words c..c + deep of each panel's n_words. */
KFN void attend_fetch_k(THR w4 *k, THR const struct attend_place *to, u32 c, u32 n_words, const u32 deep, const u32 panels_each, const u32 q8)
{
    UNROLL
    for (u32 i = 0; i < deep; i++) {
        UNROLL
        for (u32 p = 0; p < panels_each; p++) {
            w4 v = {0, 0, 0, 0};
            if (c + i < n_words && p < to->n)
                v = load16(to->k + p * to->step + (q8 ? (c + i) / 2 * 1088 + 64 + (c + i) % 2 * 512 : (c + i) * 512));
            k[i * panels_each + p] = v;
        }
    }
}

/* 8 dimensions: one step of each chain after another, in order of dimensions. */
KFN void attend_score_8(THR float *acc, THR const w4 *k, SHM const u32 *q, u32 q_stride, const u32 heads, const u32 panels_each)
{
    UNROLL
    for (u32 upper = 0; upper < 2; upper++) {
        u32 w[4][4];
        UNROLL
        for (u32 h = 0; h < heads; h++) {
            w4 t = *(SHM const w4 *)(q + h * q_stride + 4 * upper);
            w[h][0] = t.x, w[h][1] = t.y, w[h][2] = t.z, w[h][3] = t.w;
        }
        UNROLL
        for (u32 i = 0; i < 4; i++) {
            UNROLL
            for (u32 p = 0; p < panels_each; p++) {
                u32 two = upper ? i < 2 ? k[p].z : k[p].w : i < 2 ? k[p].x : k[p].y;
                float x = half_value(two >> 16 * (i % 2) & 0xFFFFu);
                UNROLL
                for (u32 h = 0; h < heads; h++)
                    acc[h * panels_each + p] = EX_FMA(EX_FLOAT(w[h][i]), x, acc[h * panels_each + p]);
            }
        }
    }
}

/* Half a block of 32: the integers; with the second half the fma of rule 3. kd: scales of the block. */
KFN void attend_score_q8(THR float *acc, THR i32 *dot, THR const w4 *k, THR const float *kd, SHM const u32 *q, u32 q_stride,
                         SHM const float *q_scale, u32 scale_stride, u32 second, const u32 heads, const u32 panels_each)
{
    UNROLL
    for (u32 h = 0; h < heads; h++) {
        w4 a = *(SHM const w4 *)(q + h * q_stride);
        float d = q_scale[h * scale_stride];
        UNROLL
        for (u32 p = 0; p < panels_each; p++) {
            i32 t = second ? dot[h * panels_each + p] : 0;
            t = dot4(k[p].x, a.x, t);
            t = dot4(k[p].y, a.y, t);
            t = dot4(k[p].z, a.z, t);
            t = dot4(k[p].w, a.w, t);
            dot[h * panels_each + p] = t;
            if (second)
                acc[h * panels_each + p] = EX_FMA((float)t, kd[p] * d, acc[h * panels_each + p]);
        }
    }
}

/* Words of each of a thread's panels that are fetched together. */
KFN u32 attend_deep(const u32 n)
{
    return n < 8 ? ATT_KEYS / 2 : ATT_KEYS / 4;
}

KFN void attend_scores(struct at at, CON const struct attend_args *a, THR const struct attend_place *at_s,
                       THR const w4 *k0, THR float *acc, THR const struct attend_shm *s, const u32 n, const u32 q8)
{
    const u32 heads = attend_score_heads(n), each = n / heads, deep = attend_deep(n);
    u32 d_pad = (a->d_head + 7u) & ~7u, n_words = q8 ? a->d_head / 16 : d_pad / 8;
    u32 q_stride = q8 ? a->d_head / 4 : d_pad, blocks = a->d_head / 32;
    SHM const u32 *q = s->q + at_s->head * q_stride;
    SHM const float *qd = s->q_scale + at_s->head * blocks;
    w4 ka[ATT_KEYS], kb[ATT_KEYS];
    i32 dot[8];
    float kd[4];
    UNROLL
    for (u32 i = 0; i < deep * each; i++)
        ka[i] = k0[i];
    UNROLL
    for (u32 i = 0; i < heads * each; i++)
        acc[i] = 0.0f, dot[i] = 0;
    for (u32 c = 0; c < n_words; c += 2 * deep) {
        UNROLL
        for (u32 turn = 0; turn < 2; turn++) {
            u32 from = c + turn * deep;
            attend_fetch_k(turn ? ka : kb, at_s, from + deep, n_words, deep, each, q8);
            UNROLL
            for (u32 i = 0; i < deep; i++) {
                THR const w4 *k = (turn ? kb : ka) + i * each;
                u32 w = from + i;
                if (w >= n_words)
                    continue;
                if (!q8) {
                    attend_score_8(acc, k, q + 8 * w, q_stride, heads, each);
                    continue;
                }
                if ((turn * deep + i) % 2 == 0) {
                    UNROLL
                    for (u32 p = 0; p < each; p++)
                        kd[p] = p < at_s->n ? half_value(*(DEV const u16 *)(at_s->k - 14 * at.lane + p * at_s->step + w / 2 * 1088)) : 0.0f;
                }
                attend_score_q8(acc, dot, k, kd, q + 4 * w, q_stride, qd + w / 2, blocks, (turn * deep + i) % 2, heads, each);
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < heads * each; i++)
        acc[i] = (0.0f + acc[i]) * a->scale; /* 0 +: the segment joins its total */
}

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
        SHM const u32 *t = s->top + (at_s->head + h) * 8;
        u32 top = t[0];
        UNROLL
        for (u32 p = 1; p < 8; p++)
            top = t[p] > top ? t[p] : top;
        float m = attend_unkey(top);
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

struct attend_slice { /* dimensions that a group works on at a time */
    u32 d0, log2;           /* first one; width 32, 64 or 128 */
    u32 first;              /* of the item */
    u32 pos, n_pos;         /* positions of a stage; of the chunk */
};

/* Values of a stage, from position p0 of the chunk on; zeros where the row does not see and past d_head. */
KFN void attend_fetch_v(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v, THR const struct attend_slice *c, u32 p0,
                        const u32 q8)
{
    u32 log2 = c->log2 - (q8 ? 4 : 3), row = q8 ? a->d_head : ((a->d_head + 7u) & ~7u) * 2;
    u32 panel_bytes = GPU_KV_PANEL_BYTES(a->d_head, q8), skip = q8 ? a->d_head / 32 * 64 : 0, d0 = q8 ? c->d0 : 2 * c->d0;
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++) {
        u32 e = at.id + GPU_THREADS * i, j = p0 + (e >> log2), at_row = d0 + (e & ((1u << log2) - 1)) * 16;
        w4 w = {0, 0, 0, 0};
        if (j < c->n_pos && at_row < row)
            w = load16(v + (u64)(j / GPU_KV_PANEL) * panel_bytes + skip + j % GPU_KV_PANEL * row + at_row);
        x[i] = w;
    }
}

KFN void attend_put_v(struct at at, THR const w4 *x, SHM u32 *stage)
{
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++)
        *(SHM w4 *)(stage + 4 * (at.id + GPU_THREADS * i)) = x[i];
}

/* A chunk's keys or values will be wanted: a line of 128 bytes a thread. `sharers` groups read the same, of which this is number `mine`: each asks for its part. */
KFN void attend_ahead(struct at at, DEV const u8 *v, u32 n_pos, u32 panel_bytes, u32 mine, u32 sharers)
{
    for (u32 i = (at.id * sharers + mine) * 128; i < (n_pos + 31) / 32 * panel_bytes; i += GPU_THREADS * 128 * sharers)
        prefetch(v + i);
}

/* The row's own value, among those of the first stage: fetched before it was stored. at_j: its position in the chunk. */
KFN void attend_fetch_own(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v, THR const struct attend_slice *c, u32 at_j, const u32 q8)
{
    u32 log2 = c->log2 - (q8 ? 4 : 3), row = q8 ? a->d_head : ((a->d_head + 7u) & ~7u) * 2;
    u32 d0 = c->d0 * (q8 ? 1 : 2), panel_bytes = GPU_KV_PANEL_BYTES(a->d_head, q8), skip = q8 ? 2 * a->d_head : 0;
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++) {
        u32 e = at.id + GPU_THREADS * i, at_row = d0 + (e & ((1u << log2) - 1)) * 16;
        if (e >> log2 == at_j && at_row < row)
            x[i] = load16(v + (u64)(at_j / GPU_KV_PANEL) * panel_bytes + skip + at_j % GPU_KV_PANEL * row + at_row);
    }
}

/* w * dv of the slice's blocks. Thread = position. */
KFN void attend_scale_w(struct at at, CON const struct attend_args *a, DEV const u8 *v, THR const struct attend_slice *c,
                        THR const struct attend_shm *s, const u32 n)
{
    u32 blocks = a->d_head / 32, j = at.id;
    UNROLL
    for (u32 b = 0; b < 4; b++) {
        u32 block = c->d0 / 32 + b;
        float d = 0.0f;
        if (j < c->n_pos && block < blocks)
            d = half_value(*(DEV const u16 *)(v + (u64)(j / GPU_KV_PANEL) * blocks * 1088 + 2 * (j % GPU_KV_PANEL * blocks + block)));
        UNROLL
        for (u32 h = 0; h < n; h++)
            s->wd[(h * 4 + b) * ATT_BANK + j] = s->w[h * ATT_BANK + j] * d;
    }
}

enum { ATT_RUN = 8 /* positions whose values and weights are in registers at once */ };

/* One thread's values and weights of 8 positions. */
struct attend_run {
    u32 v[ATT_RUN];         /* up to 2 halves, or bytes */
    w4 w[2][ATT_RUN / 4];
};

KFN void attend_read_run(THR struct attend_run *r, SHM const u8 *v, u32 row_bytes, SHM const float *w, u32 w_stride, const u32 dims,
                         const u32 heads, const u32 q8)
{
    const u32 bytes = dims * (q8 ? 1 : 2);
    UNROLL
    for (u32 j = 0; j < ATT_RUN; j++) {
        SHM const u8 *p = v + j * row_bytes;
        r->v[j] = bytes == 4 ? *(SHM const u32 *)p : bytes == 2 ? *(SHM const u16 *)p : *p;
    }
    UNROLL
    for (u32 h = 0; h < heads; h++) {
        UNROLL
        for (u32 j = 0; j < ATT_RUN / 4; j++)
            r->w[h][j] = *(SHM const w4 *)(w + h * w_stride + 4 * j);
    }
}

KFN void attend_add_run(THR float *o, THR const struct attend_run *r, const u32 dims, const u32 heads, const u32 q8)
{
    UNROLL
    for (u32 j = 0; j < ATT_RUN; j++) {
        UNROLL
        for (u32 d = 0; d < dims; d++) {
            u32 u = q8 ? r->v[j] >> 8 * d & 255u : r->v[j] >> 16 * d & 0xFFFFu;
            float x = q8 ? EX_FLOAT(0x4B000000u | (u ^ 128u)) - 8388736.0f : half_value(u); /* 2^23 + 128 + integer */
            UNROLL
            for (u32 h = 0; h < heads; h++) {
                w4 t = r->w[h][j / 4];
                u32 w = j % 4 == 0 ? t.x : j % 4 == 1 ? t.y : j % 4 == 2 ? t.z : t.w;
                o[h * dims + d] = EX_FMA(EX_FLOAT(w), x, o[h * dims + d]);
            }
        }
    }
}

/* Positions [0, n) of a stage; n may be rounded up to a multiple of 16: what lies there is 0. */
KFN void attend_add(THR float *o, SHM const u8 *v, u32 row_bytes, SHM const float *w, u32 w_stride, u32 n, const u32 dims, const u32 heads,
                    const u32 q8)
{
    struct attend_run ra, rb;
    attend_read_run(&ra, v, row_bytes, w, w_stride, dims, heads, q8);
    NO_UNROLL
    for (u32 j = 0; j < n; j += 2 * ATT_RUN) {
        attend_read_run(&rb, v + (j + ATT_RUN) * row_bytes, row_bytes, w + j + ATT_RUN, w_stride, dims, heads, q8);
        attend_add_run(o, &ra, dims, heads, q8);
        if (j + 2 * ATT_RUN < n)
            attend_read_run(&ra, v + (j + 2 * ATT_RUN) * row_bytes, row_bytes, w + j + 2 * ATT_RUN, w_stride, dims, heads, q8);
        attend_add_run(o, &rb, dims, heads, q8);
    }
}

/* ---- values turned: where few heads leave a SIMD group alone with its chains ----
 * A stage holds floats, a dimension's positions in a row of 1 << log2_pos: 16 bytes are four steps of a chain. Words of a row are swapped by an xor, so that
 * neither eight dimensions at a position nor four positions of 64 dimensions meet in a bank. Both stages are one then. */

KFN bool attend_turns(const u32 n, const u32 q8)
{
    return n < 8 && !q8;
}

KFN u32 attend_turned(u32 dim, u32 j, u32 log2_pos)
{
    u32 other = 4u * ((dim & 7u) ^ (dim >> 5 & 1u)) ^ 8u * (dim >> 3 & 3u);
    return (dim << log2_pos) + (j ^ (other & ((1u << log2_pos) - 1u)));
}

KFN u32 attend_log2_pos(THR const struct attend_slice *c)
{
    return (PS_METAL ? 11u : 13u) - c->log2; /* of ATT_STAGE / 2 elements */
}

KFN void attend_put_turned(struct at at, THR const w4 *x, THR const struct attend_slice *c, SHM u32 *stage)
{
    u32 log2 = c->log2 - 3u, log2_pos = attend_log2_pos(c);
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++) {
        u32 e = at.id + GPU_THREADS * i, dim = (e & ((1u << log2) - 1u)) * 8u, j = e >> log2;
        UNROLL
        for (u32 k = 0; k < 8u; k++) {
            u32 two = k < 2u ? x[i].x : k < 4u ? x[i].y : k < 6u ? x[i].z : x[i].w;
            stage[attend_turned(dim + k, j, log2_pos)] = EX_BITS(half_value(two >> 16u * (k % 2u) & 0xFFFFu));
        }
    }
}

struct attend_eight { /* positions of a dimension, and the weights of two heads */
    w4 v[2], w[2][2];
};

KFN void attend_read_turned(THR struct attend_eight *r, SHM const u32 *stage, u32 d, u32 j, u32 log2_pos, SHM const float *w, const u32 heads)
{
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        r->v[k] = *(SHM const w4 *)(stage + attend_turned(d, j + 4u * k, log2_pos));
        UNROLL
        for (u32 h = 0; h < heads; h++)
            r->w[h][k] = *(SHM const w4 *)(w + h * ATT_BANK + j + 4u * k);
    }
}

KFN void attend_add_eight(THR float *o, THR const struct attend_eight *r, const u32 heads)
{
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        UNROLL
        for (u32 h = 0; h < heads; h++)
            o[h] = EX_FMA(EX_FLOAT(r->w[h][k].x), EX_FLOAT(r->v[k].x), o[h]);
        UNROLL
        for (u32 h = 0; h < heads; h++)
            o[h] = EX_FMA(EX_FLOAT(r->w[h][k].y), EX_FLOAT(r->v[k].y), o[h]);
        UNROLL
        for (u32 h = 0; h < heads; h++)
            o[h] = EX_FMA(EX_FLOAT(r->w[h][k].z), EX_FLOAT(r->v[k].z), o[h]);
        UNROLL
        for (u32 h = 0; h < heads; h++)
            o[h] = EX_FMA(EX_FLOAT(r->w[h][k].w), EX_FLOAT(r->v[k].w), o[h]);
    }
}

/* As attend_add, of dimension d. */
KFN void attend_add_turned(THR float *o, SHM const u32 *stage, u32 d, u32 log2_pos, SHM const float *w, u32 n, const u32 heads)
{
    struct attend_eight ra, rb;
    attend_read_turned(&ra, stage, d, 0, log2_pos, w, heads);
    NO_UNROLL
    for (u32 j = 0; j < n; j += 16u) {
        attend_read_turned(&rb, stage, d, j + 8u, log2_pos, w, heads);
        attend_add_eight(o, &ra, heads);
        if (j + 16u < n)
            attend_read_turned(&ra, stage, d, j + 16u, log2_pos, w, heads);
        attend_add_eight(o, &rb, heads);
    }
}

/* Chains of values that a thread holds: dimensions, and heads of each. All threads hold some, at one head half of them. */
KFN u32 attend_dims(const u32 n) { return n < 8 ? 1 : 2; }
KFN u32 attend_heads(const u32 n) { return n < 4 ? 1 : 2; }
KFN u32 attend_threads(const u32 n) { return n < 2 ? GPU_THREADS / 2 : GPU_THREADS; }

KFN void attend_put_stage(struct at at, THR const w4 *x, THR const struct attend_slice *c, SHM u32 *stage, const u32 n, const u32 q8)
{
    if (attend_turns(n, q8))
        attend_put_turned(at, x, c, stage);
    else
        attend_put_v(at, x, stage);
}

/* o of a slice; x: its first stage, fetched. The next one's is fetched at its end, where there is one. Ends after a barrier. */
KFN void attend_values(struct at at, CON const struct attend_args *a, THR const struct attend_item *it, THR struct attend_slice *c, u32 widest,
                       THR w4 *x, THR float *o, THR const struct attend_shm *s, const u32 n, const u32 q8)
{
    const u32 dims = attend_dims(n), heads = attend_heads(n), across = attend_threads(n) / (n / heads), stage_words = ATT_STAGE / 4;
    const bool turns = attend_turns(n, q8);
    u32 d = at.id % across * dims, h = at.id / across * heads, row_bytes = (q8 ? 1u : 2u) << c->log2, first = c->first;
    SHM const float *w = s->wd + (q8 ? h * 4 + d / 32 : h) * ATT_BANK;
    UNROLL
    for (u32 i = 0; i < dims * heads; i++)
        o[i] = 0.0f;
    NO_UNROLL
    for (u32 p0 = 0, turn = 0; p0 < it->n_pos; p0 += c->pos, turn ^= turns ? 0 : 1) {
        SHM u32 *stage = s->stage + turn * stage_words;
        u32 n_here = least_u32(it->n_pos - p0, c->pos), p1 = p0 + c->pos, more = p1 < it->n_pos;
        if (turns && p0)
            BARRIER(at);
        attend_put_stage(at, x, c, stage, n, q8);
        if (!more)
            c->d0 += 1u << widest;
        if (more || c->d0 < a->d_head)
            attend_fetch_v(at, x, a, it->v, c, more ? p1 : 0u, q8);
        BARRIER(at);
        if (first) {
            for (u32 i = GPU_SIMDS - 1u - at.simd; i < n; i += GPU_SIMDS)
                attend_sum(at, s, i);
        }
        first = 0;
        if (at.id >= attend_threads(n) || d >> c->log2 != 0)
            continue;
        if (turns)
            attend_add_turned(o, stage, d, attend_log2_pos(c), w + p0, n_here, heads);
        else
            attend_add(o, (SHM const u8 *)stage + d * (q8 ? 1 : 2), row_bytes, w + p0, q8 ? 4 * ATT_BANK : ATT_BANK, n_here, dims, heads, q8);
    }
    c->first = 0;
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
    if (at.id >= attend_threads(n) || d0 + d_simd >= end) /* whole SIMD groups */
        return;
    UNROLL
    for (u32 h = 0; h < heads; h++) {
        float l = s->ml[2 * (h0 + h) + 1], v[4];
        UNROLL
        for (u32 i = 0; i < dims; i++) {
            u32 at_d = d0 + d + i;
            v[i] = 0.0f;
            if (at_d >= end)
                continue;
            if (it->whole)
                att[(h0 + h) * a->d_head + at_d] = v[i] = ex_flush(div_rn(o[h * dims + i], l));
            else
                part[(h0 + h) * (a->d_head + 2) + at_d] = o[h * dims + i];
        }
        if (it->whole && a->write_act)
            attend_put_act(at, a, b, it->row, ((it->head + h0 + h) * a->d_head + d0 + d_simd) / 32u, (end - d0 - d_simd) / 32u, v, dims);
        if (!it->whole && d0 == 0 && d == 0) {
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

KFN void attend_find(CON const struct attend_args *a, struct bufs b, THR const struct attend_first *first, u32 item, u32 heads_at, const u32 n,
                     const u32 q8, THR struct attend_item *it)
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
    it->whole = row.z < GPU_CHUNK;
    it->slot = row.y;
    it->pos = row.z;
    it->last = chunk == row.z / GPU_CHUNK;
    it->k = kv_head(b.p[2], row.y, a->slot_lo, a->slot_hi, a->head_bytes, kv) + at;
    it->v = kv_head(b.p[2], row.y, a->slot_lo, a->slot_hi, a->head_bytes, a->n_kv + kv) + at;
}

/* st: what is to be stored first, or NULL. */
KFN void attend_items(struct at at, CON const struct attend_args *a, CON const struct store_args *st, struct bufs b, SHM u32 *shm, THR const struct attend_first *first,
                      const u32 n, const u32 q8)
{
    const u32 heads = attend_score_heads(n), each = n / heads;
    u32 rest, pieces = a->n_heads / n, units = first->n_items * pieces, widest = a->d_head <= 64 ? 6 : 7;
    u32 parts = 2 * units > at.n_groups ? 0 : 4 * units > at.n_groups ? 1 : 2; /* log2 of the groups that share an item's dimensions */
    parts = parts > widest - 5 ? widest - 5 : parts;
    u32 m = GPU_SIMDS * heads / n, panel_bytes = GPU_KV_PANEL_BYTES(a->d_head, q8), d_pad = (a->d_head + 7u) & ~7u;
    struct attend_shm s;
    struct attend_place place = {at.simd / m * heads, at.simd % m, m, 0, m * panel_bytes, 0};
    attend_lay(shm, n, a->d_head, q8, &s);
    for (u32 u = at.group; u < units << parts; u += at.n_groups) {
        struct attend_item it;
        struct attend_slice c = {(u & ((1u << parts) - 1)) << (widest - parts), widest - parts, 1, 0, 0};
        w4 k[ATT_KEYS], x[ATT_FETCH];
        float acc[8], o[8];
        u32 n_words = q8 ? a->d_head / 16 : d_pad / 8;
        u32 piece, item = split_u32(u >> parts, pieces, &piece), n_panels;
        attend_find(a, b, first, item, piece, n, q8, &it);
        n_panels = (it.n_pos + 31) / 32;
        c.pos = ATT_STAGE >> (c.log2 + (q8 ? 0 : 1));
        c.n_pos = it.n_pos;
        DEV const float *q = (DEV const float *)b.p[1] + (u64)it.row * a->q_stride + it.head * a->d_head;
        place.n = n_panels > place.first ? (n_panels - place.first + m - 1) >> (n < 8 ? 3 : 2) : 0;
        place.k = it.k + place.first * panel_bytes + at.lane * 16;
        u32 share = split_u32(a->n_heads, a->n_kv, &rest), of_kv, kv = split_u32(it.head, share, &of_kv);
        u32 sharers = share / n << parts, mine = of_kv / n << parts | (u & ((1u << parts) - 1));
        attend_fetch_k(k, &place, 0, n_words, attend_deep(n), each, q8);
        attend_fetch_v(at, x, a, it.v, &c, 0, q8);
        attend_ahead(at, it.k, it.n_pos, panel_bytes, mine, sharers);
        attend_ahead(at, it.v, it.n_pos, panel_bytes, mine, sharers);
        if (st) {
            struct store_with with;
            u32 own = it.pos % GPU_CHUNK;
            attend_store_read(at, st, b, &it, at.simd, n, &with);
            IN_TURN(at); /* above it nothing is read that a launch of this step writes */
            attend_store(at, st, b, &it, kv, q, n, q8, &with, &s);
            BARRIER_DEV(at);
            if (it.last && own / GPU_KV_PANEL % m == place.first)
                attend_fetch_k(k, &place, 0, n_words, attend_deep(n), each, q8);
            if (it.last && own < c.pos)
                attend_fetch_own(at, x, a, it.v, &c, own, q8);
        } else {
            if (q8)
                attend_put_q8(at, a, q, n, &s);
            else
                attend_put_q(at, a, q, n, &s);
            BARRIER(at);
        }
        attend_scores(at, a, &place, k, acc, &s, n, q8);
        attend_weights(at, &it, &place, acc, &s, n);
        NO_UNROLL
        while (c.d0 < a->d_head) {
            u32 d0 = c.d0;
            if (q8) {
                if (c.first && n > attend_score_heads(n)) /* else a thread's weights are its own */
                    BARRIER(at);
                attend_scale_w(at, a, it.v, &c, &s, n);
            }
            attend_values(at, a, &it, &c, widest, x, o, &s, n, q8);
            attend_put(at, a, b, &it, &c, d0, o, &s, n);
        }
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
