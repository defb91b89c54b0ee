/* Products with float weights (rule 5): the router, and whole models in f16, bf16 or f32. See args.h (float_args).
 *
 * A unit is 4 or 8 outputs of one matrix for a tile of 1, 2, 4 or 8 rows (of pairs: 1, since each has an expert of its own); a group takes
 * a contiguous share of units, so it mostly stays with the same rows. The row is walked in phases of 8 segments (PS_METAL: 2); in each, weights
 * and rows come through shared memory, where a segment of an output lies in one piece, so that a chain of fma reads 16 bytes for 4 steps:
 *
 *   shared memory, words: x[rows][8 segments][260] | norm weights [8][260] | w[outputs][8][260] | parts[rows][outputs][9]
 *
 *   260: the 8 segments that a quarter of a SIMD group reads at once begin 4 banks apart. Thread t runs the chains of segment t % 8, of
 *   1 output and 1 or 2 rows, or of 2 outputs and 4 rows, and fetches the next steps' numbers during these. Then a thread for each row and
 *   output adds the segments' parts, left to right.
 *
 * 8, 4, 2 or 1 SIMD groups take a row each into shared memory. The norm (rule 6): they sum up their row there, each for itself, and then
 * normalise it where it lies. */

enum {
    FLOAT_SEGS = GPU_FLOAT_SEGS,              /* in a phase */
    FLOAT_PHASE = FLOAT_SEGS * GPU_SEG,       /* elements */
    FLOAT_SEG_WORDS = GPU_SEG + 4,
    FLOAT_ROW_WORDS = FLOAT_SEGS * FLOAT_SEG_WORDS,
    FLOAT_BATCH = 8                           /* loads of a thread in flight */
};

struct float_unit {
    u32 n_in, n_pad, phases;
    u32 outs;               /* 4 or 8 */
    SHM u32 *norm, *w, *parts;
    u32 row0, n_rows;       /* of y */
    u32 m, out0;            /* outputs out0.. of matrix m */
    u32 fresh;              /* the rows are not in shared memory yet */
    u32 write_act;
    float root;             /* 1 / sqrt(mean + eps) of the row that this SIMD group takes into shared memory */
};

/* Word of element k of a phase. */
KFN u32 float_word(u32 k)
{
    return k / GPU_SEG * FLOAT_SEG_WORDS + k % GPU_SEG;
}

/* The row of x that row i of y takes. */
KFN u32 float_from(CON const struct float_args *a, u32 i)
{
    u32 rest;
    return a->per_pair == 1u ? split_u32(i, a->n_used, &rest) : i;
}

/* ---- rows into shared memory ---- */

/* 4 elements of a row from k on, zeros past n. */
KFN w4 float_some(DEV const float *x, u32 k, u32 n)
{
    w4 v = {0, 0, 0, 0};
    if (k < n)
        v = load16(x + k);
    v.y = k + 1u < n ? v.y : 0u;
    v.z = k + 2u < n ? v.z : 0u;
    v.w = k + 3u < n ? v.w : 0u;
    return v;
}

/* Elements [k0, k0 + n) of one row, n a multiple of 256: thread `first` of `step`, `batch` loads at a time (constants). */
KFN void float_put_row(const u32 batch, const u32 step, SHM u32 *to, DEV const float *x, u32 n_in, u32 k0, u32 n, u32 first)
{
    NO_UNROLL
    for (u32 k = 4u * first; k < n; k += 4u * step * batch) {
        w4 v[FLOAT_BATCH];
        UNROLL
        for (u32 j = 0; j < batch; j++)
            v[j] = float_some(x, k0 + k + 4u * step * j, n_in);
        UNROLL
        for (u32 j = 0; j < batch; j++)
            if (k + 4u * step * j < n)
                *(SHM w4 *)(to + float_word(k + 4u * step * j)) = v[j];
    }
}

