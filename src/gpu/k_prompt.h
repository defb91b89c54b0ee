/* Attention of a prompt's rows (rule 7): a tile of up to 8 rows of one slot at positions that follow each other, with up to 8 query heads
 * (GPU_PROMPT_HEADS) that share a key/value head, is one group's work. A SIMD group has one row: its `n` queries (1, 2, 4 or 8: the heads, rounded up). All
 * see the same keys and values, which go through shared memory in stages; everything else is a SIMD group's own, so the only barriers
 * are the stages' (one each: two stages take turns, and registers hold a third).
 *
 *   scores   f16: lane = position: n x 8 chains a thread (positions lane, lane + 32, ... of the chunk: rule 6's sums lie in their lanes);
 *            a stage is 256 positions x 16 dimensions. q8_0: integer tiles of 16 positions x 8 queries; a stage is a block of 32
 *   values   lane = 4 dimensions of 128: n x 4 chains a thread. A stage: 32 positions x 128 dimensions
 *
 *   shared memory: [stages: 2 x 8 KB] [q8_0: their scales: 2 x 256] [w: (row, position, n)] [q: (row, dimension, n) floats;
 *                  q8_0: (row, d_head / 4, n) words, (row, block, n) scales]
 *
 * In a PS_METAL build, where that is too much, weights stay in registers and are put down 32 positions at a time, and floats of q 16 dimensions at a time,
 * each before the stage that they go with.
 *
 * Between chunks m and l stay in registers, o in the row's place in att: a thread reads there only what it wrote itself. */

enum {
    PROMPT_STAGE = 8192,
    PROMPT_SLICE = 128,
    PROMPT_DIMS = 16,
    PROMPT_HELD = PS_METAL ? 32 : GPU_CHUNK /* positions whose weights are in shared memory */
};

struct prompt_shm {
    SHM u32 *stage;         /* 2 x PROMPT_STAGE bytes */
    SHM float *scale;       /* q8_0: 2 x 256 */
    SHM float *w;           /* this row's */
    SHM u32 *q;             /* this row's */
    SHM float *q_scale;     /* this row's */
};

struct prompt_tile {
    u32 row, head;          /* this SIMD group's row of the table, the first query head */
    u32 heads;              /* queries that exist; 0: there is no such row */
    u32 pos, last;          /* of this row; of the tile's last row */
    DEV const u8 *k;        /* at position 0; its values lie n_kv heads further on */
};

struct prompt_fetch { /* a thread's part of a stage */
    w4 x[2];
    u32 d;                  /* q8_0: a scale */
};

KFN void prompt_lay(struct at at, SHM u32 *shm, u32 n, u32 d_head, u32 q8, THR struct prompt_shm *s)
{
    u32 dims = (d_head + PROMPT_DIMS - 1) / PROMPT_DIMS * PROMPT_DIMS, words = (q8 ? dims / 4 : PS_METAL ? PROMPT_DIMS : dims) * n;
    s->stage = shm;
    shm += 2 * PROMPT_STAGE / 4;
    s->scale = (SHM float *)shm;
    shm += q8 ? 2 * GPU_CHUNK : 0;
    s->w = (SHM float *)shm + at.simd * PROMPT_HELD * n;
    shm += GPU_SIMDS * PROMPT_HELD * n;
    s->q = shm + at.simd * words;
    s->q_scale = (SHM float *)shm + GPU_SIMDS * words + at.simd * (d_head / 32) * n;
}

/* ---- queries of a SIMD group's row ---- */

KFN void prompt_put_q(struct at at, CON const struct attend_args *a, THR const struct prompt_tile *t, DEV const float *q, const u32 n,
                      THR const struct prompt_shm *s)
{
    u32 dims = (a->d_head + PROMPT_DIMS - 1) / PROMPT_DIMS * PROMPT_DIMS;
    for (u32 d = at.lane; d < dims; d += 32) {
        UNROLL
        for (u32 h = 0; h < n; h++)
            s->q[d * n + h] = h < t->heads && d < a->d_head ? EX_BITS(q[h * a->d_head + d]) : 0;
    }
}

