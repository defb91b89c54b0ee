/* Attention of a prompt's rows (rule 7): a tile of up to 8 rows of one slot at positions that follow each other, with up to 8 query heads
 * (GPU_PROMPT_HEADS) that share a key/value head, is one group's work. A SIMD group has one row: its `n` queries (1, 2, 4 or 8: the heads, rounded up). All
 * see the same keys and values, which go through shared memory in stages; everything else is a SIMD group's own, so the only barriers
 * are the stages' (one each: two stages take turns, and registers hold a third).
 *
 *   scores   f16: lane = position: n x 8 chains a thread (positions lane, lane + 32, ... of the chunk: rule 6's sums lie in their lanes);
 *            a stage is 16 dimensions x 256 positions, floats: all eight SIMD groups read what was widened once.
 *            q8_0: integer tiles of 16 positions x 8 queries; a stage is a block of 32
 *   values   lane = 4 dimensions of 128: n x 4 chains a thread. A stage: 32 positions x 128 dimensions, f16 as floats
 *
 *   shared memory: [stages: 2 x 16 KB, q8_0 8 KB] [q8_0: their scales: 2 x 256] [w: (row, position, n)] [q: (row, dimension, n) floats;
 *                  q8_0: (row, d_head / 4, n) words, (row, block, n) scales]
 *
 * Two groups an SM: their barriers do not fall together, and one multiplies while the other finds weights. So f16's weights are put down for 128
 * positions at a time, from registers. In a PS_METAL build stages are half as long, weights are put down 32 positions at a time, and floats of q 8 dimensions at a
 * time, each before the stage that they go with.
 *
 * Between chunks m and l stay in registers, o in the row's place in att: a thread reads there only what it wrote itself. */

enum {
    PROMPT_SLICE = 128,
    PROMPT_DIMS = PS_METAL ? 8 : 16, /* f16: of keys in a stage */
    PROMPT_STEP = PS_METAL ? 16 : 32, /* f16: positions of values in a stage */
    PROMPT_LOADS = PROMPT_DIMS / 8,  /* f16: of 16 bytes, of a thread for a stage */
    PROMPT_HELD = PS_METAL ? 32 : 128, /* f16 (PS_METAL: q8_0 too): positions whose weights are in shared memory */
    PROMPT_HELD_Q8 = PS_METAL ? 32 : GPU_CHUNK
};

