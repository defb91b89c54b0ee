/* What works on rows alone: embedding, norm and rule 1, gating, experts joined, the rows that want logits.
 *
 * Norm: a row a SIMD group, since its 32 lanes are the 32 partial sums of rule 6. All else: pieces of 128 elements of a row, one a SIMD
 * group, lane l has elements 4l..4l+3 of its piece: one 16-byte load a row of floats, and act_put_8's order (k_act.h).
 * Pieces follow each other over the groups first (piece number = simd * n_groups + group), so that a few of them use many processors.
 * Rows of floats begin 16-byte aligned (strides are multiples of 4); what lies past a row's n is neither read nor written.
 * No shared memory, no barriers, but for the norm. */

/* ---- pieces of rows ---- */

struct walk { /* over (row, piece of that row), without a division in the loop */
    u32 row, piece;
    u32 pieces, rows_on, pieces_on; /* of a row; what one step adds */
};

KFN void walk_start(struct at at, u32 pieces, THR struct walk *w)
{
    u32 piece, on;
    w->row = split_u32(at.simd * at.n_groups + at.group, pieces, &piece);
    w->rows_on = split_u32(GPU_SIMDS * at.n_groups, pieces, &on);
    w->piece = piece;
    w->pieces_on = on;
    w->pieces = pieces;
}

KFN void walk_on(THR struct walk *w)
{
    w->row += w->rows_on;
    w->piece += w->pieces_on;
    if (w->piece >= w->pieces) {
        w->piece -= w->pieces;
        w->row++;
    }
}

/* A lane's first element in a piece. */
KFN u32 walk_at(struct at at, THR const struct walk *w)
{
    return w->piece * 128u + 4u * at.lane;
}

/* Elements i..i+3 of a row of n; +0 from n on. */
KFN void row_get(THR float *v, DEV const float *row, u32 i, u32 n)
{
    if (i + 4u <= n) {
        w4 w = load16(row + i);
        v[0] = EX_FLOAT(w.x);
        v[1] = EX_FLOAT(w.y);
        v[2] = EX_FLOAT(w.z);
        v[3] = EX_FLOAT(w.w);
        return;
    }
    UNROLL
    for (u32 k = 0; k < 4; k++)
        v[k] = i + k < n ? row[i + k] : 0.0f;
}

KFN void row_put(DEV float *row, u32 i, u32 n, THR const float *v)
{
    if (i + 4u <= n) {
        w4 w = {EX_BITS(v[0]), EX_BITS(v[1]), EX_BITS(v[2]), EX_BITS(v[3])};
        *(DEV w4 *)(row + i) = w;
        return;
    }
    UNROLL
    for (u32 k = 0; k < 4; k++)
        if (i + k < n)
            row[i + k] = v[k];
}

/* 1 / (1 + e^-g), as swiglu and the shared expert's gate take it: never from a large exponential. */
KFN float sigmoid(float g)
{
    float e = ex_exp(EX_FLOAT(EX_BITS(g) | 0x80000000u));
    return div_rn(g >= 0.0f ? 1.0f : e, 1.0f + e);
}

/* ---- embedding: a row out of a packed matrix (layout.h) ---- */

/* Of elements 4w..4w+3 of block b in a tile, the integers as stored, one a byte. tile: at its planes, t and upper half as below. */
KFN u32 embed_word(u32 type, DEV const u8 *tile, u32 lane, u32 upper, u32 b, u32 w)
{
    if (type == GT_Q8_0)
        return *(DEV const u32 *)(tile + b * 512u + lane * 16u + (w / 4u * 2u + upper) * 4u);
    u32 q = *(DEV const u32 *)(tile + b / 2u * 512u + lane * 16u + (b % 2u * 2u + upper) * 4u) >> w / 4u * 4u & 0x0F0F0F0Fu;
    if (type == GT_Q5_0 || type == GT_Q5_1 || type == GT_Q5_K) {
        u32 up = (u32)*(DEV const u16 *)(tile + 2048u + lane * 16u + b * 2u) >> (upper * 8u + w / 4u * 4u);
        q |= (up & 1u) << 4 | (up & 2u) << 11 | (up & 4u) << 18 | (up & 8u) << 25;
    } else if (type == GT_Q6_K) {
        u32 up = *(DEV const u32 *)(tile + 2048u + b / 4u * 512u + lane * 16u + b % 4u * 4u) >> (w / 4u * 16u + upper * 8u);
        q |= (up & 3u) << 4 | (up & 12u) << 10 | (up & 48u) << 16 | (up & 192u) << 22;
    }
    return q;
}