/* How many threads take a row, as a shift: 256, 64 or 32. */
KFN u32 float_spread(u32 n_rows)
{
    return n_rows == 1u ? 8u : n_rows <= 4u ? 6u : 5u;
}

/* one: a constant, whether there is one row. */
KFN void float_put_rows(struct at at, const u32 one, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, u32 k0, u32 n,
                        SHM u32 *shm)
{
    u32 spread = float_spread(u->n_rows), row = one ? 0u : at.id >> spread;
    SHM u32 *to = shm + row * FLOAT_ROW_WORDS;
    if (a->p.source == SRC_NORM)
        float_put_row(2, GPU_THREADS, u->norm, (DEV const float *)b.p[2], u->n_in, k0, n, at.id);
    if (row >= u->n_rows)
        return;
    DEV const float *x = (DEV const float *)b.p[1] + (u64)float_from(a, u->row0 + row) * a->p.x_stride;
    if (one)
        float_put_row(2, 256, to, x, u->n_in, k0, n, at.id);
    else if (spread == 6u)
        float_put_row(FLOAT_BATCH, 64, to, x, u->n_in, k0, n, at.id & 63u);
    else
        float_put_row(FLOAT_BATCH, 32, to, x, u->n_in, k0, n, at.lane);
}

/* ---- the norm ---- */

/* A row's sums of squares in this SIMD group's lanes, going on from s. */
KFN float float_squares(struct at at, SHM const u32 *x, u32 n, float s)
{
    for (u32 k0 = 0; k0 < n; k0 += GPU_SEG) {
        float v[8];
        UNROLL
        for (u32 j = 0; j < 8u; j++)
            v[j] = EX_FLOAT(x[float_word(k0) + 32u * j + at.lane]);
        UNROLL
        for (u32 j = 0; j < 8u; j++) {
            float f = ex_flush(v[j]);
            s = EX_FMA(f, f, s);
        }
    }
    return s;
}

/* All lanes: the row's 1 / sqrt(mean + eps). */
KFN float float_root(struct at at, float s, u32 n, float eps)
{
    return div_rn(1.0f, sqrt_rn(div_rn(simd_tree(at, s), (float)(i32)n) + eps));
}

/* The sums of squares of this SIMD group's row, which does not fit in one phase. */
KFN float float_long_squares(struct at at, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, SHM u32 *shm)
{
    u32 row = least_u32(at.id >> float_spread(u->n_rows), u->n_rows - 1u);
    float s = 0.0f;
    for (u32 k0 = 0; k0 < u->n_pad; k0 += FLOAT_PHASE) {
        u32 n = least_u32(FLOAT_PHASE, u->n_pad - k0);
        if (u->n_rows == 1u)
            float_put_rows(at, 1, a, b, u, k0, n, shm);
        else
            float_put_rows(at, 0, a, b, u, k0, n, shm);
        BARRIER(at);
        s = float_squares(at, shm + row * FLOAT_ROW_WORDS, n, s);
        BARRIER(at);
    }
    return s;
}

KFN u32 float_normal(u32 x, float r, u32 w)
{
    return EX_BITS(ex_flush(EX_FLOAT(x) * r * EX_FLOAT(w)));
}

/* Rows of a phase become normalised in place; what fills up the row stays zero, also where r is a NaN. */
KFN void float_apply(struct at at, THR const struct float_unit *u, u32 k0, u32 n, SHM u32 *shm)
{
    u32 spread = float_spread(u->n_rows), row = at.id >> spread, step = 1u << spread;
    if (row >= u->n_rows)
        return;
    for (u32 i = at.id & (step - 1u); i < n / 4u; i += step) {
        u32 left = u->n_in > k0 + 4u * i ? u->n_in - k0 - 4u * i : 0u;
        SHM u32 *at_x = shm + row * FLOAT_ROW_WORDS + float_word(4u * i);
        w4 v = load16(at_x), w = load16(u->norm + float_word(4u * i));
        v.x = left > 0u ? float_normal(v.x, u->root, w.x) : 0u;
        v.y = left > 1u ? float_normal(v.y, u->root, w.y) : 0u;
        v.z = left > 2u ? float_normal(v.z, u->root, w.z) : 0u;
        v.w = left > 3u ? float_normal(v.w, u->root, w.w) : 0u;
        *(SHM w4 *)at_x = v;
    }
}