struct prompt_shm {
    SHM u32 *stage;         /* two, `words` long */
    u32 words;
    SHM float *scale;       /* q8_0: 2 x 256 */
    SHM float *w;           /* this row's */
    SHM u32 *q;             /* this row's */
    SHM float *q_scale;     /* this row's */
    u32 k_from, v_from;     /* a thread's part of a stage: bytes on from the chunk's keys, or from the stage's values */
    u32 k_to, v_to;         /* words of the stage */
    u32 k_panel, v_pos;     /* the first position of its keys' panel; the position of its values */
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

/* q8_0: thread = position of keys. f16: a SIMD group has eight lanes' positions of four panels, so that words put down one for each position fall into
 * different banks. Found once: the registers for it are few, and the way to it is long. */
KFN void prompt_places(struct at at, u32 d_head, u32 q8, THR struct prompt_shm *s)
{
    u32 panel = q8 ? at.simd : at.simd / 4 * 4 + at.lane / 8, j = q8 ? at.lane : at.simd % 4 * 8 + at.lane % 8;
    u32 e = at.id % (q8 ? 8 : 16), pos = at.id / (q8 ? 8 : 16);
    s->k_panel = again(panel * 32);
    s->k_from = again(panel * GPU_KV_PANEL_BYTES(d_head, q8) + j * 16);
    s->k_to = again(q8 ? 4 * at.id : 32 * at.simd + at.lane % 8 * 4 + at.lane / 8);
    s->v_pos = again(pos);
    s->v_from = again(e * 16 + pos * (q8 ? d_head : ((d_head + 7u) & ~7u) * 2) + (q8 ? d_head / 32 * 64 : 0));
    s->v_to = again(q8 ? 4 * at.id : pos * PROMPT_SLICE + 4 * e);
}

KFN void prompt_lay(struct at at, SHM u32 *shm, u32 n, u32 d_head, u32 q8, THR struct prompt_shm *s)
{
    u32 dims = (d_head + PROMPT_DIMS - 1) / PROMPT_DIMS * PROMPT_DIMS, words = (q8 ? dims / 4 : PS_METAL ? PROMPT_DIMS : dims) * n;
    u32 held = q8 ? PROMPT_HELD_Q8 : GPU_PROMPT_WIDE(d_head) ? GPU_CHUNK : PROMPT_HELD;
    s->stage = shm;
    s->words = (q8 ? 8 : PROMPT_DIMS) * GPU_CHUNK;
    shm += 2 * s->words;
    s->scale = (SHM float *)shm;
    shm += q8 ? 2 * GPU_CHUNK : 0;
    s->w = (SHM float *)shm + at.simd * held * n;
    shm += GPU_SIMDS * held * n;
    s->q = shm + at.simd * words;
    s->q_scale = (SHM float *)shm + GPU_SIMDS * words + at.simd * (d_head / 32) * n;
    prompt_places(at, d_head, q8, s);
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

/* PS_METAL: the dimensions of stage c. */
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

/* Keys: stage c of the chunk, of which n_seen positions are there for some row. from: a thread's part of it. */
KFN void prompt_fetch_k(struct at at, CON const struct attend_args *a, THR const struct prompt_shm *s, DEV const u8 *from, u32 c, u32 n_seen, const u32 q8,
                        THR struct prompt_fetch *f)
{
    u32 d_pad = (a->d_head + 7u) & ~7u, some = s->k_panel < n_seen;
    f->d = 0;
    UNROLL
    for (u32 i = 0; i < (q8 ? 2u : PROMPT_LOADS); i++) {
        w4 x = {0, 0, 0, 0};
        if (some && (q8 || PROMPT_DIMS * c + 8 * i < d_pad))
            x = load16(from + (q8 ? 64 + i * 512 : i * 512));
        f->x[i] = x;
    }
    if (q8 && some)
        f->d = *(DEV const u16 *)(from - at.lane * 14);
}

/* Two halves of a word, widened. */
KFN void prompt_widen(THR u32 *v, u32 word)
{
    v[0] = EX_BITS(half_value(word & 0xFFFFu));
    v[1] = EX_BITS(half_value(word >> 16));
}

/* Eight halves, widened. */
KFN void prompt_widen_8(THR u32 *v, w4 x)
{
    prompt_widen(v, x.x);
    prompt_widen(v + 2, x.y);
    prompt_widen(v + 4, x.z);
    prompt_widen(v + 6, x.w);
}

/* f16: (dimension, 2, lane, 4 panels of 8) floats. q8_0: (2 halves of the block, 256 positions) 16 bytes. */
KFN void prompt_put_k(struct at at, THR const struct prompt_shm *s, THR const struct prompt_fetch *f, SHM u32 *stage, SHM float *scale, const u32 q8)
{
    UNROLL
    for (u32 i = 0; i < (q8 ? 2u : PROMPT_LOADS); i++) {
        u32 v[8];
        if (q8) {
            *(SHM w4 *)(stage + 4 * i * GPU_CHUNK + s->k_to) = f->x[i];
            continue;
        }
        prompt_widen_8(v, f->x[i]);
        UNROLL
        for (u32 e = 0; e < 8; e++)
            stage[(8 * i + e) * GPU_CHUNK + s->k_to] = v[e];
    }
    if (q8)
        scale[at.id] = half_value(f->d);
}

/* Values of stage c: 32 positions (f16: PROMPT_STEP), dimensions from d0 on. What no row sees is 0. */
KFN void prompt_fetch_v(struct at at, CON const struct attend_args *a, THR const struct prompt_shm *s, DEV const u8 *v, u32 c, u32 d0, u32 n_seen,
                        const u32 q8, THR struct prompt_fetch *f)
{
    u32 row = q8 ? a->d_head : ((a->d_head + 7u) & ~7u) * 2, blocks = a->d_head / 32, from = c * (q8 ? 32 : PROMPT_STEP);
    u32 at_row = d0 * (q8 ? 1 : 2) + at.id % (q8 ? 8 : 16) * 16;
    DEV const u8 *first = v + (q8 ? c * GPU_KV_PANEL_BYTES(a->d_head, 1) : from * row), *mine = first + (s->v_from + d0 * (q8 ? 1 : 2));
    f->d = 0;
    UNROLL
    for (u32 i = 0; i < (q8 ? 1u : PROMPT_LOADS); i++) {
        w4 x = {0, 0, 0, 0};
        if (from + s->v_pos + 16 * i < n_seen && at_row < row)
            x = load16(mine + 16 * i * row);
        f->x[i] = x;
    }
    if (q8) {
        u32 j = at.id / 4, b = d0 / 32 + at.id % 4;
        if (j < 32 && from + j < n_seen && b < blocks)
            f->d = *(DEV const u16 *)(first + 2 * (j * blocks + b));
    }
}

/* f16: (position, 2, 16, 4) floats: the first four of each eight dimensions, then the other four (prompt_dim). q8_0: as they are. */
KFN void prompt_put_v(struct at at, THR const struct prompt_shm *s, THR const struct prompt_fetch *f, SHM u32 *stage, SHM float *scale, const u32 q8)
{
    UNROLL
    for (u32 i = 0; i < (q8 ? 1u : PROMPT_LOADS); i++) {
        u32 v[8];
        if (q8) {
            *(SHM w4 *)(stage + s->v_to) = f->x[i];
            continue;
        }
        prompt_widen_8(v, f->x[i]);
        w4 lo = {v[0], v[1], v[2], v[3]}, hi = {v[4], v[5], v[6], v[7]};
        *(SHM w4 *)(stage + 16 * i * PROMPT_SLICE + s->v_to) = lo;
        *(SHM w4 *)(stage + 16 * i * PROMPT_SLICE + s->v_to + 64) = hi;
    }
    if (q8 && at.id < 128)
        scale[at.id] = half_value(f->d);
}

/* A lane's first dimension of a slice: it has four. */
KFN u32 prompt_dim(struct at at, const u32 q8)
{
    return q8 ? 4 * at.lane : at.lane % 16 * 8 + at.lane / 16 * 4;
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

/* The same to p. */
KFN void prompt_write(SHM u32 *p, THR const u32 *v, const u32 n)
{
    if (n < 4) {
        p[0] = v[0];
        if (n == 2)
            p[1] = v[1];
        return;
    }
    UNROLL
    for (u32 i = 0; i < n; i += 4) {
        w4 t = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        *(SHM w4 *)(p + i) = t;
    }
}

/* A stage's dimensions. stage: at this lane's keys. acc: (n, 8); panels of the chunk that the row sees, an even number. */
KFN void prompt_score(THR float *acc, SHM const u32 *stage, SHM const u32 *q, const u32 n, const u32 panels)
{
    NO_UNROLL
    for (u32 left = PROMPT_DIMS / 4; left; left--, stage += 4 * GPU_CHUNK, q += 4 * n) {
        UNROLL
        for (u32 d = 0; d < 4; d++) {
            u32 x[8], k[8];
            prompt_read(x, q + d * n, n);
            prompt_read(k, stage + d * GPU_CHUNK, 4);
            if (panels > 4)
                prompt_read(k + 4, stage + d * GPU_CHUNK + GPU_CHUNK / 2, 4);
            UNROLL
            for (u32 p = 0; p < panels; p++) {
                UNROLL
                for (u32 h = 0; h < n; h++)
                    acc[h * 8 + p] = EX_FMA(EX_FLOAT(x[h]), EX_FLOAT(k[p]), acc[h * 8 + p]);
            }
        }
    }
}

/* The same for n_pos positions of the chunk. */
KFN void prompt_score_seen(THR float *acc, SHM const u32 *stage, SHM const u32 *q, u32 n_pos, const u32 n)
{
    if (n_pos > 192)
        prompt_score(acc, stage, q, n, 8);
    else if (n_pos > 128)
        prompt_score(acc, stage, q, n, 6);
    else if (n_pos > 64)
        prompt_score(acc, stage, q, n, 4);
    else if (n_pos)
        prompt_score(acc, stage, q, n, 2);
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

/* Weights of PROMPT_HELD positions out of registers into shared memory, as prompt_weights left them: the first there are, which the next take the place
 * of, so that what has been put down is in no register. PS_METAL: part c; all stay. */
KFN void prompt_put_w(struct at at, THR float *acc, u32 c, SHM float *w, const u32 n)
{
    const u32 panels = PROMPT_HELD / 32;
    SIMD_BARRIER(at); /* the weights before them have been read */
    UNROLL
    for (u32 p = 0; p < panels; p++) {
        u32 v[8];
        UNROLL
        for (u32 h = 0; h < n; h++) {
            v[h] = EX_BITS(acc[h * 8 + p]);
            UNROLL
            for (u32 k = 1; PS_METAL && k < 8 / panels; k++)
                v[h] = c == k ? EX_BITS(acc[h * 8 + k * panels + p]) : v[h];
            if (!PS_METAL)
                acc[h * 8 + p] = acc[h * 8 + panels + p];
        }
        prompt_write((SHM u32 *)w + (32 * p + at.lane) * n, v, n);
    }
}

/* PS_METAL: weights of 32 positions, panel c of the chunk, as prompt_weights_q8 left them. */
KFN void prompt_put_w_q8(struct at at, THR const float *acc, u32 c, SHM float *w, const u32 n)
{
    u32 g = at.lane / 4, t = at.lane % 4;
    SIMD_BARRIER(at);
    UNROLL
    for (u32 i = 0; i < 32; i++) {
        UNROLL
        for (u32 h = 0; h < 2; h++)
            if (i / 4 == c && 2 * t + h < n)
                w[(8 * (i % 4) + g) * n + 2 * t + h] = acc[2 * i + h];
    }
}

/* Scores become weights where they are. *m and *l: of the chunk; lane h has query h's. */
KFN void prompt_weights(struct at at, THR float *acc, float scale, u32 n_pos, THR float *m, THR float *l, const u32 n)
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
        prompt_put_w_q8(at, acc, p, w, n);
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

/* A stage's positions. stage, scale: at this lane's. o: (n, 4). w: at the first one's weights. */
KFN void prompt_add(THR float *o, SHM const u32 *stage, SHM const float *scale, SHM const u32 *w, const u32 n, const u32 q8)
{
    const u32 row = q8 ? 32 : PROMPT_SLICE, some = q8 ? 4 : 8;
    NO_UNROLL
    for (u32 left = (q8 ? 32 : PROMPT_STEP) / some; left; left--, stage += some * row, scale += 4 * some, w += some * n) {
        UNROLL
        for (u32 j = 0; j < some; j++) {
            u32 x[8], y[4];
            float d = 0.0f;
            prompt_read(x, w + j * n, n);
            if (q8) {
                u32 v = stage[row * j] ^ 0x80808080u;
                d = scale[4 * j];
                UNROLL
                for (u32 i = 0; i < 4; i++)
                    y[i] = EX_BITS(EX_FLOAT(0x4B000000u | (v >> 8 * i & 255u)) - 8388736.0f); /* 2^23 + 128 + integer */
            } else {
                prompt_read(y, stage + row * j, 4);
            }
            UNROLL
            for (u32 h = 0; h < n; h++) {
                float wh = q8 ? EX_FLOAT(x[h]) * d : EX_FLOAT(x[h]);
                UNROLL
                for (u32 i = 0; i < 4; i++)
                    o[h * 4 + i] = EX_FMA(wh, EX_FLOAT(y[i]), o[h * 4 + i]);
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

/* Four dimensions from d on of each query, as att has them. All loads first: they wait together. */
KFN void prompt_get_o(THR float *x, DEV const float *att, u32 heads, u32 d_head, u32 d, const u32 n)
{
    u32 four = d + 4 <= d_head && (d_head & 3) == 0;
    UNROLL
    for (u32 h = 0; h < n; h++) {
        w4 t = {0, 0, 0, 0};
        if (four && h < heads)
            t = load16(att + h * d_head + d);
        x[4 * h] = EX_FLOAT(t.x), x[4 * h + 1] = EX_FLOAT(t.y), x[4 * h + 2] = EX_FLOAT(t.z), x[4 * h + 3] = EX_FLOAT(t.w);
    }
    UNROLL
    for (u32 i = 0; !four && i < 4 * n; i++)
        if (i / 4 < heads && d + i % 4 < d_head)
            x[i] = att[i / 4 * d_head + d + i % 4];
}

KFN void prompt_put_o(struct at at, THR const struct prompt_join *j, u32 first, u32 last, THR float *o, DEV float *att, u32 heads, u32 d_head, u32 d,
                      const u32 n)
{
    u32 four = d + 4 <= d_head && (d_head & 3) == 0;
    if (!first) {
        float x[32];
        prompt_get_o(x, att, heads, d_head, d, n);
        UNROLL
        for (u32 h = 0; h < n; h++) {
            float a = EX_FLOAT(shuffle_from(at, EX_BITS(j->a), h)), b = EX_FLOAT(shuffle_from(at, EX_BITS(j->b), h));
            UNROLL
            for (u32 i = 4 * h; i < 4 * h + 4; i++)
                o[i] = EX_FMA(x[i], a, o[i] * b);
        }
    }
    UNROLL
    for (u32 h = 0; last && h < n; h++) {
        float l = EX_FLOAT(shuffle_from(at, EX_BITS(j->l), h));
        UNROLL
        for (u32 i = 4 * h; i < 4 * h + 4; i++)
            o[i] = ex_flush(div_rn(o[i], l));
    }
    UNROLL
    for (u32 h = 0; h < n; h++) {
        w4 t = {EX_BITS(o[4 * h]), EX_BITS(o[4 * h + 1]), EX_BITS(o[4 * h + 2]), EX_BITS(o[4 * h + 3])};
        if (four && h < heads)
            *(DEV w4 *)(att + h * d_head + d) = t;
    }
    UNROLL
    for (u32 i = 0; !four && i < 4 * n; i++)
        if (i / 4 < heads && d + i % 4 < d_head)
            att[i / 4 * d_head + d + i % 4] = o[i];
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

/* A chunk as a SIMD group sees it. */
struct prompt_chunk {
    DEV const u8 *k, *v;
    u32 n_seen;             /* positions that the tile's last row sees */
    u32 n_pos;              /* this row; 0: none, or there is no row */
    u32 first, last;        /* of the row */
};

KFN void prompt_scores(struct at at, CON const struct attend_args *a, struct bufs b, THR const struct prompt_tile *t, THR const struct prompt_chunk *c,
                       THR struct prompt_fetch *f, THR u32 *turn, THR float *acc, THR const struct prompt_shm *s, const u32 n, const u32 q8)
{
    u32 n_stages = q8 ? a->d_head / 32 : (a->d_head + PROMPT_DIMS - 1) / PROMPT_DIMS;
    DEV const u8 *from = c->k + s->k_from;
    DEV const float *q = (DEV const float *)b.p[1] + (u64)t->row * a->q_stride + t->head * a->d_head;
    UNROLL
    for (u32 i = 0; i < (q8 ? 64 : 8 * n); i++)
        acc[i] = 0.0f;
    for (u32 i = 0; i < n_stages; i++, *turn ^= 1) {
        SHM u32 *stage = s->stage + *turn * s->words;
        SHM float *scale = s->scale + *turn * GPU_CHUNK;
        prompt_put_k(at, s, f, stage, scale, q8);
        from += q8 ? 1088 : PROMPT_LOADS * 512;
        if (i + 1 < n_stages)
            prompt_fetch_k(at, a, s, from, i + 1, c->n_seen, q8, f);
        else
            prompt_fetch_v(at, a, s, c->v, 0, 0, c->n_seen, q8, f);
        if (PS_METAL && !q8)
            prompt_put_q_some(at, a, t, q, i, n, s);
        BARRIER(at);
        if (!q8)
            prompt_score_seen(acc, stage + 4 * at.lane, s->q + (PS_METAL ? 0 : i * PROMPT_DIMS * n), c->n_pos, n);
        else if (c->n_pos > 128)
            prompt_score_q8(at, acc, stage, scale, s->q + i * 8 * n, s->q_scale + i * n, n, 16);
        else if (c->n_pos)
            prompt_score_q8(at, acc, stage, scale, s->q + i * 8 * n, s->q_scale + i * n, n, 8);
    }
}

/* next: the chunk behind this one, n_seen 0 where there is none. wide: f16's weights are all in shared memory already. */
KFN void prompt_values(struct at at, CON const struct attend_args *a, THR const struct prompt_chunk *c, THR const struct prompt_chunk *next, u32 slice,
                       THR struct prompt_fetch *f, THR u32 *turn, THR float *acc, THR float *o, THR const struct prompt_shm *s, u32 wide, const u32 n,
                       const u32 q8)
{
    const u32 step = q8 ? 32 : PROMPT_STEP, held = q8 ? PROMPT_HELD_Q8 : PROMPT_HELD;
    u32 n_steps = (c->n_seen + step - 1) / step, n_slices = (a->d_head + PROMPT_SLICE - 1) / PROMPT_SLICE;
    UNROLL
    for (u32 i = 0; i < 4 * n; i++)
        o[i] = 0.0f;
    for (u32 i = 0; i < n_steps; i++, *turn ^= 1) {
        SHM u32 *stage = s->stage + *turn * s->words;
        SHM float *scale = s->scale + *turn * GPU_CHUNK;
        u32 from = wide ? step * i : step * i % held;
        prompt_put_v(at, s, f, stage, scale, q8);
        if (i + 1 < n_steps)
            prompt_fetch_v(at, a, s, c->v, i + 1, slice * PROMPT_SLICE, c->n_seen, q8, f);
        else if (slice + 1 < n_slices)
            prompt_fetch_v(at, a, s, c->v, 0, (slice + 1) * PROMPT_SLICE, c->n_seen, q8, f);
        else if (next->n_seen)
            prompt_fetch_k(at, a, s, next->k + s->k_from, 0, next->n_seen, q8, f);
        if (!q8 && !wide && from == 0)
            prompt_put_w(at, acc, step * i / held, s->w, n);
        if (PS_METAL && q8)
            prompt_put_w_q8(at, acc, i, s->w, n);
        BARRIER(at);
        if (step * i < c->n_pos)
            prompt_add(o, stage + (q8 ? 1 : 4) * at.lane, scale + at.lane / 8, (SHM const u32 *)s->w + from * n, n, q8);
    }
}

KFN void prompt_see(CON const struct attend_args *a, THR const struct prompt_tile *t, u32 chunk, const u32 q8, THR struct prompt_chunk *c)
{
    u32 from = chunk * GPU_CHUNK, none = t->heads == 0 || t->pos < from;
    c->k = t->k + (u64)chunk * (GPU_CHUNK / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(a->d_head, q8));
    c->v = c->k + (u64)a->n_kv * a->head_bytes;
    c->n_seen = t->last < from ? 0 : least_u32(t->last + 1 - from, GPU_CHUNK);
    c->n_pos = none ? 0 : least_u32(t->pos + 1 - from, GPU_CHUNK);
    c->first = chunk == 0;
    c->last = t->pos < from + GPU_CHUNK;
}

KFN void prompt_chunk(struct at at, CON const struct attend_args *a, struct bufs b, THR const struct prompt_tile *t, u32 chunk, THR struct prompt_fetch *f,
                      THR u32 *turn, THR struct prompt_join *join, THR const struct prompt_shm *s, const u32 n, const u32 q8)
{
    struct prompt_chunk c, next;
    float acc[64], m = 0.0f, l = 0.0f;
    u32 wide = GPU_PROMPT_WIDE(a->d_head); /* weights are read more than once: all are put down before */
    prompt_see(a, t, chunk, q8, &c);
    prompt_see(a, t, chunk + 1, q8, &next);
    prompt_scores(at, a, b, t, &c, f, turn, acc, s, n, q8);
    if (c.n_pos) {
        if (q8)
            prompt_weights_q8(at, acc, a->scale, c.n_pos, &m, &l, s->w, n);
        else
            prompt_weights(at, acc, a->scale, c.n_pos, &m, &l, n);
        prompt_count(join, c.first, m, l);
    }
    for (u32 i = 0; !q8 && wide && i < GPU_CHUNK / PROMPT_HELD; i++)
        prompt_put_w(at, acc, 0, s->w + i * PROMPT_HELD * n, n);
    for (u32 slice = 0; slice * PROMPT_SLICE < a->d_head; slice++) {
        float o[32];
        prompt_values(at, a, &c, &next, slice, f, turn, acc, o, s, wide, n, q8);
        if (c.n_pos)
            prompt_put_o(at, join, c.first, c.last, o, (DEV float *)b.p[4] + (u64)t->row * a->att_stride + t->head * a->d_head, t->heads, a->d_head,
                         slice * PROMPT_SLICE + prompt_dim(at, q8), n);
    }
}

KFN void prompt_tiles(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm, u32 share, const u32 n, const u32 q8)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 n_sub = (share + GPU_PROMPT_HEADS - 1) / GPU_PROMPT_HEADS, pieces = a->n_kv * n_sub, units = in[IN_TILES + a->which] * pieces, turn = 0;
    struct prompt_shm s;
    prompt_lay(at, shm, n, a->d_head, q8, &s);
    for (u32 u0 = 0, back = 0; u0 < units; u0 += at.n_groups, back ^= 1) {
        u32 u = u0 + (back ? at.n_groups - 1 - at.group : at.group); /* to and fro: who had a long one gets a short one */
        if (u >= units)
            continue;
        struct prompt_tile t;
        struct prompt_fetch f;
        struct prompt_join join = {0.0f, 0.0f, 0.0f, 0.0f};
        u32 piece, sub, tile = split_u32(u, pieces, &piece), kv = split_u32(piece, n_sub, &sub);
        prompt_find(at, a, b, tile, kv, sub, share, &t);
        DEV const float *q = (DEV const float *)b.p[1] + (u64)t.row * a->q_stride + t.head * a->d_head;
        prompt_fetch_k(at, a, &s, t.k + s.k_from, 0, least_u32(t.last + 1, GPU_CHUNK), q8, &f);
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
