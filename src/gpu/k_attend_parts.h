/* Of attention of single rows (k_attend.h) what needs no barrier: queries and their storing, scores, values of a stage. */

enum {
    ATT_BANK =
        260, /* floats from one row of weights to the next: four rows at one position lie in different banks */
    ATT_STAGE =
        GPU_ATTEND_STAGE, /* bytes of values in a stage: of 16 positions at least, since a row has 256 bytes at most */
    ATT_FETCH = ATT_STAGE / 16 / GPU_THREADS, /* 16-byte words of a stage that a thread fetches */
    ATT_EACH = GPU_APART_DIMS / 32            /* dimensions of a head that a lane stores */
};

struct attend_item {
    u32 row, head;          /* of the table; the first query head */
    u32 item, pos;          /* pos: the row's */
    u32 n_pos, past;        /* positions of the chunk that the row sees, 1..256; those of them that lie in
                             * the arena before this launch: one less where it stores the row's own */
    DEV u8 *k, *v;          /* at the chunk */
};

struct attend_shm {
    SHM u32 *stage;         /* values */
    SHM u8 *keys;           /* of the chunk, as in the arena; PS_METAL: there */
    SHM u32 *own;           /* f16, of a row that this launch stores: d_pad halves of its value */
    SHM float
        *rows; /* a head of each SIMD group, GPU_APART_DIMS floats: q8_0 before there are weights */
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
    s->keys = (SHM u8 *)(shm + 2 * ATT_STAGE / 4);
    s->own = shm + 2 * ATT_STAGE / 4 + GPU_ATTEND_KEYS(d_head, q8) / 4;
    s->rows = (SHM float *)(s->own + d_pad);
    s->q = s->own + (q8 ? 0u : d_pad + GPU_SIMDS * GPU_APART_DIMS);
    s->q_scale = (SHM float *)(s->q + n * d_head / 4);
    s->w = (SHM float *)(s->q + n * d_pad);
    s->wd = q8 ? s->w + n * ATT_BANK : s->w;
    s->top = (SHM u32 *)(s->w + n * ATT_BANK * (q8 ? 5 : 1));
    s->ml = (SHM float *)(s->top + n * 8);
    if (q8)
        s->rows = s->w;
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

/* A lane's four elements of the head of a job. */
KFN void attend_head_128(struct at at, CON const struct store_args *a, struct bufs b,
                         THR const struct attend_item *it, u32 kv, DEV const float *q, u32 job,
                         const u32 n, THR float *v)
{
    DEV const float *x = job < n
                             ? q + job * 128u
                             : (job == n ? (DEV const float *)b.p[6] : (DEV const float *)b.p[7]) +
                                   (u64)it->row * a->kv_stride + kv * 128u;
    UNROLL
    for (u32 k = 0; k < 4u; k++)
        v[k] = x[at.lane + 32u * k];
}

/* The jobs of heads of 128 dimensions, all rotated, pairs 64 apart: a lane has both of a pair, and nothing passes
 * through shared memory. What a SIMD group's second job needs, where it may have one, is asked for with its first. */
KFN void attend_store_128(struct at at, CON const struct store_args *a, struct bufs b, THR const struct attend_item *it, u32 kv, DEV const float *q, const u32 n,
                          THR struct store_with *with, THR const struct attend_shm *s)
{
    const bool twice = n + 2u > GPU_SIMDS;
    u32 j = it->past % GPU_KV_PANEL, jobs = n + (it->past < it->n_pos ? 2u : 0u),
        second = at.simd + GPU_SIMDS;
    struct store_with with2 = *with;
    float v[4], v2[4] = {0};
    if (at.simd < jobs)
        attend_head_128(at, a, b, it, kv, q, at.simd, n, v);
    if (twice && second < jobs) {
        attend_head_128(at, a, b, it, kv, q, second, n, v2);
        attend_store_read(at, a, b, it, second, n, &with2);
    }
    NO_UNROLL
    for (u32 job = at.simd; job < jobs; job += GPU_SIMDS) {
        u32 what = job < n ? 0u : job - n + 1u;
        if (a->has_norm && what < 2u) {
            float sum = 0.0f;
            UNROLL
            for (u32 k = 0; k < 4u; k++) {
                float f = ex_flush(v[k]);
                sum = EX_FMA(f, f, sum);
            }
            float r = store_factor(at, sum, 128u, a->eps);
            UNROLL
            for (u32 k = 0; k < 4u; k++)
                v[k] = ex_flush(v[k] * r * with->norm[k]);
        }
        if (what < 2u)
            store_four_turn(with, v, 4u);
        if (what == 0u) {
            UNROLL
            for (u32 k = 0; k < 4u; k++)
                s->q[job * 128u + at.lane + 32u * k] = EX_BITS(v[k]);
        } else {
            u32 panel = it->past / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(128u, 0),
                step = what == 1u ? 2048u : 64u;
            panel += what == 1u ? at.lane / 8u * 512u + j * 16u + at.lane % 8u * 2u
                                : (j * 128u + at.lane) * 2u;
            DEV u8 *there = (what == 1u ? it->k : it->v) + panel;
            SHM u8 *here = what == 1u ? s->keys + panel : (SHM u8 *)s->own + 2u * at.lane;
            UNROLL
            for (u32 k = 0; k < 4u; k++) {
                u16 h = (u16)half_bits(ex_flush(v[k]));
                *(DEV u16 *)(there + k * step) = h;
                if (!PS_METAL || what == 2u)
                    *(SHM u16 *)(here + k * step) = h;
            }
        }
        if (!twice)
            break;
        *with = with2;
        UNROLL
        for (u32 k = 0; k < 4u; k++)
            v[k] = v2[k];
    }
}

/* The halves that store_f16 puts into the arena, into shared memory: a key to its place among the chunk's. */
KFN void attend_own(struct at at, SHM const float *x, u32 d_head, u32 own, u32 is_key,
                    THR const struct attend_shm *s)
{
    u32 d_pad = (d_head + 7u) & ~7u;
    SHM u16 *to =
        is_key ? (SHM u16 *)s->keys + own / GPU_KV_PANEL * d_pad * 32u + own % GPU_KV_PANEL * 8u
               : (SHM u16 *)s->own;
    NO_UNROLL
    for (u32 d = at.lane; d < d_pad && (!PS_METAL || !is_key); d += 32u)
        to[is_key ? d / 8u * 256u + d % 8u : d] = d < d_head ? (u16)half_bits(ex_flush(x[d])) : 0u;
}

/* What k_store does of an item's row: its queries, to shared memory, and where the chunk has the row's position its key
 * and value, to the arena and, f16, to shared memory. A head is a SIMD group's. BARRIER_DEV before anything is read. */
KFN void attend_store(struct at at, CON const struct store_args *a, struct bufs b, THR const struct attend_item *it, u32 kv, DEV const float *q, const u32 n,
                      const u32 q8, THR struct store_with *with, THR const struct attend_shm *s)
{
    if (!q8 && a->d_head == 128u && a->neox && a->d_rope == 128u) {
        attend_store_128(at, a, b, it, kv, q, n, with, s);
        return;
    }
    SHM float *mine = s->rows + at.simd * GPU_APART_DIMS;
    u64 at_row = (u64)it->row * a->kv_stride + kv * a->d_head;
    NO_UNROLL
    for (u32 job = at.simd; job < n + (it->past < it->n_pos ? 2u : 0u); job += GPU_SIMDS) {
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
        DEV u8 *panel = (what == 1u ? it->k : it->v) +
                        it->past / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(a->d_head, q8);
        if (q8)
            store_q8(at, mine, a->d_head, it->pos, what == 1u, panel);
        else {
            store_f16(at, mine, a->d_head, it->pos, what == 1u, panel);
            attend_own(at, mine, a->d_head, it->past, what == 1u, s);
        }
    }
}

/* ---- scores ---- */

struct attend_place { /* a thread's part of the scores */
    u32 head, first, m;     /* first head, of the item's; first panel, step from panel to panel */
    u32 step;               /* bytes from one panel to the next; 0 where the row does not see that one: what
                             * is found there is not used */
    WGT const u8 *k;        /* the first panel */
};

/* Heads of a thread's chains; n / heads panels of them. */
KFN u32 attend_score_heads(const u32 n)
{
    return n < 4 ? n : 4;
}

/* The chunk's keys from byte `from` to byte `to` on their way to shared memory, but for those of position `own`: f16,
 * whose words are a position's. ~0: of none. */
KFN void attend_copy_k(struct at at, DEV const u8 *k, u32 from, u32 to, u32 own, u32 panel_bytes,
                       THR const struct attend_shm *s)
{
    u32 skip = own / GPU_KV_PANEL * panel_bytes,
        skips = own != ~0u && own % GPU_KV_PANEL == at.lane;
    NO_UNROLL
    for (u32 i = from + 16u * at.id; i < to && !PS_METAL; i += 16u * GPU_THREADS)
        if (!skips || i < skip || i >= skip + panel_bytes)
            copy16((SHM u32 *)(s->keys + i), (DEV const u32 *)(k + i));
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

KFN void attend_read_k(THR w4 *k, WGT const u8 *p, u32 step, const u32 each)
{
    UNROLL
    for (u32 i = 0; i < each; i++)
        k[i] = load16(p + i * step);
}

/* Loops are short: most of a launch's code runs once, and is fetched more slowly than it runs. */
KFN void attend_scores(struct at at, CON const struct attend_args *a,
                       THR const struct attend_place *at_s, THR float *acc,
                       THR const struct attend_shm *s, const u32 n, const u32 q8)
{
    const u32 heads = attend_score_heads(n), each = n / heads,
              words = q8 || heads < 4u ? 2u : 1u; /* of an iteration */
    u32 d_pad = (a->d_head + 7u) & ~7u, n_words = q8 ? a->d_head / 16 : d_pad / 8;
    u32 q_stride = q8 ? a->d_head / 4 : d_pad, blocks = a->d_head / 32;
    SHM const u32 *q = s->q + at_s->head * q_stride;
    SHM const float *qd = s->q_scale + at_s->head * blocks;
    WGT const u8 *p = at_s->k + (q8 ? 64u : 0u) + 16u * at.lane;
    i32 dot[8];
    float kd[2];
    w4 k[2 * 2];
    UNROLL
    for (u32 i = 0; i < heads * each; i++)
        acc[i] = 0.0f, dot[i] = 0;
    NO_UNROLL
    for (u32 w = 0; w + words <= n_words; w += words, p += q8 ? 1088u : words * 512u) {
        UNROLL
        for (u32 i = 0; i < words; i++)
            attend_read_k(k + i * each, p + i * 512u, at_s->step, each);
        UNROLL
        for (u32 i = 0; i < each && q8; i++)
            kd[i] = half_value(*(WGT const u16 *)(p - 64 - 14 * at.lane + i * at_s->step));
        UNROLL
        for (u32 i = 0; i < words; i++)
            if (q8)
                attend_score_q8(acc, dot, k + i * each, kd, q + 4 * (w + i), q_stride, qd + w / 2,
                                blocks, i, heads, each);
            else
                attend_score_8(acc, k + i * each, q + 8 * (w + i), q_stride, heads, each);
    }
    if (!q8 && words == 2u && n_words % 2u) {
        attend_read_k(k, p, at_s->step, each);
        attend_score_8(acc, k, q + 8 * (n_words - 1u), q_stride, heads, each);
    }
    UNROLL
    for (u32 i = 0; i < heads * each; i++)
        acc[i] = (0.0f + acc[i]) * a->scale; /* 0 +: the segment joins its total */
}

/* ---- values ---- */

struct attend_slice { /* dimensions that a group works on at a time */
    u32 d0, log2;           /* first one; width 32, 64 or 128 */
    u32 first;              /* of the item */
    u32 pos, past; /* positions of a stage; of the chunk, without one that this launch stores */
};

/* Values of a stage, from position p0 of the chunk on, on their way to it; zeros where the row does not see and past
 * d_head. */
KFN void attend_copy_v(struct at at, CON const struct attend_args *a, DEV const u8 *v,
                       THR const struct attend_slice *c, u32 p0, SHM u32 *stage, const u32 q8)
{
    u32 log2 = c->log2 - (q8 ? 4 : 3), row = q8 ? a->d_head : ((a->d_head + 7u) & ~7u) * 2, step = (u32)GPU_THREADS >> log2;
    u32 at_row = (q8 ? c->d0 : 2 * c->d0) + (at.id & ((1u << log2) - 1)) * 16,
        j = p0 + (at.id >> log2), n = at_row < row ? c->past : 0u;
    u32 panel_bytes = GPU_KV_PANEL_BYTES(a->d_head, q8), skip = q8 ? a->d_head / 32 * 64 : 0;
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++, j += step) {
        SHM u32 *to = stage + 4 * (at.id + GPU_THREADS * i);
        if (j < n) { /* f16 panels of values are rows without a gap */
            copy16(to, (DEV const u32 *)(v + at_row +
                                         (q8 ? (u64)(j / GPU_KV_PANEL) * panel_bytes + skip +
                                                   j % GPU_KV_PANEL * row
                                             : j * row)));
        } else {
            w4 none = {0, 0, 0, 0};
            *(SHM w4 *)to = none;
        }
    }
}

/* A chunk's keys or values will be wanted: a line of 128 bytes a thread. `sharers` groups read the same, of which this is number `mine`: each asks for its part. */
KFN void attend_ahead(struct at at, DEV const u8 *v, u32 n_pos, u32 panel_bytes, u32 mine, u32 sharers)
{
    for (u32 i = (at.id * sharers + mine) * 128; i < (n_pos + 31) / 32 * panel_bytes; i += GPU_THREADS * 128 * sharers)
        prefetch(v + i);
}

/* w * dv of the slice's blocks. Thread = position. */
KFN void attend_scale_w(struct at at, CON const struct attend_args *a, DEV const u8 *v,
                        THR const struct attend_slice *c, u32 n_pos, THR const struct attend_shm *s,
                        const u32 n)
{
    u32 blocks = a->d_head / 32, j = at.id;
    UNROLL
    for (u32 b = 0; b < 4; b++) {
        u32 block = c->d0 / 32 + b;
        float d = 0.0f;
        if (j < n_pos && block < blocks)
            d = half_value(*(DEV const u16 *)(v + (u64)(j / GPU_KV_PANEL) * blocks * 1088 + 2 * (j % GPU_KV_PANEL * blocks + block)));
        UNROLL
        for (u32 h = 0; h < n; h++)
            s->wd[(h * 4 + b) * ATT_BANK + j] = s->w[h * ATT_BANK + j] * d;
    }
}

enum { ATT_RUN = 8 /* positions whose values and weights are in registers at once */ };

/* One of a thread's values, of a word of them. */
KFN float attend_value(u32 word, u32 d, const u32 q8)
{
    u32 u = q8 ? word >> 8 * d & 255u : word >> 16 * d & 0xFFFFu;
    return q8 ? EX_FLOAT(0x4B000000u | (u ^ 128u)) - 8388736.0f
              : half_value(u); /* 2^23 + 128 + integer */
}

/* A word of the row's own value, dimensions d.. of the head, behind the barrier after which it is there. */
KFN u32 attend_own_value(CON const struct attend_args *a, DEV const u8 *v, u32 own, u32 d,
                         THR const struct attend_shm *s, const u32 dims, const u32 q8)
{
    if (d >= a->d_head)
        return 0u;
    if (q8) {
        DEV const u8 *p = v + (u64)(own / GPU_KV_PANEL) * GPU_KV_PANEL_BYTES(a->d_head, q8) +
                          2u * a->d_head + own % GPU_KV_PANEL * a->d_head + d;
        return dims == 2u ? *(DEV const u16 *)p : *p;
    }
    SHM const u16 *p = (SHM const u16 *)s->own + d;
    return dims == 2u ? *(SHM const u32 *)p : *p;
}

/* One thread's values and weights of 8 positions. */
struct attend_run {
    u32 v[ATT_RUN];         /* 2 halves, or up to 2 bytes */
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
            float x = attend_value(r->v[j], d, q8);
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

/* ---- f16 values, turned ----
 * A stage holds a dimension's positions in a row of 1 << log2_pos halves: 16 bytes are eight steps of a chain. A thread brings four dimensions of two
 * neighbouring positions, 8 bytes of each. Groups of eight positions are swapped within a row by an xor, so that neither eight neighbouring dimensions of a group meet in a
 * bank, when they are read, nor what a SIMD group puts down at once: one dimension of each of eight fours, for four pairs of positions. */

struct attend_turn { /* a thread's first piece of a stage: the others lie `step` positions apart each */
    u32 dim, j, step;
};

KFN struct attend_turn attend_turn_of(struct at at, THR const struct attend_slice *c)
{
    u32 high = at.id >> 5u & ((1u << (c->log2 - 5u)) - 1u);
    struct attend_turn t = {4u * (at.id & 7u) + 32u * high, 2u * (at.id >> 3u & 3u) + 8u * (at.id >> c->log2), 8u * GPU_THREADS >> c->log2};
    return t;
}

KFN u32 attend_log2_pos(THR const struct attend_slice *c)
{
    return (PS_METAL ? 11u : 13u) - c->log2; /* of ATT_STAGE / 2 elements */
}

/* Word of a group of eight positions. */
KFN u32 attend_turned(u32 dim, u32 group, u32 log2_pos)
{
    u32 other = (dim ^ dim >> 3u) & ((1u << (log2_pos - 3u)) - 1u) & 7u;
    return (dim << (log2_pos - 1u)) + 4u * (group ^ other);
}

/* Values of a stage as attend_copy_v's, for attend_put_turned: x has four dimensions of a position, then of the one
 * behind it. */
KFN void attend_fetch_turned(struct at at, THR w4 *x, CON const struct attend_args *a, DEV const u8 *v, THR const struct attend_slice *c, u32 p0)
{
    struct attend_turn t = attend_turn_of(at, c);
    u32 row = ((a->d_head + 7u) & ~7u) * 2u, at_row = 2u * (c->d0 + t.dim), j = p0 + t.j,
        n = at_row < row ? c->past : 0u;
    DEV const u8 *p = v + j * row + at_row;
    UNROLL
    for (u32 i = 0; i < ATT_FETCH; i++, j += t.step, p += t.step * row) {
        w2 one = {0, 0}, two = {0, 0};
        if (j < n)
            one = load8(p);
        if (j + 1u < n)
            two = load8(p + row);
        x[i].x = one.x, x[i].y = one.y, x[i].z = two.x, x[i].w = two.y;
    }
}

KFN void attend_put_turned(struct at at, THR const w4 *x, THR const struct attend_slice *c, SHM u32 *stage)
{
    struct attend_turn t = attend_turn_of(at, c);
    u32 log2_pos = attend_log2_pos(c),
        step =
            t.step /
            2u; /* words, of whole groups: more than those of the first piece, so that an xor adds them */
    UNROLL
    for (u32 k = 0; k < 4u; k++) {
        u32 dim = t.dim + k, row = dim << (log2_pos - 1u),
            word = attend_turned(dim, t.j / 8u, log2_pos) - row;
        SHM u32 *to = stage + row + t.j / 2u % 4u;
        UNROLL
        for (u32 i = 0; i < ATT_FETCH; i++) {
            u32 one = k < 2u ? x[i].x : x[i].y, two = k < 2u ? x[i].z : x[i].w;
            to[word ^ i * step] =
                k % 2u ? one >> 16u | (two & 0xFFFF0000u) : (one & 0xFFFFu) | two << 16u;
        }
    }
}

struct attend_eight { /* positions of a dimension, and the weights of two heads */
    w4 v, w[2][2];
};

KFN void attend_read_turned(THR struct attend_eight *r, SHM const u32 *stage, u32 d, u32 j, u32 log2_pos, SHM const float *w, const u32 heads)
{
    r->v = *(SHM const w4 *)(stage + attend_turned(d, j / 8u, log2_pos));
    UNROLL
    for (u32 h = 0; h < heads; h++) {
        UNROLL
        for (u32 k = 0; k < 2u; k++)
            r->w[h][k] = *(SHM const w4 *)(w + h * ATT_BANK + j + 4u * k);
    }
}

KFN void attend_add_eight(THR float *o, THR const struct attend_eight *r, const u32 heads)
{
    UNROLL
    for (u32 k = 0; k < 8u; k++) {
        u32 two = k < 2u ? r->v.x : k < 4u ? r->v.y : k < 6u ? r->v.z : r->v.w;
        float x = half_value(two >> 16u * (k % 2u) & 0xFFFFu);
        UNROLL
        for (u32 h = 0; h < heads; h++) {
            w4 t = r->w[h][k / 4u];
            u32 w = k % 4u == 0u ? t.x : k % 4u == 1u ? t.y : k % 4u == 2u ? t.z : t.w;
            o[h] = EX_FMA(EX_FLOAT(w), x, o[h]);
        }
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