/* After the rows of a phase are put down: they become normalised. A barrier is still to come. */
KFN void float_normalise(struct at at, CON const struct float_args *a, THR struct float_unit *u, u32 k0, u32 n, SHM u32 *shm)
{
    BARRIER(at);
    if (u->phases == 1u) { /* else the root is known */
        u32 row = least_u32(at.id >> float_spread(u->n_rows), u->n_rows - 1u);
        u->root = float_root(at, float_squares(at, shm + row * FLOAT_ROW_WORDS, n, 0.0f), u->n_in, a->p.eps);
        BARRIER(at); /* all have read what becomes another number */
    }
    float_apply(at, u, k0, n, shm);
}

/* The phase's part of the act rows, a SIMD group a row. */
KFN void float_write_act(struct at at, struct bufs b, THR const struct float_unit *u, u32 k0, u32 n, SHM const u32 *shm)
{
    if (at.simd >= u->n_rows)
        return;
    DEV u8 *act = (DEV u8 *)b.p[13] + (u64)(u->row0 + at.simd) * GPU_ACT_BYTES(u->n_in);
    for (u32 k = 4u * at.lane; k < n; k += 128u) {
        w4 x = load16(shm + at.simd * FLOAT_ROW_WORDS + float_word(k));
        float v[4] = {EX_FLOAT(x.x), EX_FLOAT(x.y), EX_FLOAT(x.z), EX_FLOAT(x.w)};
        act_put_8(at, act, u->n_pad, k0 + k, v);
    }
}

/* ---- weights into shared memory ---- */

/* 4 outputs of a phase of n elements: thread t takes elements t + 256 j, in 16 or 8 bytes as they are. */
struct float_pieces {
    w4 v[FLOAT_SEGS];
};

KFN void float_fetch(struct at at, u32 type, DEV const u8 *w, u32 n, THR struct float_pieces *p)
{
    if (type == GT_F32) {
        w += at.id * GPU_PANEL * 4u;
        UNROLL
        for (u32 j = 0; j < FLOAT_SEGS; j++)
            if (j * GPU_SEG < n)
                p->v[j] = load16(w + j * GPU_SEG * GPU_PANEL * 4u);
    } else {
        w += at.id * GPU_PANEL * 2u;
        UNROLL
        for (u32 j = 0; j < FLOAT_SEGS; j++)
            if (j * GPU_SEG < n) {
                w2 two = load8(w + j * GPU_SEG * GPU_PANEL * 2u);
                p->v[j].x = two.x;
                p->v[j].y = two.y;
            }
    }
}

KFN w4 float_wide(u32 type, w4 v)
{
    u32 lo = v.x, hi = v.y;
    if (type == GT_F16) {
        v.x = EX_BITS(half_value(lo & 0xFFFFu));
        v.y = EX_BITS(half_value(lo >> 16));
        v.z = EX_BITS(half_value(hi & 0xFFFFu));
        v.w = EX_BITS(half_value(hi >> 16));
    } else if (type == GT_BF16) {
        v.x = lo << 16;
        v.y = lo & 0xFFFF0000u;
        v.z = hi << 16;
        v.w = hi & 0xFFFF0000u;
    }
    return v;
}

