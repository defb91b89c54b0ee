/* The chosen experts of 9 to 64 rows. Where many experts have a few rows each the arithmetic's instructions are the limit, not the memory: so here a SIMD
 * group takes two weight tiles at a time against the same activations, whose integers and scales it reads once: gate and up of a panel
 * (experts_in_twin), or two panels that follow each other (experts_out_twin). The sums of a panel stay in its registers from the first segment to the last: no
 * barrier, no sums in shared memory. A job is a tile of the route lists (up to 8 pairs of one expert) times such a pair of panels.
 *
 * A group takes a contiguous share of jobs, SIMD group s of it every 8th from s on. The pairs of as many list tiles as fit are staged together, TWIN_COLS
 * columns at most: mostly all that the share touches, so that barriers stand at its begin only.
 *
 *   shared memory: for each SIMD group its ring (marks, two slots of two weight tiles; none in a PS_METAL build) | staged rows (k_stage.h)
 *
 * Lane 4g + t has rows g and g + 8 of both tiles, and columns 2t, 2t + 1; of a tile with at most four pairs column t, as tile_sums_4. */

#define TWIN_COLS GPU_TWIN_COLS

enum { TWIN_SLOTS = 2 /* fetched ahead; without a ring the walk is where the arithmetic is */ };

struct twin {
    u32 n_pad, n_seg, n_panels, n_out;
    u32 width, jobs;        /* panels of one matrix in a job; jobs of a list tile */
    u32 bytes;              /* of a weight tile */
    DEV const u8 *w0, *w1;  /* experts' matrices one after another; the same where width is 2 */
    DEV const u32 *list, *pairs; /* tiles_at, pairs_at */
    DEV const u32 *act;     /* rows, or NULL: */
    DEV const float *x;
    u32 n_in, x_stride, per; /* pairs that share a row */
    DEV float *y;
    u32 y_stride;
    u32 from, to;           /* the group's jobs */
};

/* The weight tiles that a SIMD group fetches next. */
struct twin_walk {
    u32 unit, seg;
    DEV const u8 *w0, *w1;
};

KFN void twin_walk_job(THR const struct twin *s, THR struct twin_walk *f)
{
    struct experts_tile t;
    u32 j, tile = split_u32(f->unit, s->jobs, &j);
    experts_tile_of(s->list, tile, &t);
    u64 panel = (u64)t.expert * s->n_panels + j * s->width;
    f->seg = 0u;
    f->w0 = s->w0 + panel * (s->n_seg * s->bytes);
    f->w1 = s->w1 + panel * (s->n_seg * s->bytes);
    if (s->width == 2u && 2u * j + 1u < s->n_panels) /* the last panel may be alone: twice the same then */
        f->w1 += s->n_seg * s->bytes;
}

KFN void twin_fetch(struct at at, THR const struct twin *s, THR struct twin_walk *f, SHM u32 *own, u32 slot)
{
    if (f->unit >= s->to)
        return;
#if PS_METAL
    (void)at, (void)own, (void)slot;
#else
    ring_fetch_two(at, own, slot, RING_MARKS + slot * (s->bytes / 2u), f->w0, f->w1, s->bytes);
#endif
    f->w0 += s->bytes;
    f->w1 += s->bytes;
    f->seg += 1u;
    if (f->seg < s->n_seg)
        return;
    f->unit += GPU_SIMDS;
    if (f->unit < s->to)
        twin_walk_job(s, f);
}

/* Where the next two tiles are for the arithmetic; they are there. */
KFN void twin_take(struct at at, const u32 type, THR const struct twin_walk *f, SHM u32 *own, u32 slot, WGT const u32 *THR *w)
{
#if PS_METAL
    (void)at, (void)type, (void)own, (void)slot;
    w[0] = (WGT const u32 *)f->w0;
    w[1] = (WGT const u32 *)f->w1;
#else
    (void)f;
    ring_take_own(at, own, slot);
    w[0] = own + RING_MARKS + slot * (GPU_TILE_BYTES(type) / 2u);
    w[1] = w[0] + GPU_TILE_BYTES(type) / 4u;
#endif
}

/* The share of output i of a tile that one block gives: rules 2 to 4. c: the sum of products from MAGIC_BITS on, the offset taken off; h: q6_k's second half; d, m: as
 * tile_pair has them; sum: dx times the sum of the column's integers. */