/* How integers become values: (q + less) * mul * d + m (rule 4: integers first). */
struct embed_scale {
    i32 less, mul;
    float d, m;
};

KFN void embed_scale(u32 type, DEV const u8 *tile, u32 row, u32 b, u32 w, THR struct embed_scale *s)
{
    DEV const u8 *at = tile + (type == GT_Q8_0 ? 4096u : 2048u);
    if (type == GT_Q5_0 || type == GT_Q5_1 || type == GT_Q5_K)
        at += 512;
    s->less = type == GT_Q4_0 ? -8 : type == GT_Q5_0 ? -16 : type == GT_Q6_K ? -32 : 0;
    s->mul = 1;
    s->m = 0.0f;
    if (type == GT_Q4_K || type == GT_Q5_K) {
        DEV const u16 *dd = (DEV const u16 *)(at + 256u + row * 4u);
        s->mul = at[row * 16u + b];
        s->d = half_value(dd[0]);
        s->m = -((float)(i32)at[row * 16u + 8u + b] * half_value(dd[1]));
    } else if (type == GT_Q6_K) {
        s->mul = (i8)at[1024u + row * 16u + b * 2u + w / 4u];
        s->d = half_value(*(DEV const u16 *)(at + 1280u + row * 2u));
    } else {
        s->d = half_value(((DEV const u16 *)at)[row * 8u + b]);
        if (type == GT_Q4_1 || type == GT_Q5_1)
            s->m = half_value(((DEV const u16 *)(at + 256u))[row * 8u + b]);
    }
}

/* Elements i..i+3 (i a multiple of 4) of a token's row. */
KFN void embed_get(THR float *v, u32 type, DEV const u8 *table, u32 n_in, u32 token, u32 i)
{
    u32 tile_bytes = GPU_TILE_BYTES(type), row = token % 16u, e = i % 256u;
    DEV const u8 *tile = table + ((u64)(token / 16u) * (GPU_PAD(n_in) / 256u) + i / 256u) * tile_bytes;
    if (type == GT_F32 || type == GT_F16 || type == GT_BF16) {
        UNROLL
        for (u32 k = 0; k < 4; k++) {
            u32 at = (e + k) * 16u + row;
            float x = type == GT_F32   ? ((DEV const float *)tile)[at]
                      : type == GT_F16 ? half_value(((DEV const u16 *)tile)[at])
                                       : ex_bf16(((DEV const u16 *)tile)[at]);
            v[k] = ex_flush(x);
        }
        return;
    }
    u32 b = e / 32u, w = e / 4u % 8u;
    u32 q = embed_word(type, tile, row % 8u * 4u + w % 4u, row / 8u, b, w);
    struct embed_scale s;
    embed_scale(type, tile, row, b, w, &s);
    bool has_min = type == GT_Q4_1 || type == GT_Q5_1 || type == GT_Q4_K || type == GT_Q5_K;
    UNROLL
    for (u32 k = 0; k < 4; k++) {
        u32 byte = q >> 8u * k & 255u;
        i32 n = type == GT_Q8_0 ? (i8)byte : (i32)byte;
        float x = (float)((n + s.less) * s.mul) * s.d;
        v[k] = ex_flush(has_min ? x + s.m : x);
    }
}