/* PS_METAL: the 16 dimensions of stage c. */
KFN void prompt_put_q_some(struct at at, CON const struct attend_args *a, THR const struct prompt_tile *t, DEV const float *q, u32 c, const u32 n,
                           THR const struct prompt_shm *s)
{
    SIMD_BARRIER(at); /* those of the stage before have been used */
    UNROLL
    for (u32 i = at.lane; i < PROMPT_DIMS * n; i += 32) {
        u32 h = i / PROMPT_DIMS, in = i % PROMPT_DIMS, d = c * PROMPT_DIMS + in;
        s->q[in * n + h] = h < t->heads && d < a->d_head ? EX_BITS(q[h * a->d_head + d]) : 0;
    }
}

KFN void prompt_put_q8(struct at at, CON const struct attend_args *a, THR const struct prompt_tile *t, DEV const float *q, const u32 n,
                       THR const struct prompt_shm *s)
{
    for (u32 h = 0; h < n; h++)
        for (u32 i0 = 0; i0 < a->d_head; i0 += 128) {
            u32 i = i0 + 4 * at.lane, some = i < a->d_head && h < t->heads;
            float v[4], d;
            i32 sum;
            w4 x = {0, 0, 0, 0};
            if (some)
                x = load16(q + h * a->d_head + i);
            v[0] = EX_FLOAT(x.x), v[1] = EX_FLOAT(x.y), v[2] = EX_FLOAT(x.z), v[3] = EX_FLOAT(x.w);
            u32 word = act_quantise_8(at, v, &d, &sum);
            if (i < a->d_head) {
                s->q[i / 4 * n + h] = word;
                if (i % 32 == 0)
                    s->q_scale[i / 32 * n + h] = d;
            }
        }
}

/* ---- stages ---- */

/* Keys: stage c of the chunk at k, of which n_seen positions are there for some row. Thread = position. */
KFN void prompt_fetch_k(struct at at, CON const struct attend_args *a, DEV const u8 *k, u32 c, u32 n_seen, const u32 q8, THR struct prompt_fetch *f)
{
    u32 d_pad = (a->d_head + 7u) & ~7u;
    DEV const u8 *panel = k + at.simd * GPU_KV_PANEL_BYTES(a->d_head, q8);
    u32 some = at.simd * 32 < n_seen;
    f->d = 0;
    UNROLL
    for (u32 i = 0; i < 2; i++) {
        w4 x = {0, 0, 0, 0};
        if (q8 ? some : some && 16 * c + 8 * i < d_pad)
            x = load16(panel + (q8 ? c * 1088 + 64 + i * 512 : (2 * c + i) * 512) + at.lane * 16);
        f->x[i] = x;
    }
    if (q8 && some)
        f->d = *(DEV const u16 *)(panel + c * 1088 + 2 * at.lane);
}

/* f16: (8 pairs of dimensions, 256 positions) words. q8_0: (2 halves of the block, 256 positions) 16 bytes. */
KFN void prompt_put_k(struct at at, THR const struct prompt_fetch *f, SHM u32 *stage, SHM float *scale, const u32 q8)
{
    UNROLL
    for (u32 i = 0; i < 2; i++) {
        if (q8) {
            *(SHM w4 *)(stage + 4 * (i * GPU_CHUNK + at.id)) = f->x[i];
        } else {
            stage[(4 * i + 0) * GPU_CHUNK + at.id] = f->x[i].x;
            stage[(4 * i + 1) * GPU_CHUNK + at.id] = f->x[i].y;
            stage[(4 * i + 2) * GPU_CHUNK + at.id] = f->x[i].z;
            stage[(4 * i + 3) * GPU_CHUNK + at.id] = f->x[i].w;
        }
    }
    if (q8)
        scale[at.id] = half_value(f->d);
}

/* Values: 32 positions from 32 * c on, dimensions from d0 on. What no row sees is 0. */
KFN void prompt_fetch_v(struct at at, CON const struct attend_args *a, DEV const u8 *v, u32 c, u32 d0, u32 n_seen, const u32 q8,
                        THR struct prompt_fetch *f)
{
    u32 row = q8 ? a->d_head : ((a->d_head + 7u) & ~7u) * 2, blocks = a->d_head / 32;
    DEV const u8 *panel = v + c * GPU_KV_PANEL_BYTES(a->d_head, q8);
    f->d = 0;
    UNROLL
    for (u32 i = 0; i < (q8 ? 1u : 2u); i++) {
        u32 e = at.id + GPU_THREADS * i, j = q8 ? e / 8 : e / 16, at_row = q8 ? d0 + e % 8 * 16 : 2 * d0 + e % 16 * 16;
        w4 x = {0, 0, 0, 0};
        if (32 * c + j < n_seen && at_row < row)
            x = load16(panel + (q8 ? 64 * blocks : 0) + j * row + at_row);
        f->x[i] = x;
    }
    if (q8) {
        u32 j = at.id / 4, b = d0 / 32 + at.id % 4;
        if (j < 32 && 32 * c + j < n_seen && b < blocks)
            f->d = *(DEV const u16 *)(panel + 2 * (j * blocks + b));
    }
}