KFN void twin_add(const u32 type, const u32 k, u32 d, u32 m, i32 c, i32 h, float dx, float sum, THR float *p, THR float *low)
{
    float f = EX_FLOAT((u32)c) - EX_MAGIC;
    if (TYPE_IS_32(type)) {
        *p = EX_FMA(f, half_value(d >> 16u * k & 0xFFFFu) * dx, *p);
    } else if (type == GT_Q6_K) { /* exact: at most 16,646,144 < 2^24 */
        f = signed_byte_value(d, 2u * k) * f;
        f = EX_FMA(signed_byte_value(d, 2u * k + 1u), EX_FLOAT((u32)h) - EX_MAGIC, f);
        *p = EX_FMA(f, dx, *p);
    } else { /* the sub-scale times the integer is exact: at most 7,936,992 */
        *p = EX_FMA(byte_value(d, k) * f, dx, *p);
        *low = EX_FMA(byte_value(m, k), sum, *low);
    }
}

/* total += the sums of two tiles, w[0] and w[1]. n: outputs of a lane in each: 2 (row g, row g + 8 of column t), or 4 (row g of two columns, row
 * g + 8 of both). q: integers of the columns that the lane brings to the matrix tile (TILE_COLS), from its word on; s0, s1: scales and sums of its columns. */
KFN void twin_sums(struct at at, const u32 type, const u32 n, WGT const u32 *THR const *w, SHM const u32 *THR const *q, SHM const u32 *s0, SHM const u32 *s1, THR float *total)
{
    float p[8], low[8];
    UNROLL
    for (u32 i = 0; i < 2u * n; i++)
        p[i] = low[i] = 0.0f;
    UNROLL
    for (u32 two = 0; two < 4u; two++) {
        struct tile_pair t[2];
        w4 both[TILE_COLS];
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            both[i] = load16(q[i] + two * 16u);
        UNROLL
        for (u32 m = 0; m < 2u; m++) {
            tile_words(type, w[m], at.lane >> 2, two, at.lane & 3u, t[m].a);
            tile_scales(at, type, w[m], two, &t[m]);
        }
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            u32 b[2 * TILE_COLS];
            columns_b(both, k, b);
            w2 c0 = load8(s0 + 2u * TWIN_COLS * (2u * two + k)), c1 = n == 2u ? c0 : load8(s1 + 2u * TWIN_COLS * (2u * two + k));
            float dx0 = EX_FLOAT(c0.x), dx1 = EX_FLOAT(c1.x);
            i32 from[4];
            from[0] = from[2] = TYPE_OFFSET(type) ? (i32)c0.y : MAGIC_BITS;
            from[1] = from[3] = TYPE_OFFSET(type) ? (i32)c1.y : MAGIC_BITS;
            UNROLL
            for (u32 m = 0; m < 2u; m++) {
                i32 c[4], h[4];
                UNROLL
                for (u32 i = 0; i < 4u; i++)
                    c[i] = h[i] = MAGIC_BITS;
                if (type == GT_Q6_K) {
                    tile_16(at, c, t[m].a[k][0], t[m].a[k][1], b);
                    tile_16(at, h, t[m].a[k][2], t[m].a[k][3], b + TILE_COLS);
                } else if (type == GT_Q8_0) {
                    tile_s(at, c, t[m].a[k], b);
                } else if (n == 4u || !TYPE_OFFSET(type)) {
                    tile_u_from(at, c, t[m].a[k], b, from);
                } else { /* half of c is used: two additions are fewer than four places to set */
                    tile_u0(at, c, t[m].a[k], b);
                    c[0] += from[0];
                    c[2] += from[0];
                }
                UNROLL
                for (u32 i = 0; i < n; i++) {
                    u32 r = n == 2u ? i : i / 2u, at_c = n == 2u ? 2u * i : i; /* row g or g + 8 */
                    bool second = n == 4u && i % 2u;
                    twin_add(type, k, t[m].d[r], t[m].m[r], c[at_c], h[at_c], second ? dx1 : dx0, EX_FLOAT(second ? c1.y : c0.y),
                             &p[m * n + i], &low[m * n + i]);
                }
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < 2u * n; i++) {
        u32 m = i / n, r = n == 2u ? i % n : i % n / 2u;
        total[i] = total[i] + tile_end(type, w[m], (at.lane >> 2) + 8u * r, p[i], low[i]);
    }
}

/* One job: the SIMD group's sums of `n` outputs a lane and tile, then out. base: the staged column of the list tile's first pair. */
KFN void twin_job(struct at at, const u32 type, const u32 n, const bool in, THR const struct twin *s, THR const struct experts_tile *t, u32 j, u32 base, SHM u32 *own,
                  SHM const u32 *stage, THR struct twin_walk *f, THR u32 *slot)
{
    u32 g = at.lane >> 2, l = at.lane & 3u, last = t->n_pairs - 1u, step = 16u * TWIN_COLS;
    u32 c0 = n == 2u ? l : 2u * l, c1 = c0 + 1u;
    SHM const u32 *q[TILE_COLS];
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++) {
        u32 col = base + least_u32(n == 2u ? tile_col_of_four(at) : tile_col(at, i), last);
        q[i] = stage + col * STAGE_STRIDE(s->n_pad) + tile_word(at) * 4u;
    }
    SHM const u32 *scales = stage + TWIN_COLS * STAGE_STRIDE(s->n_pad);
    SHM const u32 *s0 = scales + 2u * (base + least_u32(c0, last)), *s1 = scales + 2u * (base + least_u32(c1, last));
    float total[8];
    UNROLL
    for (u32 i = 0; i < 2u * n; i++)
        total[i] = 0.0f;
    NO_UNROLL
    for (u32 seg = 0; seg < s->n_seg; seg++) {
        WGT const u32 *w[2];
        twin_take(at, type, f, own, *slot, w);
        twin_sums(at, type, n, w, q, s0, s1, total);
        SIMD_BARRIER(at);
        twin_fetch(at, s, f, own, *slot);
        *slot ^= 1u;
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            q[i] += 64;
        s0 += step;
        s1 += step;
    }
    UNROLL
    for (u32 i = 0; i < n; i++) {
        u32 c = n == 2u ? c0 : i % 2u ? c1 : c0, row = g + (n == 2u ? i : i / 2u) * 8u;
        u32 out = (in ? j : 2u * j) * GPU_PANEL + row;
        if (c > last)
            continue;
        DEV float *y = s->y + (u64)s->pairs[t->first + c] * s->y_stride;
        if (in) {
            if (out < s->n_out)
                y[out] = silu_times(total[i], total[n + i]);
            continue;
        }
        if (out < s->n_out)
            y[out] = total[i];
        if (out + GPU_PANEL < s->n_out)
            y[out + GPU_PANEL] = total[n + i];
    }
}

