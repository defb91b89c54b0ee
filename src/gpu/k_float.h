/* Products with float weights (rule 5): the router, and whole models in f16, bf16 or f32. See args.h (float_args).
 *
 * A unit is 4 or 8 outputs of one matrix for up to 8 rows (of pairs: one, since each has an expert of its own); a group takes a
 * contiguous share of units, so it mostly stays with the same rows. 4 where 8 would leave groups without work: the router
 * has 128 outputs. The row is walked in phases of 8 segments; in each, weights and rows come through shared memory, where
 * a segment of an output lies in one piece, so that a chain of fma reads 16 bytes for 4 steps:
 *
 *   shared memory, words: x[8 rows][8 segments][260] | norm weights [8][260] | w[8 outputs][8][260] | parts[8 rows][8 outputs][9] | r[8 rows]
 *
 *   260: the 8 segments that a quarter of a SIMD group reads at once begin 4 banks apart. Thread t runs the chains of segment t % 8, of 1 output
 *   and 1 or 2 rows, or of 2 outputs and 4 rows. Then a thread for each row and output adds the segments' parts, left to right.
 *
 * The norm (rule 6): rows as they are go to shared memory, SIMD group r sums row r, then rows become normalised where they lie. */

enum {
    FLOAT_ROWS = 8,
    FLOAT_OUTS = 8,
    FLOAT_SEGS = 8,                           /* in a phase */
    FLOAT_PHASE = FLOAT_SEGS * GPU_SEG,       /* elements */
    FLOAT_SEG_WORDS = GPU_SEG + 4,
    FLOAT_ROW_WORDS = FLOAT_SEGS * FLOAT_SEG_WORDS,
    FLOAT_W_AT = (FLOAT_ROWS + 1) * FLOAT_ROW_WORDS,
    FLOAT_PARTS_AT = FLOAT_W_AT + FLOAT_OUTS * FLOAT_ROW_WORDS,
    FLOAT_R_AT = FLOAT_PARTS_AT + FLOAT_ROWS * FLOAT_OUTS * 9,
    FLOAT_BATCH = 8                           /* loads of a thread in flight */
};