KFN void prompt_put_v(struct at at, THR const struct prompt_fetch *f, SHM u32 *stage, SHM float *scale, const u32 q8)
{
    UNROLL
    for (u32 i = 0; i < (q8 ? 1u : 2u); i++)
        *(SHM w4 *)(stage + 4 * (at.id + GPU_THREADS * i)) = f->x[i];
    if (q8 && at.id < 128)
        scale[at.id] = half_value(f->d);
}

/* ---- scores ---- */

/* n words at p, of any n = 1, 2, 4, 8. */
KFN void prompt_read(THR u32 *v, SHM const u32 *p, const u32 n)
{
    if (n < 4) {
        v[0] = p[0];
        if (n == 2)
            v[1] = p[1];
        return;
    }
    UNROLL
    for (u32 i = 0; i < n; i += 4) {
        w4 t = *(SHM const w4 *)(p + i);
        v[i] = t.x;
        v[i + 1] = t.y;
        v[i + 2] = t.z;
        v[i + 3] = t.w;
    }
}

/* 16 dimensions. acc: (n, 8); panels of the chunk that the row sees, 4 or 8. */
KFN void prompt_score(struct at at, THR float *acc, SHM const u32 *stage, SHM const u32 *q, const u32 n, const u32 panels)
{
    NO_UNROLL
    for (u32 g = 0; g < PROMPT_DIMS / 2; g++) {
        u32 k[8];
        UNROLL
        for (u32 p = 0; p < panels; p++)
            k[p] = stage[g * GPU_CHUNK + 32 * p + at.lane];
        UNROLL
        for (u32 i = 0; i < 2; i++) {
            u32 x[8];
            prompt_read(x, q + (2 * g + i) * n, n);
            UNROLL
            for (u32 p = 0; p < panels; p++) {
                float y = half_value(k[p] >> 16 * i & 0xFFFFu);
                UNROLL
                for (u32 h = 0; h < n; h++)
                    acc[h * 8 + p] = EX_FMA(EX_FLOAT(x[h]), y, acc[h * 8 + p]);
            }
        }
    }
}

/* A block of 32 dimensions, by integer tiles of 16 positions x 8 queries: lane 4 g + t has positions g and g + 8 of each, queries 2 t and
 * 2 t + 1. acc: (tile, 4); one fma each. */
KFN void prompt_score_q8(struct at at, THR float *acc, SHM const u32 *stage, SHM const float *scale, SHM const u32 *q, SHM const float *q_scale,
                         const u32 n, const u32 tiles)
{
    u32 g = at.lane / 4, t = at.lane % 4, w = tile_word(at), b[2 * TILE_COLS];
    float d0 = 2 * t < n ? q_scale[2 * t] : 0.0f, d1 = 2 * t + 1 < n ? q_scale[2 * t + 1] : 0.0f;
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++) {
        u32 col = tile_col(at, i);
        b[i] = col < n ? q[w * n + col] : 0;
        b[TILE_COLS + i] = col < n ? q[(4 + w) * n + col] : 0;
    }
    UNROLL
    for (u32 i = 0; i < tiles; i++) {
        u32 lo = 16 * i + g, a[4] = {stage[4 * lo + t], stage[4 * (lo + 8) + t], stage[4 * (GPU_CHUNK + lo) + t], stage[4 * (GPU_CHUNK + lo + 8) + t]};
        i32 c[4] = {0, 0, 0, 0};
        tile_s(at, c, a, b);
        float k0 = scale[lo], k1 = scale[lo + 8];
        acc[4 * i] = EX_FMA((float)c[0], k0 * d0, acc[4 * i]);
        acc[4 * i + 1] = EX_FMA((float)c[1], k0 * d1, acc[4 * i + 1]);
        acc[4 * i + 2] = EX_FMA((float)c[2], k1 * d0, acc[4 * i + 2]);
        acc[4 * i + 3] = EX_FMA((float)c[3], k1 * d1, acc[4 * i + 3]);
    }
}