/* What the arithmetic needs of the sum of a block's integers, in its place: with an offset where a dot begins, with a minimum dx times it. */
KFN void twin_stage_sums(struct at at, const u32 type, u32 n_pad, u32 col, SHM u32 *stage)
{
    SHM u32 *s = stage + TWIN_COLS * STAGE_STRIDE(n_pad) + 2u * col;
    if (TYPE_IS_32(type) ? !TYPE_OFFSET(type) : type == GT_Q6_K)
        return;
    SIMD_BARRIER(at);
    for (u32 b = at.lane; b < n_pad / 32u; b += 32u) {
        w2 v = load8(s + 2u * TWIN_COLS * b);
        s[2u * TWIN_COLS * b + 1u] = TYPE_OFFSET(type) ? (u32)(MAGIC_BITS - TYPE_OFFSET(type) * (i32)v.y) : EX_BITS(EX_FLOAT(v.x) * (float)(i32)v.y);
    }
}

/* n pairs from `first` on into columns 0.. */
KFN void twin_stage(struct at at, const u32 type, THR const struct twin *s, u32 first, u32 n, SHM u32 *stage)
{
    for (u32 c = at.simd; c < n; c += GPU_SIMDS) {
        u32 rest, row = split_u32(s->pairs[first + c], s->per, &rest);
        if (s->x)
            stage_floats(at, stage, TWIN_COLS, c, s->n_in, s->x + (u64)row * s->x_stride, (DEV const float *)0, 0.0f, at.lane, 32u, (DEV u32 *)0);
        else
            stage_act(stage, TWIN_COLS, c, s->n_pad, s->act + (u64)row * (GPU_ACT_BYTES(s->n_in) / 4u), at.lane, 32u);
        twin_stage_sums(at, type, s->n_pad, c, stage);
    }
}