struct float_unit {
    u32 n_in, n_pad, phases;
    u32 row0, n_rows;       /* of y */
    u32 m, out0, outs;      /* outputs out0.. of matrix m; outs is 4 or 8 */
    u32 fresh;              /* the rows are not in shared memory yet */
    u32 write_act;
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

/* Elements [k0, k0 + n) of one row, n a multiple of 256: thread `first` of `step`. */
KFN void float_put_row(SHM u32 *to, DEV const float *x, u32 n_in, u32 k0, u32 n, u32 first, u32 step)
{
    for (u32 i0 = first; i0 < n / 4u; i0 += FLOAT_BATCH * step) {
        w4 v[FLOAT_BATCH];
        UNROLL
        for (u32 j = 0; j < FLOAT_BATCH; j++)
            if (i0 + j * step < n / 4u)
                v[j] = float_some(x, k0 + 4u * (i0 + j * step), n_in);
        UNROLL
        for (u32 j = 0; j < FLOAT_BATCH; j++)
            if (i0 + j * step < n / 4u)
                *(SHM w4 *)(to + float_word(4u * (i0 + j * step))) = v[j];
    }
}

/* How many threads take a row: 256 / 1, 2, 4 or 8, as a shift. */
KFN u32 float_spread(u32 n_rows)
{
    return n_rows <= 1u ? 8u : n_rows <= 2u ? 7u : n_rows <= 4u ? 6u : 5u;
}

KFN void float_put_rows(struct at at, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, u32 k0, u32 n, SHM u32 *shm)
{
    u32 spread = float_spread(u->n_rows), row = at.thread >> spread, step = 1u << spread;
    if (row < u->n_rows)
        float_put_row(shm + row * FLOAT_ROW_WORDS, (DEV const float *)b.p[1] + (u64)float_from(a, u->row0 + row) * a->p.x_stride, u->n_in, k0, n,
                      at.thread & (step - 1u), step);
    if (a->p.source == SRC_NORM)
        float_put_row(shm + FLOAT_ROWS * FLOAT_ROW_WORDS, (DEV const float *)b.p[2], u->n_in, k0, n, at.thread, GPU_THREADS);
}

/* ---- the norm ---- */

/* This SIMD group's row: its lanes' sums of squares, going on from s. */
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

/* All lanes; the row's 1 / sqrt(mean + eps) to r. */
KFN void float_root(struct at at, float s, u32 n, float eps, SHM u32 *r)
{
    s = simd_tree(at, s);
    if (at.lane == 0u)
        *r = EX_BITS(div_rn(1.0f, sqrt_rn(div_rn(s, (float)(i32)n) + eps)));
}

/* r of every row whose elements do not fit in one phase. Ends with a barrier. */
KFN void float_roots(struct at at, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, SHM u32 *shm)
{
    float s = 0.0f;
    for (u32 k0 = 0; k0 < u->n_pad; k0 += FLOAT_PHASE) {
        u32 n = least_u32(FLOAT_PHASE, u->n_pad - k0);
        float_put_rows(at, a, b, u, k0, n, shm);
        BARRIER(at);
        if (at.simd < u->n_rows)
            s = float_squares(at, shm + at.simd * FLOAT_ROW_WORDS, n, s);
        BARRIER(at);
    }
    if (at.simd < u->n_rows)
        float_root(at, s, u->n_in, a->p.eps, shm + FLOAT_R_AT + at.simd);
    BARRIER(at);
}

KFN u32 float_normal(u32 x, float r, u32 w)
{
    return EX_BITS(ex_flush(EX_FLOAT(x) * r * EX_FLOAT(w)));
}

/* Rows of a phase become normalised in place; what fills up the row stays zero, also where r is a NaN. */
KFN void float_apply(struct at at, THR const struct float_unit *u, u32 k0, u32 n, SHM u32 *shm)
{
    u32 spread = float_spread(u->n_rows), row = at.thread >> spread, step = 1u << spread;
    if (row >= u->n_rows)
        return;
    float r = EX_FLOAT(shm[FLOAT_R_AT + row]);
    for (u32 i = at.thread & (step - 1u); i < n / 4u; i += step) {
        u32 left = u->n_in > k0 + 4u * i ? u->n_in - k0 - 4u * i : 0u;
        SHM u32 *at_x = shm + row * FLOAT_ROW_WORDS + float_word(4u * i);
        w4 v = load16(at_x), w = load16(shm + FLOAT_ROWS * FLOAT_ROW_WORDS + float_word(4u * i));
        v.x = left > 0u ? float_normal(v.x, r, w.x) : 0u;
        v.y = left > 1u ? float_normal(v.y, r, w.y) : 0u;
        v.z = left > 2u ? float_normal(v.z, r, w.z) : 0u;
        v.w = left > 3u ? float_normal(v.w, r, w.w) : 0u;
        *(SHM w4 *)at_x = v;
    }
}

/* Rows of a phase in shared memory, normalised where wanted; a barrier is still to come. */
KFN void float_rows(struct at at, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, u32 k0, u32 n, SHM u32 *shm)
{
    float_put_rows(at, a, b, u, k0, n, shm);
    if (a->p.source != SRC_NORM)
        return;
    BARRIER(at);
    if (u->phases == 1u) {
        if (at.simd < u->n_rows)
            float_root(at, float_squares(at, shm + at.simd * FLOAT_ROW_WORDS, n, 0.0f), u->n_in, a->p.eps, shm + FLOAT_R_AT + at.simd);
        BARRIER(at);
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

/* Piece i of a phase: 4 outputs of one element. With 8 outputs, neighbouring pieces are of one element. */
struct float_pieces {
    w4 v[FLOAT_BATCH];
};

KFN void float_fetch(struct at at, u32 type, DEV const u8 *w, u32 outs, u32 n, u32 i0, THR struct float_pieces *p)
{
    u32 pair = outs / 8u;
    UNROLL
    for (u32 j = 0; j < FLOAT_BATCH; j++) {
        u32 i = i0 + at.thread + j * GPU_THREADS;
        if (i >= n << pair)
            continue;
        DEV const u8 *from = w + ((i >> pair) * GPU_PANEL + (i & pair) * 4u) * (type == GT_F32 ? 4u : 2u);
        if (type == GT_F32) {
            p->v[j] = load16_once(from);
        } else {
            w2 half = load8(from);
            p->v[j].x = half.x;
            p->v[j].y = half.y;
        }
    }
}

KFN void float_put(struct at at, u32 type, u32 outs, u32 n, u32 i0, THR const struct float_pieces *p, SHM u32 *w)
{
    u32 pair = outs / 8u;
    UNROLL
    for (u32 j = 0; j < FLOAT_BATCH; j++) {
        u32 i = i0 + at.thread + j * GPU_THREADS;
        if (i >= n << pair)
            continue;
        SHM u32 *to = w + (i & pair) * 4u * FLOAT_ROW_WORDS + float_word(i >> pair);
        w4 v = p->v[j];
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
        to[0] = v.x;
        to[FLOAT_ROW_WORDS] = v.y;
        to[2 * FLOAT_ROW_WORDS] = v.z;
        to[3 * FLOAT_ROW_WORDS] = v.w;
    }
}

/* ---- chains ---- */

/* n_o outputs and n_r rows a thread (constants); segs: of this phase. */
KFN void float_chains(struct at at, const u32 n_o, const u32 n_r, THR const struct float_unit *u, u32 segs, SHM u32 *shm)
{
    u32 seg = at.thread % FLOAT_SEGS, rest = at.thread / FLOAT_SEGS, shift = (u->outs == 8u ? 3u : 2u) - (n_o == 2u ? 1u : 0u);
    u32 out = (rest & ((1u << shift) - 1u)) * n_o, row = (rest >> shift) * n_r;
    if (seg >= segs || row >= u->n_rows)
        return;
    SHM const u32 *x = shm + row * FLOAT_ROW_WORDS + seg * FLOAT_SEG_WORDS;
    SHM const u32 *w = shm + FLOAT_W_AT + out * FLOAT_ROW_WORDS + seg * FLOAT_SEG_WORDS;
    float p[8];
    UNROLL
    for (u32 i = 0; i < n_o * n_r; i++)
        p[i] = 0.0f;
    NO_UNROLL
    for (u32 k0 = 0; k0 < GPU_SEG; k0 += 16u) {
        UNROLL
        for (u32 k = k0; k < k0 + 16u; k += 4u) {
            w4 wv[2], xv[4];
            UNROLL
            for (u32 o = 0; o < n_o; o++)
                wv[o] = load16(w + o * FLOAT_ROW_WORDS + k);
            UNROLL
            for (u32 r = 0; r < n_r; r++)
                xv[r] = load16(x + r * FLOAT_ROW_WORDS + k);
            UNROLL
            for (u32 o = 0; o < n_o; o++) {
                UNROLL
                for (u32 r = 0; r < n_r; r++) {
                    float s = p[o * n_r + r];
                    s = EX_FMA(EX_FLOAT(wv[o].x), EX_FLOAT(xv[r].x), s);
                    s = EX_FMA(EX_FLOAT(wv[o].y), EX_FLOAT(xv[r].y), s);
                    s = EX_FMA(EX_FLOAT(wv[o].z), EX_FLOAT(xv[r].z), s);
                    p[o * n_r + r] = EX_FMA(EX_FLOAT(wv[o].w), EX_FLOAT(xv[r].w), s);
                }
            }
        }
    }
    UNROLL
    for (u32 o = 0; o < n_o; o++) {
        UNROLL
        for (u32 r = 0; r < n_r; r++)
            shm[FLOAT_PARTS_AT + ((row + r) * FLOAT_OUTS + out + o) * 9u + seg] = EX_BITS(p[o * n_r + r]);
    }
}

KFN void float_multiply(struct at at, THR const struct float_unit *u, u32 segs, SHM u32 *shm)
{
    if (u->n_rows == 1u)
        float_chains(at, 1, 1, u, segs, shm);
    else if (u->n_rows == 2u)
        float_chains(at, 1, 2, u, segs, shm);
    else
        float_chains(at, 2, 4, u, segs, shm);
}

/* Row and output that this thread adds up: of n_rows * outs. */
KFN u32 float_row(struct at at, THR const struct float_unit *u)
{
    return at.thread >> (u->outs == 8u ? 3u : 2u);
}

KFN void float_end(struct at at, CON const struct product_args *a, struct bufs b, THR const struct float_unit *u, float total)
{
    u32 m = u->m, n_out = m == 0u ? a->n_out[0] : m == 1u ? a->n_out[1] : a->n_out[2];
    u32 stride = m == 0u ? a->y_stride[0] : m == 1u ? a->y_stride[1] : a->y_stride[2];
    u32 has_bias = m == 0u ? a->has_bias[0] : m == 1u ? a->has_bias[1] : a->has_bias[2];
    DEV float *y = (DEV float *)(m == 0u ? b.p[9] : m == 1u ? b.p[10] : b.p[11]), *x = (DEV float *)b.p[12];
    DEV const float *bias = (DEV const float *)(m == 0u ? b.p[6] : m == 1u ? b.p[7] : b.p[8]);
    u32 row = u->row0 + float_row(at, u), out = u->out0 + (at.thread & (u->outs - 1u));
    if (float_row(at, u) >= u->n_rows || out >= n_out)
        return;
    if (has_bias)
        total = total + bias[out];
    y[(u64)row * stride + out] = total;
    if (a->add && m == 0u)
        x[(u64)row * a->res_stride + out] = x[(u64)row * a->res_stride + out] + total;
}

/* w: the unit's first output of its panel. */
KFN void float_unit(struct at at, u32 type, CON const struct float_args *a, struct bufs b, THR const struct float_unit *u, DEV const u8 *w,
                    SHM u32 *shm)
{
    float total = 0.0f;
    if (u->fresh && u->phases > 1u && a->p.source == SRC_NORM)
        float_roots(at, a, b, u, shm);
    for (u32 k0 = 0; k0 < u->n_pad; k0 += FLOAT_PHASE) {
        u32 n = least_u32(FLOAT_PHASE, u->n_pad - k0), pieces = n << u->outs / 8u;
        DEV const u8 *from = w + (u64)k0 * GPU_PANEL * (type == GT_F32 ? 4u : 2u);
        struct float_pieces p;
        float_fetch(at, type, from, u->outs, n, 0, &p);
        if (u->fresh || u->phases > 1u)
            float_rows(at, a, b, u, k0, n, shm);
        float_put(at, type, u->outs, n, 0, &p, shm + FLOAT_W_AT);
        for (u32 i = FLOAT_BATCH * GPU_THREADS; i < pieces; i += FLOAT_BATCH * GPU_THREADS) {
            float_fetch(at, type, from, u->outs, n, i, &p);
            float_put(at, type, u->outs, n, i, &p, shm + FLOAT_W_AT);
        }
        BARRIER(at);
        float_multiply(at, u, n / GPU_SEG, shm);
        if (u->write_act)
            float_write_act(at, b, u, k0, n, shm);
        BARRIER(at);
        if (float_row(at, u) < u->n_rows)
            for (u32 s = 0; s < n / GPU_SEG; s++)
                total = total + EX_FLOAT(shm[FLOAT_PARTS_AT + (float_row(at, u) * FLOAT_OUTS + (at.thread & (u->outs - 1u))) * 9u + s]);
    }
    float_end(at, &a->p, b, u, total);
}

/* Units of matrix m for a tile of rows. */
KFN u32 float_units(u32 n_out, u32 outs)
{
    return outs == 8u ? (n_out + 7u) / 8u : (n_out + 3u) / 4u;
}

KFN u32 float_all_units(CON const struct product_args *a, u32 outs, THR u32 *ends)
{
    ends[0] = float_units(a->n_out[0], outs);
    ends[1] = ends[0] + (a->n_mats > 1u ? float_units(a->n_out[1], outs) : 0u);
    ends[2] = ends[1] + (a->n_mats > 2u ? float_units(a->n_out[2], outs) : 0u);
    return ends[2];
}

KFN void k_product_float(struct at at, CON const struct float_args *a, struct bufs b, SHM u32 *shm)
{
    CON const struct product_args *p = &a->p;
    DEV const u32 *ids = (DEV const u32 *)b.p[14] + a->ids_at;
    u32 n_rows = ((DEV const u32 *)b.p[0])[IN_ROWS + p->which] * (a->per_pair ? a->n_used : 1u), ends[3], unit, end, done = ~0u;
    u32 height = a->per_pair ? 1u : FLOAT_ROWS, tiles = a->per_pair ? n_rows : (n_rows + FLOAT_ROWS - 1u) / FLOAT_ROWS;
    struct float_unit u;
    u.n_in = p->n_in;
    u.n_pad = GPU_PAD(p->n_in);
    u.phases = (u.n_pad + FLOAT_PHASE - 1u) / FLOAT_PHASE;
    u.outs = 8;
    if (tiles * float_all_units(p, 8, ends) * 4u < at.n_groups * 3u)
        u.outs = 4;
    share_units(at, tiles * float_all_units(p, u.outs, ends), &unit, &end);
    for (; unit < end; unit++) { /* the same for the whole group */
        u32 i, tile = split_u32(unit, ends[2], &i);
        u.m = i < ends[0] ? 0u : i < ends[1] ? 1u : 2u;
        u.out0 = (i - (u.m == 0u ? 0u : u.m == 1u ? ends[0] : ends[1])) * u.outs;
        u.row0 = tile * height;
        u.n_rows = least_u32(height, n_rows - u.row0);
        u.fresh = tile != done;
        u.write_act = p->write_act && p->source == SRC_NORM && i == 0u;
        done = tile;
        u32 type = u.m == 0u ? p->type[0] : u.m == 1u ? p->type[1] : p->type[2];
        u32 n_out = u.m == 0u ? p->n_out[0] : u.m == 1u ? p->n_out[1] : p->n_out[2], size = type == GT_F32 ? 4u : 2u;
        DEV const u8 *w = (DEV const u8 *)(u.m == 0u ? b.p[3] : u.m == 1u ? b.p[4] : b.p[5]);
        if (a->per_pair)
            w += (u64)ids[u.row0] * panels_of(n_out) * u.n_pad * GPU_PANEL * size;
        w += ((u64)(u.out0 / GPU_PANEL) * u.n_pad * GPU_PANEL + u.out0 % GPU_PANEL) * size;
        float_unit(at, type, a, b, &u, w, shm);
    }
}
