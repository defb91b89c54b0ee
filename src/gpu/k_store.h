/* Queries and keys of a step: norm, rotation; keys and values into the arena in their stored form (rule 7, layout.h).
 *
 * A head is a SIMD group's: lane l loads elements l, l + 32, ... (rule 6's sums), lays them down in its row of shared memory, rotates
 * pairs there, and puts the row where it belongs: queries and keys back, two dimensions a lane to f16 keys and values, four to q8_0. Heads
 * follow each other over the groups first. A norm over the whole row makes all heads of a row one SIMD group's work. Heads of 64 or 128 dimensions that
 * are rotated whole, in halves (neox), are four at a time in a SIMD group's registers: a lane has both elements of its pairs; so queries, and f16 keys and values.
 *
 *   shared memory   8 SIMD groups x 256 floats
 *
 * d_head: even, at most 256; with q8_0 a multiple of 32. No barriers but those inside a SIMD group. */

enum { STORE_DIMS = 256, STORE_EACH = STORE_DIMS / 32 };

/* ---- the arena: also for k_attend.h and k_prompt.h ---- */

/* Keys of a slot's head; values lie n_kv heads further on. */
KFN DEV u8 *kv_head(DEV void *arena, u32 slot, u32 slot_lo, u32 slot_hi, u32 head_bytes, u32 head)
{
    return (DEV u8 *)arena + ((u64)slot_hi << 32 | slot_lo) * slot + (u64)head_bytes * head;
}

/* ---- norm and rotation, in shared memory ---- */

KFN float store_factor(struct at at, float sum, u32 n, float eps)
{
    return div_rn(1.0f, sqrt_rn(div_rn(simd_tree(at, sum), (float)(i32)n) + eps));
}

/* RMSNorm's factor of a row of n. */
KFN float store_row_factor(struct at at, DEV const float *x, u32 n, float eps)
{
    float sum = 0.0f;
    for (u32 i0 = 0; i0 < n; i0 += STORE_DIMS) {
        float v[STORE_EACH];
        UNROLL
        for (u32 k = 0; k < STORE_EACH; k++)
            v[k] = i0 + at.lane + 32 * k < n ? x[i0 + at.lane + 32 * k] : 0.0f;
        UNROLL
        for (u32 k = 0; k < STORE_EACH; k++) {
            float f = ex_flush(v[k]);
            sum = EX_FMA(f, f, sum);
        }
    }
    return store_factor(at, sum, n, eps);
}

/* What is done to a head on its way to shared memory. */
enum { STORE_PLAIN, STORE_NORM, STORE_SCALE /* by a factor known already */ };

/* each: elements of a head that a lane has at most, here and below. What a lane needs besides the head, so that all of it is read at once and not one wait after another. */
struct store_with {
    float norm[STORE_EACH]; /* weights of its elements */
    w2 turn[STORE_EACH / 2]; /* (cos, sin) of its pairs */
};

/* norm, cs: the head's norm weights and the position's pairs, or NULL. */
KFN void store_read(struct at at, DEV const float *norm, DEV const float *cs, u32 d_head, u32 d_rope, THR struct store_with *with, const u32 each)
{
    UNROLL
    for (u32 k = 0; k < each; k++) {
        u32 i = at.lane + 32 * k;
        with->norm[k] = norm && i < d_head ? norm[i] : 1.0f;
    }
    UNROLL
    for (u32 k = 0; k < each / 2; k++) {
        u32 i = at.lane + 32 * k;
        w2 none = {0, 0};
        with->turn[k] = none;
        if (cs && i < d_rope / 2)
            with->turn[k] = load8(cs + 2 * i);
    }
}