KFN void twin_jobs(struct at at, const u32 type, const bool in, THR const struct twin *s, SHM u32 *shm)
{
    u32 own_words = PS_METAL ? 0u : RING_MARKS + TWIN_SLOTS * (GPU_TILE_BYTES(type) / 2u), rest, slot = 0;
    SHM u32 *own = shm + at.simd * own_words, *stage = shm + GPU_SIMDS * own_words;
    if (s->from >= s->to) /* nothing for the group */
        return;
    u32 unit = s->from + at.simd, tile = split_u32(s->from, s->jobs, &rest);
    struct twin_walk f = {unit, 0u, s->w0, s->w1};
    if (unit < s->to)
        twin_walk_job(s, &f);
#if !PS_METAL
    ring_open_own(at, own);
    for (u32 i = 0; i < TWIN_SLOTS; i++)
        twin_fetch(at, s, &f, own, i);
#endif
    NO_UNROLL
    for (u32 begin = s->from; begin < s->to;) { /* list tiles that are staged together */
        struct experts_tile t;
        experts_tile_of(s->list, tile, &t);
        u32 first = t.first, n = t.n_pairs, end = (tile + 1u) * s->jobs;
        NO_UNROLL
        for (tile++; end < s->to; tile++, n += t.n_pairs, end += s->jobs) {
            experts_tile_of(s->list, tile, &t);
            if (n + t.n_pairs > TWIN_COLS)
                break;
        }
        end = least_u32(end, s->to);
        if (begin != s->from)
            BARRIER(at);
        twin_stage(at, type, s, first, n, stage);
        BARRIER(at);
        NO_UNROLL
        for (; unit < end; unit += GPU_SIMDS) {
            u32 j, of = split_u32(unit, s->jobs, &j);
            experts_tile_of(s->list, of, &t);
            if (t.n_pairs <= 4u)
                twin_job(at, type, 2, in, s, &t, j, t.first - first, own, stage, &f, &slot);
            else
                twin_job(at, type, 4, in, s, &t, j, t.first - first, own, stage, &f, &slot);
        }
        begin = end;
    }
}

KFN void twin_typed(struct at at, u32 type, const bool in, THR const struct twin *s, SHM u32 *shm)
{
    if (type == GT_Q4_0)
        twin_jobs(at, GT_Q4_0, in, s, shm);
    else if (type == GT_Q4_K)
        twin_jobs(at, GT_Q4_K, in, s, shm);
    else if (type == GT_Q8_0)
        twin_jobs(at, GT_Q8_0, in, s, shm);
    else
        twin_jobs(at, GT_Q6_K, in, s, shm);
}

KFN void k_experts_in_twin(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *route = (DEV const u32 *)b.p[5];
    struct twin s;
    s.n_pad = GPU_PAD(a->n_in);
    s.n_seg = s.n_pad / GPU_SEG;
    s.n_out = a->n_out;
    s.n_panels = panels_of(a->n_out);
    s.width = 1u;
    s.jobs = s.n_panels;
    s.bytes = GPU_TILE_BYTES(a->type_gate);
    s.w0 = (DEV const u8 *)b.p[2];
    s.w1 = (DEV const u8 *)b.p[3];
    s.list = route + a->tiles_at;
    s.pairs = route + a->pairs_at;
    s.act = (DEV const u32 *)b.p[1];
    s.x = (DEV const float *)0;
    s.n_in = a->n_in;
    s.x_stride = 0u;
    s.per = a->n_used;
    s.y = (DEV float *)b.p[4];
    s.y_stride = a->y_stride;
    share_units(at, s.list[0] * s.jobs, &s.from, &s.to);
    twin_typed(at, a->type_gate, true, &s, shm);
}

KFN void k_experts_out_twin(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *route = (DEV const u32 *)b.p[5];
    struct twin s;
    s.n_pad = GPU_PAD(a->n_in);
    s.n_seg = s.n_pad / GPU_SEG;
    s.n_out = a->n_out;
    s.n_panels = panels_of(a->n_out);
    s.width = 2u;
    s.jobs = (s.n_panels + 1u) / 2u;
    s.bytes = GPU_TILE_BYTES(a->type);
    s.w0 = (DEV const u8 *)b.p[3];
    s.w1 = s.w0;
    s.list = route + a->tiles_at;
    s.pairs = route + a->pairs_at;
    s.act = (DEV const u32 *)b.p[2];
    s.x = a->source == SRC_FLOAT ? (DEV const float *)b.p[1] : (DEV const float *)0;
    s.n_in = a->n_in;
    s.x_stride = a->x_stride;
    s.per = a->per;
    s.y = (DEV float *)b.p[4];
    s.y_stride = a->y_stride;
    share_units(at, s.list[0] * s.jobs, &s.from, &s.to);
    twin_typed(at, a->type, false, &s, shm);
}