/* Weights of 32 positions, panel c of the chunk, out of registers into shared memory: as prompt_weights left them, or prompt_weights_q8. */
KFN void prompt_put_w(struct at at, THR const float *acc, u32 c, SHM float *w, const u32 n, const u32 q8)
{
    u32 g = at.lane / 4, t = at.lane % 4;
    SIMD_BARRIER(at); /* the weights before them have been read */
    UNROLL
    for (u32 i = 0; q8 && i < 32; i++) {
        UNROLL
        for (u32 h = 0; h < 2; h++)
            if (i / 4 == c && 2 * t + h < n)
                w[(8 * (i % 4) + g) * n + 2 * t + h] = acc[2 * i + h];
    }
    UNROLL
    for (u32 p = 0; !q8 && p < 8; p++) {
        UNROLL
        for (u32 h = 0; h < n; h++)
            if (p == c)
                w[at.lane * n + h] = acc[h * 8 + p];
    }
}

/* Scores become weights in shared memory (PS_METAL: in acc). *m and *l: of the chunk; lane h has query h's. */
KFN void prompt_weights(struct at at, THR float *acc, float scale, u32 n_pos, THR float *m, THR float *l, SHM float *w, const u32 n)
{
    UNROLL
    for (u32 h = 0; h < n; h++) {
        float top = ATT_NONE;
        UNROLL
        for (u32 p = 0; p < 8; p++) {
            acc[h * 8 + p] = 32 * p + at.lane < n_pos ? acc[h * 8 + p] * scale : ATT_NONE;
            top = acc[h * 8 + p] > top ? acc[h * 8 + p] : top;
        }
        float most = attend_unkey(simd_max_u32(at, attend_key(top))), sum = 0.0f;
        UNROLL
        for (u32 p = 0; p < 8; p++) {
            acc[h * 8 + p] = attend_weight(acc[h * 8 + p] - most);
            sum = sum + acc[h * 8 + p];
        }
        sum = simd_tree(at, sum);
        *m = at.lane == h ? most : *m;
        *l = at.lane == h ? sum : *l;
    }
    if (PS_METAL)
        return;
    SIMD_BARRIER(at); /* the weights of the chunk before have been read */
    UNROLL
    for (u32 p = 0; p < 8; p++) {
        UNROLL
        for (u32 h = 0; h < n; h++)
            w[(32 * p + at.lane) * n + h] = acc[h * 8 + p];
    }
    SIMD_BARRIER(at);
}

/* PS_METAL: scores become weights where they are; *l as above, by way of shared memory, 32 positions at a time. */
KFN void prompt_sum_q8(struct at at, THR float *acc, THR const float *most, THR float *l, SHM float *w, const u32 n)
{
    float sum[8];
    UNROLL
    for (u32 i = 0; i < 64; i++)
        acc[i] = attend_weight(acc[i] - most[i % 2]);
    UNROLL
    for (u32 h = 0; h < n; h++)
        sum[h] = 0.0f;
    UNROLL
    for (u32 p = 0; p < 8; p++) {
        prompt_put_w(at, acc, p, w, n, 1);
        SIMD_BARRIER(at);
        UNROLL
        for (u32 h = 0; h < n; h++)
            sum[h] = sum[h] + w[at.lane * n + h];
    }
    UNROLL
    for (u32 h = 0; h < n; h++) {
        float all = simd_tree(at, sum[h]);
        *l = at.lane == h ? all : *l;
    }
}