KFN void k_embed(struct at at, CON const struct embed_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    DEV float *x = (DEV float *)b.p[2];
    u32 rows = in[IN_ROWS + a->which];
    struct walk w;
    (void)shm;
    for (walk_start(at, (a->n_in + 127u) / 128u, &w); w.row < rows; walk_on(&w)) {
        u32 i = walk_at(at, &w);
        float v[4];
        if (i >= a->n_in)
            continue;
        embed_get(v, a->type, (DEV const u8 *)b.p[1], a->n_in, in[a->rows_at + 4u * w.row], i);
        row_put(x + (u64)w.row * a->x_stride, i, a->n_in, v);
    }
}

/* ---- norm and rule 1 ---- */

/* m times four elements of a row, from i on and 1024 apart, normalised or as they are, to where they are wanted. All 32 lanes call. */
KFN void norm_put(struct at at, const u32 m, CON const struct norm_args *a, struct bufs b, u32 row, u32 i, THR float *v, bool act)
{
    u32 n = a->n, word[2];
    float d[2];
    i32 sum[2];
    UNROLL
    for (u32 j = 0; j < m; j++)
        if (a->write_h && i + 1024u * j < n)
            row_put((DEV float *)b.p[3] + (u64)row * a->h_stride, i + 1024u * j, n, v + 4u * j);
    if (!act)
        return;
    UNROLL
    for (u32 j = 0; j < m; j++) {
        UNROLL
        for (u32 k = 0; k < 4; k++)
            v[4u * j + k] = i + 1024u * j + k < n ? v[4u * j + k] : 0.0f; /* an infinite scale would make NaN of the filling */
        word[j] = act_quantise_8(at, v + 4u * j, &d[j], &sum[j]);
    }
    UNROLL
    for (u32 j = 0; j < m; j++)
        act_place_8((DEV u8 *)b.p[4] + (u64)row * GPU_ACT_BYTES(n), GPU_PAD(n), i + 1024u * j, word[j], d[j], sum[j]);
}

/* A group's rows in shared memory, zeros behind each and its scale: row, row + n_groups ... and so many more as there are and a->more allows. */
KFN SHM float *norm_place(CON const struct norm_args *a, SHM float *here, u32 k)
{
    return here + k * (GPU_SHM_NORM(a->n) / 4u);
}

/* Sum of squares of a row in shared memory, by a SIMD group: 16 elements of each of its sums are on their way while 16 are added. */
KFN float norm_sum(struct at at, SHM const float *here, u32 whole)
{
    float s = 0.0f, v[16], next[16];
    UNROLL
    for (u32 k = 0; k < 16u; k++)
        v[k] = here[at.lane + 32u * k];
    NO_UNROLL
    for (u32 i = at.lane; i < whole; i += 512u) {
        u32 i1 = i + 512u < whole ? i + 512u : i;
        UNROLL
        for (u32 k = 0; k < 16u; k++)
            next[k] = here[i1 + 32u * k];
        UNROLL
        for (u32 k = 0; k < 16u; k++) {
            float f = ex_flush(v[k]);
            s = EX_FMA(f, f, s);
            v[k] = next[k];
        }
    }
    return simd_tree(at, s);
}

/* The scale of a row there, a SIMD group's work. */
KFN void norm_scale(struct at at, CON const struct norm_args *a, SHM float *here)
{
    u32 whole = GPU_NORM_WHOLE(a->n);
    float s = norm_sum(at, here, whole);
    if (at.lane == 0)
        here[whole] = div_rn(1.0f, sqrt_rn(div_rn(s, (float)(i32)a->n) + a->eps));
}

/* A thread's first weights. */
KFN void norm_weights(struct at at, DEV const float *weights, u32 n, THR float *w)
{
    row_get(w, weights, 4u * at.id, n);
    row_get(w + 4, weights, 4u * at.id + 1024u, n);
}