KFN void float_put(struct at at, u32 type, u32 n, THR const struct float_pieces *p, SHM u32 *w)
{
    w += at.id;
    UNROLL
    for (u32 j = 0; j < FLOAT_SEGS; j++)
        if (j * GPU_SEG < n) {
            w4 v = float_wide(type, p->v[j]);
            w[j * FLOAT_SEG_WORDS] = v.x;
            w[j * FLOAT_SEG_WORDS + FLOAT_ROW_WORDS] = v.y;
            w[j * FLOAT_SEG_WORDS + 2 * FLOAT_ROW_WORDS] = v.z;
            w[j * FLOAT_SEG_WORDS + 3 * FLOAT_ROW_WORDS] = v.w;
        }
}

/* ---- chains ---- */

/* `ahead` pieces of 4 steps of n_o outputs and n_r rows. */
KFN void float_steps(const u32 n_o, const u32 n_r, const u32 ahead, SHM const u32 *w, SHM const u32 *x, THR w4 *wv, THR w4 *xv)
{
    UNROLL
    for (u32 j = 0; j < ahead; j++) {
        UNROLL
        for (u32 o = 0; o < n_o; o++)
            wv[j * n_o + o] = load16(w + o * FLOAT_ROW_WORDS + 4u * j);
        UNROLL
        for (u32 r = 0; r < n_r; r++)
            xv[j * n_r + r] = load16(x + r * FLOAT_ROW_WORDS + 4u * j);
    }
}

KFN float float_join(w4 w, w4 x, float p)
{
    p = EX_FMA(EX_FLOAT(w.x), EX_FLOAT(x.x), p);
    p = EX_FMA(EX_FLOAT(w.y), EX_FLOAT(x.y), p);
    p = EX_FMA(EX_FLOAT(w.z), EX_FLOAT(x.z), p);
    return EX_FMA(EX_FLOAT(w.w), EX_FLOAT(x.w), p);
}

/* n_o outputs and n_r rows a thread (constants); segs: of this phase. */
KFN void float_chains(struct at at, const u32 n_o, const u32 n_r, THR const struct float_unit *u, u32 segs, SHM u32 *shm)
{
    u32 seg = at.id % FLOAT_SEGS, rest = at.id / FLOAT_SEGS, shift = (u->outs == 8u ? 3u : 2u) - (n_o == 2u ? 1u : 0u);
    u32 out = (rest & ((1u << shift) - 1u)) * n_o, row = (rest >> shift) * n_r;
    if (seg >= segs || row >= u->n_rows)
        return;
    SHM const u32 *x = shm + row * FLOAT_ROW_WORDS + seg * FLOAT_SEG_WORDS;
    SHM const u32 *w = u->w + out * FLOAT_ROW_WORDS + seg * FLOAT_SEG_WORDS;
    const u32 ahead = n_o * n_r < 4u ? 4u / (n_o * n_r) : 1u; /* pieces of 4 steps fetched while as many are worked on */
    w4 wv[4], xv[4], w_next[4], x_next[4], none = {0, 0, 0, 0};
    float p[8];
    UNROLL
    for (u32 i = 0; i < 4u; i++) /* not all are used: a compiler that does not see which ones would complain */
        wv[i] = xv[i] = w_next[i] = x_next[i] = none;
    UNROLL
    for (u32 i = 0; i < n_o * n_r; i++)
        p[i] = 0.0f;
    float_steps(n_o, n_r, ahead, w, x, wv, xv);
    NO_UNROLL
    for (u32 k = 0; k < GPU_SEG; k += 4u * ahead) {
        bool more = k + 4u * ahead < GPU_SEG;
        if (more)
            float_steps(n_o, n_r, ahead, w + k + 4u * ahead, x + k + 4u * ahead, w_next, x_next);
        UNROLL
        for (u32 j = 0; j < ahead; j++) {
            UNROLL
            for (u32 o = 0; o < n_o; o++) {
                UNROLL
                for (u32 r = 0; r < n_r; r++)
                    p[o * n_r + r] = float_join(wv[j * n_o + o], xv[j * n_r + r], p[o * n_r + r]);
            }
        }
        if (!more)
            break;
        UNROLL
        for (u32 i = 0; i < ahead * n_o; i++)
            wv[i] = w_next[i];
        UNROLL
        for (u32 i = 0; i < ahead * n_r; i++)
            xv[i] = x_next[i];
    }
    UNROLL
    for (u32 o = 0; o < n_o; o++) {
        UNROLL
        for (u32 r = 0; r < n_r; r++)
            u->parts[((row + r) * u->outs + out + o) * 9u + seg] = EX_BITS(p[o * n_r + r]);
    }
}