/* The same from tiles' places: maxima over the lanes of a query; l from the weights as they lie in shared memory. */
KFN void prompt_weights_q8(struct at at, THR float *acc, float scale, u32 n_pos, THR float *m, THR float *l, SHM float *w, const u32 n)
{
    u32 g = at.lane / 4, t = at.lane % 4;
    float most[2];
    UNROLL
    for (u32 h = 0; h < 2; h++) {
        float top = ATT_NONE;
        UNROLL
        for (u32 i = 0; i < 32; i++) {
            acc[2 * i + h] = 8 * i + g < n_pos ? (0.0f + acc[2 * i + h]) * scale : ATT_NONE; /* 0 +: the segment joins its total */
            top = acc[2 * i + h] > top ? acc[2 * i + h] : top;
        }
        UNROLL
        for (u32 k = 4; k < 32; k *= 2) {
            float other = shuffle_xor_f(at, top, k);
            top = other > top ? other : top;
        }
        most[h] = top;
    }
    if (PS_METAL) {
        prompt_sum_q8(at, acc, most, l, w, n);
    } else {
        SIMD_BARRIER(at); /* the weights of the chunk before have been read */
        UNROLL
        for (u32 i = 0; i < 32; i++) {
            UNROLL
            for (u32 h = 0; h < 2; h++)
                if (2 * t + h < n)
                    w[(8 * i + g) * n + 2 * t + h] = attend_weight(acc[2 * i + h] - most[h]);
        }
        SIMD_BARRIER(at);
    }
    u32 from = at.lane / 2 % 4;
    u32 even = shuffle_from(at, EX_BITS(most[0]), from), odd = shuffle_from(at, EX_BITS(most[1]), from);
    *m = EX_FLOAT(at.lane % 2 ? odd : even);
    if (PS_METAL)
        return;
    UNROLL
    for (u32 h = 0; h < n; h++) {
        float sum = 0.0f;
        UNROLL
        for (u32 p = 0; p < 8; p++)
            sum = sum + w[(32 * p + at.lane) * n + h];
        sum = simd_tree(at, sum);
        *l = at.lane == h ? sum : *l;
    }
}

/* ---- values ---- */

/* 32 positions. o: (n, 4). w: at the first one's weights. */
KFN void prompt_add(struct at at, THR float *o, SHM const u32 *stage, SHM const float *scale, SHM const u32 *w, const u32 n, const u32 q8)
{
    NO_UNROLL
    for (u32 j0 = 0; j0 < 32; j0 += 4) {
        UNROLL
        for (u32 j = j0; j < j0 + 4; j++) {
            u32 x[8];
            float y[4], d = 0.0f;
            prompt_read(x, w + j * n, n);
            if (q8) {
                u32 v = stage[32 * j + at.lane] ^ 0x80808080u;
                d = scale[4 * j + at.lane / 8];
                UNROLL
                for (u32 i = 0; i < 4; i++)
                    y[i] = EX_FLOAT(0x4B000000u | (v >> 8 * i & 255u)) - 8388736.0f; /* 2^23 + 128 + integer */
            } else {
                w2 v = *(SHM const w2 *)(stage + 2 * (32 * j + at.lane));
                UNROLL
                for (u32 i = 0; i < 4; i++)
                    y[i] = half_value((i < 2 ? v.x : v.y) >> 16 * (i % 2) & 0xFFFFu);
            }
            UNROLL
            for (u32 h = 0; h < n; h++) {
                float wh = q8 ? EX_FLOAT(x[h]) * d : EX_FLOAT(x[h]);
                UNROLL
                for (u32 i = 0; i < 4; i++)
                    o[h * 4 + i] = EX_FMA(wh, y[i], o[h * 4 + i]);
            }
        }
    }
}

/* How a chunk joins what came before it: o = o * a + chunk * b; o / l at the end. Lane h has query h's numbers. */
struct prompt_join {
    float a, b, l, m;
};

KFN void prompt_count(THR struct prompt_join *j, u32 first, float m, float l)
{
    if (first) {
        j->m = m;
        j->l = l;
        return;
    }
    float top = m > j->m ? m : j->m;
    j->a = ex_exp(j->m - top);
    j->b = ex_exp(m - top);
    j->l = EX_FMA(j->l, j->a, l * j->b);
    j->m = top;
}

KFN void prompt_put_o(struct at at, THR const struct prompt_join *j, u32 first, u32 last, THR const float *o, DEV float *att, u32 heads, u32 d_head,
                      u32 d, const u32 n)
{
    u32 four = d + 4 <= d_head && (d_head & 3) == 0;
    UNROLL
    for (u32 h = 0; h < n; h++) {
        float a = EX_FLOAT(shuffle_from(at, EX_BITS(j->a), h)), b = EX_FLOAT(shuffle_from(at, EX_BITS(j->b), h));
        float l = EX_FLOAT(shuffle_from(at, EX_BITS(j->l), h)), x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        DEV float *to = att + h * d_head + d;
        if (h >= heads || d >= d_head)
            continue;
        if (!first && four) {
            w4 t = load16(to);
            x[0] = EX_FLOAT(t.x), x[1] = EX_FLOAT(t.y), x[2] = EX_FLOAT(t.z), x[3] = EX_FLOAT(t.w);
        }
        UNROLL
        for (u32 i = 0; i < 4; i++) {
            if (!first && !four)
                x[i] = d + i < d_head ? to[i] : 0.0f;
            x[i] = first ? o[h * 4 + i] : EX_FMA(x[i], a, o[h * 4 + i] * b);
            x[i] = last ? ex_flush(div_rn(x[i], l)) : x[i];
            if (!four && d + i < d_head)
                to[i] = x[i];
        }
        if (four) {
            w4 t = {EX_BITS(x[0]), EX_BITS(x[1]), EX_BITS(x[2]), EX_BITS(x[3])};
            *(DEV w4 *)to = t;
        }
    }
}