KFN void store_fetch(struct at at, DEV const float *x, THR const struct store_with *with, u32 how, float r, u32 d_head, float eps, SHM float *s,
                     const u32 each)
{
    float v[STORE_EACH], sum = 0.0f;
    UNROLL
    for (u32 k = 0; k < each; k++)
        v[k] = at.lane + 32 * k < d_head ? x[at.lane + 32 * k] : 0.0f;
    if (how == STORE_NORM) {
        UNROLL
        for (u32 k = 0; k < each; k++) {
            float f = ex_flush(v[k]);
            sum = EX_FMA(f, f, sum);
        }
        r = store_factor(at, sum, d_head, eps);
    }
    UNROLL
    for (u32 k = 0; k < each; k++) {
        u32 i = at.lane + 32 * k;
        if (i < d_head)
            s[i] = how == STORE_PLAIN ? v[k] : ex_flush(v[k] * r * with->norm[k]);
    }
    SIMD_BARRIER(at);
}

KFN void store_rotate(struct at at, THR const struct store_with *with, u32 d_head, u32 d_rope, u32 neox, SHM float *s, const u32 each)
{
    u32 pairs = d_rope / 2;
    UNROLL
    for (u32 k = 0; k < each / 2; k++) {
        u32 i = at.lane + 32 * k;
        if (i < pairs) {
            SHM float *p = s + (neox ? i : 2 * i), *q = neox ? p + pairs : p + 1;
            float c = EX_FLOAT(with->turn[k].x), sn = EX_FLOAT(with->turn[k].y), u = *p, v = *q;
            *p = ex_flush(EX_FMA(u, c, -(v * sn)));
            *q = ex_flush(EX_FMA(v, c, u * sn));
        }
    }
    for (u32 i = d_rope + at.lane; i < d_head; i += 32)
        s[i] = ex_flush(s[i]);
    SIMD_BARRIER(at);
}

/* ---- from shared memory to its place ---- */

KFN void store_query(struct at at, SHM const float *s, u32 d_head, DEV float *x)
{
    UNROLL
    for (u32 k = 0; k < STORE_EACH; k++)
        if (at.lane + 32 * k < d_head)
            x[at.lane + 32 * k] = s[at.lane + 32 * k];
}

/* Keys or values of one position, at a panel of them. */
KFN void store_f16(struct at at, SHM const float *s, u32 d_head, u32 pos, u32 is_key, DEV u8 *panel)
{
    u32 d_pad = (d_head + 7u) & ~7u, j = pos % GPU_KV_PANEL;
    NO_UNROLL
    for (u32 i0 = 0; i0 < d_pad; i0 += 64u) { /* code that runs once costs more than what it does */
        u32 i = i0 + 2u * at.lane, h = 0;
        if (i < d_head)
            h = half_bits(ex_flush(s[i])) | half_bits(ex_flush(s[i + 1])) << 16;
        if (i < d_pad)
            *(DEV u32 *)(panel + (is_key ? i / 8 * 512 + j * 16 + i % 8 * 2 : (j * d_pad + i) * 2)) = h;
    }
}

KFN void store_q8(struct at at, SHM const float *s, u32 d_head, u32 pos, u32 is_key, DEV u8 *panel)
{
    u32 n_blocks = d_head / 32, j = pos % GPU_KV_PANEL;
    for (u32 i0 = 0; i0 < d_head; i0 += 128) {
        u32 i = i0 + 4 * at.lane, b = i / 32;
        float v[4], d;
        i32 sum;
        UNROLL
        for (u32 k = 0; k < 4; k++)
            v[k] = i < d_head ? s[i + k] : 0.0f;
        u32 word = act_quantise_8(at, v, &d, &sum);
        if (i < d_head) {
            u32 at_q = is_key ? b * 1088 + 64 + i % 32 / 16 * 512 + j * 16 + i % 16 : 64 * n_blocks + j * d_head + i;
            u32 at_d = is_key ? b * 1088 + 2 * j : 2 * (j * n_blocks + b);
            *(DEV u32 *)(panel + at_q) = word;
            if (i % 32 == 0)
                *(DEV u16 *)(panel + at_d) = (u16)ex_to_half(d);
        }
    }
}

/* ---- the kernel ---- */