KFN void float_multiply(struct at at, THR const struct float_unit *u, u32 segs, SHM u32 *shm)
{
    if (u->n_rows == 1u)
        float_chains(at, 1, 1, u, segs, shm);
    else if (u->n_rows <= 4u)
        float_chains(at, 1, 2, u, segs, shm);
    else
        float_chains(at, 2, 4, u, segs, shm);
}

/* Row and output that this thread adds up: of n_rows * outs. */
KFN u32 float_row(struct at at, THR const struct float_unit *u)
{
    return at.id >> (u->outs == 8u ? 3u : 2u);
}

KFN void float_end(struct at at, CON const struct product_args *a, struct bufs b, THR const struct float_unit *u, float total)
{
    u32 m = u->m, n_out = m == 0u ? a->n_out[0] : m == 1u ? a->n_out[1] : a->n_out[2];
    u32 stride = m == 0u ? a->y_stride[0] : m == 1u ? a->y_stride[1] : a->y_stride[2];
    u32 has_bias = m == 0u ? a->has_bias[0] : m == 1u ? a->has_bias[1] : a->has_bias[2];
    DEV float *y = (DEV float *)(m == 0u ? b.p[9] : m == 1u ? b.p[10] : b.p[11]), *x = (DEV float *)b.p[12];
    DEV const float *bias = (DEV const float *)(m == 0u ? b.p[6] : m == 1u ? b.p[7] : b.p[8]);
    u32 row = u->row0 + float_row(at, u), out = u->out0 + (at.id & (u->outs - 1u));
    if (float_row(at, u) >= u->n_rows || out >= n_out)
        return;
    if (has_bias)
        total = total + bias[out];
    y[(u64)row * stride + out] = total;
    if (a->add && m == 0u)
        x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + total;
}

/* w: the unit's first output of its panel. */
KFN void float_unit(struct at at, u32 type, CON const struct float_args *a, struct bufs b, THR struct float_unit *u, DEV const u8 *w,
                    SHM u32 *shm)
{
    float total = 0.0f;
    if (u->fresh && u->phases > 1u && a->p.source == SRC_NORM)
        u->root = float_root(at, float_long_squares(at, a, b, u, shm), u->n_in, a->p.eps);
    for (u32 k0 = 0; k0 < u->n_pad; k0 += FLOAT_PHASE) {
        u32 n = least_u32(FLOAT_PHASE, u->n_pad - k0);
        DEV const u8 *from = w + (u64)k0 * GPU_PANEL * (type == GT_F32 ? 4u : 2u);
        struct float_pieces p;
#if !defined(__CUDACC__) && !defined(__METAL_VERSION__)
        memset(&p, 0, sizeof p); /* gcc does not see that what was not fetched is not put */
#endif
        bool take = u->fresh || u->phases > 1u;
        if (u->n_rows == 1u) { /* few loads a thread: those of the weights besides */
            float_fetch(at, type, from, n, &p);
            if (take)
                float_put_rows(at, 1, a, b, u, k0, n, shm);
        } else {
            if (take)
                float_put_rows(at, 0, a, b, u, k0, n, shm);
            float_fetch(at, type, from, n, &p);
        }
        if (take && a->p.source == SRC_NORM)
            float_normalise(at, a, u, k0, n, shm);
        float_put(at, type, n, &p, u->w);
        if (u->outs == 8u) {
            float_fetch(at, type, from + (type == GT_F32 ? 16u : 8u), n, &p);
            float_put(at, type, n, &p, u->w + 4 * FLOAT_ROW_WORDS);
        }
        BARRIER(at);
        float_multiply(at, u, n / GPU_SEG, shm);
        if (u->write_act)
            float_write_act(at, b, u, k0, n, shm);
        BARRIER(at);
        if (float_row(at, u) < u->n_rows)
            for (u32 s = 0; s < n / GPU_SEG; s++)
                total = total + EX_FLOAT(u->parts[at.id * 9u + s]);
    }
    float_end(at, &a->p, b, u, total);
}