/* ---- a tile ---- */

KFN void prompt_find(struct at at, CON const struct attend_args *a, struct bufs b, u32 tile, u32 kv, u32 sub, u32 share, THR struct prompt_tile *t)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 word = in[a->tiles_at + tile], row0 = word & 0xFFFFFFu, rows = word >> 24;
    w4 row = load16(in + a->rows_at + 4 * row0);
    t->row = row0 + at.simd;
    t->head = kv * share + GPU_PROMPT_HEADS * sub;
    t->heads = at.simd < rows ? least_u32(share - GPU_PROMPT_HEADS * sub, GPU_PROMPT_HEADS) : 0;
    t->pos = row.z + at.simd;
    t->last = row.z + rows - 1;
    t->k = kv_head(b.p[2], row.y, a->slot_lo, a->slot_hi, a->head_bytes, kv);
}

KFN void prompt_chunk(struct at at, CON const struct attend_args *a, struct bufs b, THR const struct prompt_tile *t, u32 chunk, THR struct prompt_fetch *f,
                      THR u32 *turn, THR struct prompt_join *join, THR const struct prompt_shm *s, const u32 n, const u32 q8)
{
    u32 n_seen = least_u32(t->last + 1 - chunk * GPU_CHUNK, GPU_CHUNK), n_stages = q8 ? a->d_head / 32 : (a->d_head + 15) / 16;
    u32 n_pos = t->heads && t->pos >= chunk * GPU_CHUNK ? least_u32(t->pos + 1 - chunk * GPU_CHUNK, GPU_CHUNK) : 0;
    u32 chunk_bytes = GPU_CHUNK / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(a->d_head, q8), more = t->last >= (chunk + 1) * GPU_CHUNK;
    DEV const u8 *k = t->k + (u64)chunk * chunk_bytes, *v = k + (u64)a->n_kv * a->head_bytes;
    DEV const float *q = (DEV const float *)b.p[1] + (u64)t->row * a->q_stride + t->head * a->d_head;
    SHM const u32 *w = (SHM const u32 *)s->w;
    u32 n_panels = (n_seen + 31) / 32, n_slices = (a->d_head + PROMPT_SLICE - 1) / PROMPT_SLICE;
    float acc[64], m = 0.0f, l = 0.0f;
    UNROLL
    for (u32 i = 0; i < (q8 ? 64 : 8 * n); i++)
        acc[i] = 0.0f;
    for (u32 c = 0; c < n_stages; c++, *turn ^= 1) {
        SHM u32 *stage = s->stage + *turn * (PROMPT_STAGE / 4);
        SHM float *scale = s->scale + *turn * GPU_CHUNK;
        prompt_put_k(at, f, stage, scale, q8);
        if (c + 1 < n_stages)
            prompt_fetch_k(at, a, k, c + 1, n_seen, q8, f);
        else
            prompt_fetch_v(at, a, v, 0, 0, n_seen, q8, f);
        if (PS_METAL && !q8)
            prompt_put_q_some(at, a, t, q, c, n, s);
        BARRIER(at);
        if (n_pos > 128) {
            if (q8)
                prompt_score_q8(at, acc, stage, scale, s->q + c * 8 * n, s->q_scale + c * n, n, 16);
            else
                prompt_score(at, acc, stage, s->q + (PS_METAL ? 0 : c * PROMPT_DIMS * n), n, 8);
        } else if (n_pos) {
            if (q8)
                prompt_score_q8(at, acc, stage, scale, s->q + c * 8 * n, s->q_scale + c * n, n, 8);
            else
                prompt_score(at, acc, stage, s->q + (PS_METAL ? 0 : c * PROMPT_DIMS * n), n, 4);
        }
    }
    if (n_pos) {
        if (q8)
            prompt_weights_q8(at, acc, a->scale, n_pos, &m, &l, s->w, n);
        else
            prompt_weights(at, acc, a->scale, n_pos, &m, &l, s->w, n);
        prompt_count(join, chunk == 0, m, l);
    }
    for (u32 slice = 0; slice < n_slices; slice++) {
        float o[32];
        UNROLL
        for (u32 i = 0; i < 4 * n; i++)
            o[i] = 0.0f;
        for (u32 c = 0; c < n_panels; c++, *turn ^= 1) {
            SHM u32 *stage = s->stage + *turn * (PROMPT_STAGE / 4);
            SHM float *scale = s->scale + *turn * GPU_CHUNK;
            prompt_put_v(at, f, stage, scale, q8);
            if (c + 1 < n_panels)
                prompt_fetch_v(at, a, v, c + 1, slice * PROMPT_SLICE, n_seen, q8, f);
            else if (slice + 1 < n_slices)
                prompt_fetch_v(at, a, v, 0, (slice + 1) * PROMPT_SLICE, n_seen, q8, f);
            else if (more)
                prompt_fetch_k(at, a, k + chunk_bytes, 0, least_u32(t->last + 1 - (chunk + 1) * GPU_CHUNK, GPU_CHUNK), q8, f);
            if (PS_METAL)
                prompt_put_w(at, acc, c, s->w, n, q8);
            BARRIER(at);
            if (32 * c < n_pos)
                prompt_add(at, o, stage, scale, w + (PS_METAL ? 0 : 32 * c * n), n, q8);
        }
        if (n_pos)
            prompt_put_o(at, join, chunk == 0, t->pos < (chunk + 1) * GPU_CHUNK, o,
                         (DEV float *)b.p[4] + (u64)t->row * a->att_stride + t->head * a->d_head, t->heads, a->d_head,
                         slice * PROMPT_SLICE + 4 * at.lane, n);
    }
}