/* Those rows normalised and put. `weights` apart from b, so that combine_norm can have them elsewhere. The caller's threads wrote four elements each of
 * each row, from 4 * id on, 1024 apart. */
KFN void norm_rows(struct at at, CON const struct norm_args *a, struct bufs b, DEV const float *weights, u32 row, u32 rows, SHM float *here)
{
    u32 n = a->n, whole = GPU_NORM_WHOLE(n);
    bool act = a->write_act && n % 32u == 0; /* else there are no whole blocks, and no product that wants them */
    u32 end = act ? GPU_PAD(n) : n;
    BARRIER(at);
    if (at.simd <= a->more && row + at.simd * at.n_groups < rows)
        norm_scale(at, a, norm_place(a, here, at.simd));
    BARRIER(at);
    for (u32 i0 = at.simd * 128u; i0 < end; i0 += GPU_SIMDS * 128u) {
        u32 i = i0 + 4u * at.lane;
        float w[4];
        row_get(w, weights, i, n);
        for (u32 k = 0, to = row; k <= a->more && to < rows; k++, to += at.n_groups) {
            SHM const float *x = norm_place(a, here, k);
            float v[4], r = x[whole];
            UNROLL
            for (u32 e = 0; e < 4; e++)
                v[e] = ex_flush((i + e < n ? x[i + e] : 0.0f) * r * w[e]);
            norm_put(at, 1u, a, b, to, i, v, act);
        }
    } /* a thread has read what it wrote itself, so it may put its next rows there */
}

/* One row: its two halves at a time, while it is short. w: the thread's first weights. The caller's threads wrote what they read
 * here, four elements each from 4 * id on, 1024 apart. */
KFN void norm_row(struct at at, CON const struct norm_args *a, struct bufs b, DEV const float *weights, THR const float *w, u32 row, SHM float *here)
{
    u32 n = a->n, whole = GPU_NORM_WHOLE(n);
    bool act = a->write_act && n % 32u == 0; /* else there are no whole blocks, and no product that wants them */
    u32 end = act ? GPU_PAD(n) : n;
    float f[8];
    BARRIER(at);
    if (at.simd == 0)
        norm_scale(at, a, here);
    UNROLL
    for (u32 k = 0; k < 8; k++)
        f[k] = w[k];
    BARRIER(at);
    float r = here[whole];
    NO_UNROLL
    for (u32 i0 = at.simd * 128u; i0 < end; i0 += 2048u) {
        u32 i = i0 + 4u * at.lane;
        float v[8];
        UNROLL
        for (u32 j = 0; j < 2u; j++) {
            w4 x = {0, 0, 0, 0};
            if (i + 1024u * j < whole)
                x = load16(here + i + 1024u * j);
            v[4u * j] = EX_FLOAT(x.x);
            v[4u * j + 1u] = EX_FLOAT(x.y);
            v[4u * j + 2u] = EX_FLOAT(x.z);
            v[4u * j + 3u] = EX_FLOAT(x.w);
        }
        UNROLL
        for (u32 k = 0; k < 8; k++)
            v[k] = ex_flush(v[k] * r * f[k]);
        norm_put(at, 2u, a, b, row, i, v, act);
        if (i0 + 2048u < end) {
            row_get(f, weights, i + 2048u, n);
            row_get(f + 4, weights, i + 3072u, n);
        }
    } /* a thread has read what it wrote itself, so it may put its next row there */
}

/* Four elements of a row into shared memory, or of the zeros behind it. */
KFN void norm_here(SHM float *here, u32 i, THR const float *v)
{
    w4 x = {EX_BITS(v[0]), EX_BITS(v[1]), EX_BITS(v[2]), EX_BITS(v[3])};
    *(SHM w4 *)(here + i) = x;
}