/* Units of a matrix for a tile of rows. */
KFN u32 float_units(u32 n_out, u32 outs)
{
    return outs == 8u ? (n_out + 7u) / 8u : (n_out + 3u) / 4u;
}

KFN void k_product_float(struct at at, CON const struct float_args *a, struct bufs b, SHM u32 *shm)
{
    CON const struct product_args *p = &a->p;
    DEV const u32 *ids = a->per_pair ? (DEV const u32 *)b.p[14] + a->ids_at : (DEV const u32 *)0;
    u32 n_rows = ((DEV const u32 *)b.p[0])[IN_ROWS + p->which] * (a->per_pair ? a->n_used : 1u), rows = a->per_pair ? 1u : a->rows;
    u32 n_out0 = p->n_out[0], n_out1 = p->n_mats > 1u ? p->n_out[1] : 0u, n_out2 = p->n_mats > 2u ? p->n_out[2] : 0u;
    u32 outs = GPU_FLOAT_OUTS(rows, n_out0 + n_out1 + n_out2), high = GPU_FLOAT_ROWS(rows), shift = high == 8u ? 3u : high == 4u ? 2u : high == 2u ? 1u : 0u;
    u32 ends[3], unit, end, done = ~0u;
    struct float_unit u;
    ends[0] = float_units(n_out0, outs);
    ends[1] = ends[0] + float_units(n_out1, outs);
    ends[2] = ends[1] + float_units(n_out2, outs);
    u.n_in = p->n_in;
    u.n_pad = GPU_PAD(p->n_in);
    u.phases = (u.n_pad + FLOAT_PHASE - 1u) / FLOAT_PHASE;
    u.outs = outs;
    u.norm = shm + high * FLOAT_ROW_WORDS;
    u.w = u.norm + FLOAT_ROW_WORDS;
    u.parts = u.w + outs * FLOAT_ROW_WORDS;
    u.root = 0.0f;
    share_units(at, ((n_rows + high - 1u) >> shift) * ends[2], &unit, &end);
    for (; unit < end; unit++) { /* the same for the whole group */
        u32 i, tile = split_u32(unit, ends[2], &i);
        u.m = i < ends[0] ? 0u : i < ends[1] ? 1u : 2u;
        u.out0 = (i - (u.m == 0u ? 0u : u.m == 1u ? ends[0] : ends[1])) * outs;
        u.row0 = tile << shift;
        u.n_rows = least_u32(high, n_rows - u.row0);
        u.fresh = tile != done;
        u.write_act = p->write_act && p->source == SRC_NORM && i == 0u;
        done = tile;
        u32 type = u.m == 0u ? p->type[0] : u.m == 1u ? p->type[1] : p->type[2], size = type == GT_F32 ? 4u : 2u;
        u32 n_out = u.m == 0u ? n_out0 : u.m == 1u ? n_out1 : n_out2;
        DEV const u8 *w = (DEV const u8 *)(u.m == 0u ? b.p[3] : u.m == 1u ? b.p[4] : b.p[5]);
        if (a->per_pair)
            w += (u64)ids[u.row0] * panels_of(n_out) * u.n_pad * GPU_PANEL * size;
        w += ((u64)(u.out0 / GPU_PANEL) * u.n_pad * GPU_PANEL + u.out0 % GPU_PANEL) * size;
        float_unit(at, type, a, b, &u, w, shm);
    }
}