/* Head h of a row, from x: q (what 0), k (1) or v (2). r: the factor of a norm over the whole row. */
KFN void store_head(struct at at, CON const struct store_args *a, struct bufs b, w4 row, u32 what, u32 h, DEV float *x, float r, SHM float *s)
{
    u32 d_head = a->d_head, slot = row.y, pos = row.z, n_norm = a->whole_norm ? h * d_head : 0;
    u32 how = !a->has_norm || what == 2 ? STORE_PLAIN : a->whole_norm ? STORE_SCALE : STORE_NORM;
    DEV const float *norm = what ? (DEV const float *)b.p[5] : (DEV const float *)b.p[4];
    DEV const float *none = 0, *cs = (DEV const float *)b.p[6] + (u64)pos * a->d_rope;
    struct store_with with;
    store_read(at, how == STORE_PLAIN ? none : norm + n_norm, what < 2 ? cs : none, d_head, a->d_rope, &with, STORE_EACH);
    SIMD_BARRIER(at); /* the head before has been put away */
    store_fetch(at, x, &with, how, r, d_head, a->eps, s, STORE_EACH);
    if (what < 2) {
        store_rotate(at, &with, d_head, a->d_rope, a->neox, s, STORE_EACH);
        store_query(at, s, d_head, x);
    }
    if (what == 0)
        return;
    DEV u8 *panel = kv_head(b.p[7], slot, a->slot_lo, a->slot_hi, a->head_bytes, what == 1 ? h : a->n_kv + h) +
                    (u64)(pos / GPU_KV_PANEL) * GPU_KV_PANEL_BYTES(d_head, a->kv_q8);
    if (a->kv_q8)
        store_q8(at, s, d_head, pos, what == 1, panel);
    else
        store_f16(at, s, d_head, pos, what == 1, panel);
}

/* Up to four heads of a row from h0 on, of n at x, in registers: of 32 * each dimensions, all of them rotated, neox. Elements lane, lane + 32 ... */
enum { STORE_FOUR = 4 };

KFN void store_four_scale(struct at at, CON const struct store_args *a, THR const struct store_with *with, THR float (*v)[STORE_EACH / 2], const u32 each)
{
    float sum[STORE_FOUR], mine = 0.0f;
    UNROLL
    for (u32 h = 0; h < STORE_FOUR; h++) {
        sum[h] = 0.0f;
        UNROLL
        for (u32 k = 0; k < each; k++) {
            float f = ex_flush(v[h][k]);
            sum[h] = EX_FMA(f, f, sum[h]);
        }
    }
    UNROLL
    for (u32 h = 0; h < STORE_FOUR; h++) {
        float s = simd_tree(at, sum[h]);
        mine = at.lane % STORE_FOUR == h ? s : mine;
    }
    float r = div_rn(1.0f, sqrt_rn(div_rn(mine, (float)(i32)a->d_head) + a->eps));
    UNROLL
    for (u32 h = 0; h < STORE_FOUR; h++) {
        float factor = EX_FLOAT(shuffle_from(at, EX_BITS(r), h));
        UNROLL
        for (u32 k = 0; k < each; k++)
            v[h][k] = ex_flush(v[h][k] * factor * with->norm[k]);
    }
}

KFN void store_four_turn(THR const struct store_with *with, THR float *v, const u32 each)
{
    UNROLL
    for (u32 k = 0; k < each / 2; k++) {
        float c = EX_FLOAT(with->turn[k].x), sn = EX_FLOAT(with->turn[k].y), u = v[k], w = v[k + each / 2];
        v[k] = ex_flush(EX_FMA(u, c, -(w * sn)));
        v[k + each / 2] = ex_flush(EX_FMA(w, c, u * sn));
    }
}