/* 1 / sqrt(mean of squares + eps) of a row, in every lane (rule 6). */
KFN float norm_of_row(struct at at, DEV const float *x, u32 n, float eps)
{
    float s = 0.0f;
    u32 i = at.lane;
    for (; i + 992u < n; i += 1024u) {
        float v[32];
        UNROLL
        for (u32 j = 0; j < 32u; j++)
            v[j] = x[i + 32u * j];
        UNROLL
        for (u32 j = 0; j < 32u; j++) {
            float f = ex_flush(v[j]);
            s = EX_FMA(f, f, s);
        }
    }
    for (; i < n; i += 32u) {
        float f = ex_flush(x[i]);
        s = EX_FMA(f, f, s);
    }
    s = simd_tree(at, s);
    return div_rn(1.0f, sqrt_rn(div_rn(s, (float)(i32)n) + eps));
}

/* With a norm, rows that shared memory does not hold (PS_METAL): each SIMD group sums the row up for itself, where it lies. No barriers. */
KFN void norm_in_place(struct at at, CON const struct norm_args *a, struct bufs b, u32 rows, bool act)
{
    u32 end = act ? GPU_PAD(a->n) : a->n;
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        DEV const float *x = (DEV const float *)b.p[1] + (u64)row * a->x_stride;
        float r = norm_of_row(at, x, a->n, a->eps);
        for (u32 i0 = at.simd * 128u; i0 < end; i0 += GPU_SIMDS * 128u) {
            u32 i = i0 + 4u * at.lane;
            float v[4], w[4];
            row_get(v, x, i, a->n);
            row_get(w, (DEV const float *)b.p[2], i, a->n);
            UNROLL
            for (u32 k = 0; k < 4; k++)
                v[k] = ex_flush(v[k] * r * w[k]);
            norm_put(at, 1u, a, b, row, i, v, act);
        }
    }
}

/* Norm weights, which no launch writes, into the cache: what a group with rows does before its turn. */
KFN void norm_ahead(struct at at, DEV const float *weights, u32 n)
{
    if (32u * at.id < n)
        prefetch(weights + 32u * at.id);
}

KFN void norm_all(struct at at, CON const struct norm_args *a, struct bufs b, u32 rows, SHM float *here)
{
    u32 n = a->n, whole = GPU_NORM_WHOLE(n);
    for (u32 row = at.group; row < rows; row += (1u + a->more) * at.n_groups) {
        for (u32 i = 4u * at.id; i < whole; i += 4u * GPU_THREADS) {
            float v[1 + GPU_NORM_MORE][4]; /* all of it on its way at once */
            UNROLL
            for (u32 k = 0; k <= GPU_NORM_MORE; k++) {
                u32 r = row + k * at.n_groups, there = k <= a->more && r < rows;
                row_get(v[k], (DEV const float *)b.p[1] + (u64)r * a->x_stride, i, there ? n : 0);
            }
            UNROLL
            for (u32 k = 0; k <= GPU_NORM_MORE; k++)
                if (k <= a->more && row + k * at.n_groups < rows)
                    norm_here(norm_place(a, here, k), i, v[k]);
        }
        norm_rows(at, a, b, (DEV const float *)b.p[2], row, rows, here);
    }
}

KFN void norm_each(struct at at, CON const struct norm_args *a, struct bufs b, THR const float *weights, u32 rows, SHM float *here)
{
    u32 n = a->n, whole = GPU_NORM_WHOLE(n);
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        DEV const float *x = (DEV const float *)b.p[1] + (u64)row * a->x_stride;
        for (u32 i = 4u * at.id; i < whole; i += 2048u) {
            float v[8];
            row_get(v, x, i, n);
            row_get(v + 4, x, i + 1024u, n);
            norm_here(here, i, v);
            if (i + 1024u < whole)
                norm_here(here, i + 1024u, v + 4);
        }
        norm_row(at, a, b, (DEV const float *)b.p[2], weights, row, here);
    }
}

/* Rows without a norm: pieces of 128 elements, each by a SIMD group. With one: a row, or 1 + more of them at once, by a group; it goes to shared memory (a
 * float for each element, then the row's scale), a SIMD group of its own sums it up, all normalise it. */