KFN void prompt_tiles(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm, u32 share, const u32 n, const u32 q8)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 n_sub = (share + GPU_PROMPT_HEADS - 1) / GPU_PROMPT_HEADS, pieces = a->n_kv * n_sub, units = in[IN_TILES + a->which] * pieces, turn = 0;
    struct prompt_shm s;
    prompt_lay(at, shm, n, a->d_head, q8, &s);
    for (u32 u = at.group; u < units; u += at.n_groups) {
        struct prompt_tile t;
        struct prompt_fetch f;
        struct prompt_join join = {0.0f, 0.0f, 0.0f, 0.0f};
        u32 piece, sub, tile = split_u32(u, pieces, &piece), kv = split_u32(piece, n_sub, &sub);
        prompt_find(at, a, b, tile, kv, sub, share, &t);
        DEV const float *q = (DEV const float *)b.p[1] + (u64)t.row * a->q_stride + t.head * a->d_head;
        prompt_fetch_k(at, a, t.k, 0, least_u32(t.last + 1, GPU_CHUNK), q8, &f);
        SIMD_BARRIER(at); /* the queries of the tile before have been used */
        if (q8)
            prompt_put_q8(at, a, &t, q, n, &s);
        else if (!PS_METAL)
            prompt_put_q(at, a, &t, q, n, &s);
        SIMD_BARRIER(at);
        for (u32 chunk = 0; chunk * GPU_CHUNK <= t.last; chunk++)
            prompt_chunk(at, a, b, &t, chunk, &f, &turn, &join, &s, n, q8);
    }
}

KFN void k_prompt(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    u32 rest, share = split_u32(a->n_heads, a->n_kv, &rest);
    const u32 most = GPU_PROMPT_HEADS;
    if (a->kv_q8) {
        if (share == 1)
            prompt_tiles(at, a, b, shm, share, 1, 1);
        else if (share == 2)
            prompt_tiles(at, a, b, shm, share, 2, 1);
        else if (most == 4 || share <= 4)
            prompt_tiles(at, a, b, shm, share, 4, 1);
        else
            prompt_tiles(at, a, b, shm, share, 8, 1);
        return;
    }
    if (share == 1)
        prompt_tiles(at, a, b, shm, share, 1, 0);
    else if (share == 2)
        prompt_tiles(at, a, b, shm, share, 2, 0);
    else if (most == 4 || share <= 4)
        prompt_tiles(at, a, b, shm, share, 4, 0);
    else
        prompt_tiles(at, a, b, shm, share, 8, 0);
}