KFN void store_four(struct at at, CON const struct store_args *a, struct bufs b, w4 row, u32 what, u32 h0, u32 n, DEV float *x, const u32 each)
{
    u32 d_head = 32 * each, pos = row.z, j = pos % GPU_KV_PANEL;
    bool norm = a->has_norm && what < 2;
    DEV const float *weights = what ? (DEV const float *)b.p[5] : (DEV const float *)b.p[4];
    DEV const float *none = 0, *cs = (DEV const float *)b.p[6] + (u64)pos * d_head;
    struct store_with with;
    float v[STORE_FOUR][STORE_EACH / 2];
    store_read(at, norm ? weights : none, what < 2 ? cs : none, d_head, d_head, &with, each);
    UNROLL
    for (u32 h = 0; h < STORE_FOUR; h++) {
        UNROLL
        for (u32 k = 0; k < each; k++)
            v[h][k] = h0 + h < n ? x[(h0 + h) * d_head + at.lane + 32 * k] : 0.0f;
    }
    if (norm)
        store_four_scale(at, a, &with, v, each);
    UNROLL
    for (u32 h = 0; h < STORE_FOUR; h++) {
        if (h0 + h >= n)
            continue;
        if (what < 2) {
            store_four_turn(&with, v[h], each);
            UNROLL
            for (u32 k = 0; k < each; k++)
                x[(h0 + h) * d_head + at.lane + 32 * k] = v[h][k];
        }
        if (what == 0)
            continue;
        DEV u8 *panel = kv_head(b.p[7], row.y, a->slot_lo, a->slot_hi, a->head_bytes, (what == 1 ? 0 : a->n_kv) + h0 + h) +
                        (u64)(pos / GPU_KV_PANEL) * GPU_KV_PANEL_BYTES(d_head, 0);
        UNROLL
        for (u32 k = 0; k < each; k++) {
            u32 i = at.lane + 32 * k;
            *(DEV u16 *)(panel + (what == 1 ? i / 8 * 512 + j * 16 + i % 8 * 2 : (j * d_head + i) * 2)) = (u16)half_bits(ex_flush(v[h][k]));
        }
    }
}

KFN void k_store(struct at at, CON const struct store_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 n_rows = in[IN_ROWS], whole = a->has_norm && a->whole_norm;
    u32 four = !whole && a->neox && a->d_rope == a->d_head && (a->d_head == 64 || a->d_head == 128), four_kv = four && !a->kv_q8;
    u32 n_q = whole ? 1 : four ? (a->n_heads + 3) / STORE_FOUR : a->n_heads; /* pieces of work */
    u32 n_v = four_kv ? (a->n_kv + 3) / STORE_FOUR : a->n_kv, n_k = whole ? 1 : n_v;
    SHM float *s = (SHM float *)shm + at.simd * STORE_DIMS;
    struct walk w;
    for (walk_start(at, n_q + n_k + n_v, &w); w.row < n_rows; walk_on(&w)) {
        w4 row = load16(in + a->rows_at + 4 * w.row);
        u32 what = w.piece < n_q ? 0 : w.piece < n_q + n_k ? 1 : 2;
        u32 h = what == 0 ? w.piece : what == 1 ? w.piece - n_q : w.piece - n_q - n_k, n = 1;
        DEV float *x = what == 0 ? (DEV float *)b.p[1] : what == 1 ? (DEV float *)b.p[2] : (DEV float *)b.p[3];
        x += (u64)w.row * (what ? a->kv_stride : a->q_stride);
        if (what ? four_kv : four) {
            if (a->d_head == 128)
                store_four(at, a, b, row, what, STORE_FOUR * h, what ? a->n_kv : a->n_heads, x, 4);
            else
                store_four(at, a, b, row, what, STORE_FOUR * h, what ? a->n_kv : a->n_heads, x, 2);
            continue;
        }
        float r = 0.0f;
        if (whole && what < 2) {
            n = what ? a->n_kv : a->n_heads;
            r = store_row_factor(at, x, n * a->d_head, a->eps);
        }
        for (u32 i = 0; i < n; i++)
            store_head(at, a, b, row, what, h + i, x + (h + i) * a->d_head, r, s);
    }
}