KFN void k_norm(struct at at, CON const struct norm_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    SHM float *here = (SHM float *)shm;
    u32 rows = in[IN_ROWS + a->which] * a->ranks, n = a->n;
    bool act = a->write_act && n % 32u == 0;
    float weights[8];
    if (a->has_norm && at.group < rows) {
        norm_ahead(at, (DEV const float *)b.p[2], n);
        norm_weights(at, (DEV const float *)b.p[2], n, weights);
    }
    IN_TURN(at);
    if (!a->has_norm) {
        struct walk w;
        for (walk_start(at, ((act ? GPU_PAD(n) : n) + 127u) / 128u, &w); w.row < rows; walk_on(&w)) {
            u32 i = walk_at(at, &w);
            float v[4];
            row_get(v, (DEV const float *)b.p[1] + (u64)w.row * a->x_stride, i, n);
            norm_put(at, 1u, a, b, w.row, i, v, act);
        }
        return;
    }
    if (!GPU_NORM_HERE(n)) {
        norm_in_place(at, a, b, rows, act);
        return;
    }
    if (GPU_NORM_MORE && a->more)
        norm_all(at, a, b, rows, here);
    else
        norm_each(at, a, b, weights, rows, here);
}

/* Rows of a table, each by a group, and the norm that follows, as norm_each has it. */
KFN void k_embed_norm(struct at at, CON const struct embed_norm_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    DEV const float *weights = (DEV const float *)b.p[5];
    SHM float *here = (SHM float *)shm;
    u32 rows = in[IN_ROWS + a->embed.which], n = a->embed.n_in;
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        DEV float *x = (DEV float *)b.p[2] + (u64)row * a->embed.x_stride;
        u32 token = in[a->embed.rows_at + 4u * row];
        float w[8];
        norm_weights(at, weights, n, w);
        for (u32 i = 4u * at.id; i < GPU_NORM_WHOLE(n); i += 4u * GPU_THREADS) {
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (i < n)
                embed_get(v, a->embed.type, (DEV const u8 *)b.p[1], n, token, i);
            UNROLL
            for (u32 k = 0; k < 4; k++)
                v[k] = i + k < n ? v[k] : 0.0f;
            row_put(x, i, n, v);
            norm_here(here, i, v);
        }
        norm_row(at, &a->norm, b, weights, w, row, here);
    }
}

/* ---- gating ---- */

KFN void k_swiglu(struct at at, CON const struct swiglu_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 rows = in[IN_ROWS + a->which] * a->ranks, n = a->n, n_pad = GPU_PAD(n);
    bool write_act = a->write_act && n % 32u == 0;
    struct walk w;
    (void)shm;
    for (walk_start(at, ((write_act ? n_pad : n) + 127u) / 128u, &w); w.row < rows; walk_on(&w)) {
        u32 i = walk_at(at, &w);
        DEV float *gate = (DEV float *)b.p[1] + (u64)w.row * a->stride;
        float g[4], u[4];
        row_get(g, gate, i, n);
        row_get(u, (DEV const float *)b.p[2] + (u64)w.row * a->stride, i, n);
        UNROLL
        for (u32 k = 0; k < 4; k++)
            g[k] = ex_flush((g[k] * sigmoid(g[k])) * u[k]); /* of the filling: 0 */
        row_put(gate, i, n, g);
        if (write_act)
            act_put_8(at, (DEV u8 *)b.p[3] + (u64)w.row * GPU_ACT_BYTES(n), n_pad, i, g);
    }
}

/* ---- experts joined ---- */

/* acc = fma(w, flush(y), acc), four elements. */
KFN void combine_one(THR float *acc, float w, THR const float *y)
{
    UNROLL
    for (u32 k = 0; k < 4; k++)
        acc[k] = EX_FMA(w, ex_flush(y[k]), acc[k]);
}

/* m times four elements of a row of x, 1024 apart, with its experts added in the order of their ranks, eight rows of y on their way at a time; x is written. */
KFN void combine_fours(const u32 m, CON const struct combine_args *a, struct bufs b, u32 row, u32 i, THR float *v)
{
    u32 pair = row * a->n_used;
    DEV const float *y = (DEV const float *)b.p[1] + (u64)pair * a->y_stride + i, *w = (DEV const float *)b.p[2] + a->w_at + pair;
    DEV float *x = (DEV float *)b.p[5] + (u64)row * a->x_stride;
    float acc[8], shared[8], g = 0.0f;
    UNROLL
    for (u32 k = 0; k < 4u * m; k++)
        acc[k] = shared[k] = 0.0f;
    UNROLL
    for (u32 j = 0; j < m; j++) { /* all loads first: they wait together */
        row_get(v + 4u * j, x, i + 1024u * j, ~0u);
        if (a->shared)
            row_get(shared + 4u * j, (DEV const float *)b.p[3] + (u64)row * a->shared_stride, i + 1024u * j, ~0u);
    }
    if (a->shared)
        g = ((DEV const float *)b.p[4])[(u64)row * a->shared_w_stride];
    NO_UNROLL
    for (u32 r0 = 0; r0 < a->n_used; r0 += 8u) {
        float f[8], e[8][8];
        UNROLL
        for (u32 r = 0; r < 8u; r++)
            if (r0 + r < a->n_used) {
                f[r] = w[r0 + r];
                UNROLL
                for (u32 j = 0; j < m; j++)
                    row_get(e[r] + 4u * j, y + (u64)(r0 + r) * a->y_stride, 1024u * j, ~0u);
            }
        UNROLL
        for (u32 r = 0; r < 8u; r++)
            if (r0 + r < a->n_used) {
                UNROLL
                for (u32 j = 0; j < m; j++)
                    combine_one(acc + 4u * j, f[r], e[r] + 4u * j);
            }
    }
    UNROLL
    for (u32 j = 0; j < m; j++) {
        if (a->shared)
            combine_one(acc + 4u * j, ex_flush(sigmoid(g)), shared + 4u * j);
        UNROLL
        for (u32 k = 0; k < 4; k++)
            v[4u * j + k] = v[4u * j + k] + acc[4u * j + k];
        row_put(x, i + 1024u * j, ~0u, v + 4u * j);
    }
}

/* The same of one element. */
KFN float combine_element(CON const struct combine_args *a, struct bufs b, u32 row, u32 i)
{
    u32 pair = row * a->n_used;
    DEV const float *y = (DEV const float *)b.p[1] + (u64)pair * a->y_stride + i, *w = (DEV const float *)b.p[2] + a->w_at + pair;
    DEV float *x = (DEV float *)b.p[5] + (u64)row * a->x_stride + i;
    float acc = 0.0f;
    NO_UNROLL
    for (u32 r = 0; r < a->n_used; r++)
        acc = EX_FMA(w[r], ex_flush(y[(u64)r * a->y_stride]), acc);
    if (a->shared)
        acc = EX_FMA(ex_flush(sigmoid(((DEV const float *)b.p[4])[(u64)row * a->shared_w_stride])),
                     ex_flush(((DEV const float *)b.p[3])[(u64)row * a->shared_stride + i]), acc);
    return *x = *x + acc;
}

/* Four elements, or what there is of them, zeros behind. */
KFN void combine_put(CON const struct combine_args *a, struct bufs b, u32 row, u32 i, THR float *v)
{
    if (i + 4u <= a->n) {
        combine_fours(1u, a, b, row, i, v);
        return;
    }
    UNROLL
    for (u32 k = 0; k < 4; k++)
        v[k] = 0.0f;
    if (i < a->n)
        v[0] = combine_element(a, b, row, i);
    if (i + 1u < a->n)
        v[1] = combine_element(a, b, row, i + 1u);
    if (i + 2u < a->n)
        v[2] = combine_element(a, b, row, i + 2u);
}

KFN void k_combine(struct at at, CON const struct combine_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 rows = in[IN_ROWS + a->which], n = a->n;
    struct walk w;
    (void)shm;
    for (walk_start(at, (n + 127u) / 128u, &w); w.row < rows; walk_on(&w)) {
        u32 i = walk_at(at, &w);
        float v[4];
        if (i < n)
            combine_put(a, b, w.row, i, v);
    }
}

KFN void combine_all(struct at at, CON const struct combine_norm_args *a, struct bufs b, struct bufs to, u32 rows, SHM float *here)
{
    for (u32 row = at.group; row < rows; row += (1u + a->norm.more) * at.n_groups) {
        for (u32 k = 0, r = row; k <= a->norm.more && r < rows; k++, r += at.n_groups) {
            for (u32 i = 4u * at.id; i < GPU_NORM_WHOLE(a->combine.n); i += 4u * GPU_THREADS) {
                float v[4];
                combine_put(&a->combine, b, r, i, v);
                norm_here(norm_place(&a->norm, here, k), i, v);
            }
        }
        norm_rows(at, &a->norm, to, (DEV const float *)b.p[6], row, rows, here);
    }
}

KFN void combine_each(struct at at, CON const struct combine_norm_args *a, struct bufs b, struct bufs to, u32 rows, SHM float *here)
{
    DEV const float *weights = (DEV const float *)b.p[6];
    u32 n = a->combine.n;
    for (u32 row = at.group; row < rows; row += at.n_groups) {
        u32 i = 4u * at.id;
        float v[8], w[8];
        NO_UNROLL
        for (; i + 1028u <= n; i += 2048u) {
            combine_fours(2u, &a->combine, b, row, i, v);
            norm_here(here, i, v);
            norm_here(here, i + 1024u, v + 4);
        }
        NO_UNROLL
        for (; i < GPU_NORM_WHOLE(n); i += 1024u) {
            combine_put(&a->combine, b, row, i, v);
            norm_here(here, i, v);
        }
        norm_weights(at, weights, n, w); /* while the sum is found */
        norm_row(at, &a->norm, to, weights, w, row, here);
    }
}

/* The same, and the norm that follows, as k_norm has it. */
KFN void k_combine_norm(struct at at, CON const struct combine_norm_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    DEV const float *weights = (DEV const float *)b.p[6];
    SHM float *here = (SHM float *)shm;
    struct bufs to = b; /* h and act stand where k_norm has them */
    u32 rows = in[IN_ROWS + a->combine.which], n = a->combine.n;
    to.p[3] = b.p[7];
    to.p[4] = b.p[8];
    if (at.group < rows)
        norm_ahead(at, weights, n);
    IN_TURN(at);
    if (GPU_NORM_MORE && a->norm.more)
        combine_all(at, a, b, to, rows, here);
    else
        combine_each(at, a, b, to, rows, here);
}

/* ---- rows that want logits ---- */

KFN void keep_rows(struct at at, DEV const u32 *table, u32 rows, DEV const float *from, DEV float *to, u32 n, u32 stride)
{
    struct walk w;
    for (walk_start(at, (n + 127u) / 128u, &w); w.row < rows; walk_on(&w)) {
        u32 i = walk_at(at, &w);
        float v[4];
        if (i >= n)
            continue;
        row_get(v, from + (u64)table[4u * w.row] * stride, i, n);
        row_put(to + (u64)w.row * stride, i, n, v);
    }
}

KFN void k_keep(struct at at, CON const struct keep_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0], *table = in + a->rows_at;
    u32 rows = in[IN_ROWS + 1];
    (void)shm;
    keep_rows(at, table, rows, (DEV const float *)b.p[1], (DEV float *)b.p[3], a->n_x, a->x_stride);
    keep_rows(at, table, rows, (DEV const float *)b.p[2], (DEV float *)b.p[4], a->n_q, a->q_stride);
}
