/* The chosen experts of 3 to 256 rows. Where many experts have a few rows each the arithmetic's instructions are the limit, not the memory: so here a SIMD
 * group takes two weight tiles at a time against the same activations, whose integers and scales it reads once: gate and up of a panel
 * (experts_in_twin), or two panels that follow each other (experts_out_twin). The sums of a panel stay in its registers from the first segment to the last: no
 * barrier, no sums in shared memory. A job is a tile of the route lists (up to 8 pairs of one expert) times such a pair of panels.
 *
 * Weights fill the way from memory to an SM: what is asked for behind them, a word of a list or the next instructions, waits for them, 2 us and more. So a SIMD
 * group reads its part of the list once, lane by lane; half of its ring is filled before activations are staged, half behind them; and the code is short.
 *
 * A group takes a contiguous share of jobs, SIMD group s of it every 8th from s on. The pairs of as many list tiles as fit are staged together: all that the share
 * touches, mostly, so that barriers stand at its begin only. Two whole list tiles fit: a group whose second list tile had to wait for its first one's jobs came last of all.
 *
 *   shared memory: staged columns (k_stage.h), in the filling before each of the first eight a SIMD group's marks | their scales | for each SIMD group two
 *   slots of two weight tiles (none in a PS_METAL build)
 *
 * Lane 4g + t has rows g and g + 8 of both tiles, and columns 2t, 2t + 1; of a tile with at most four pairs column t, as tile_sums_4. */

enum {
    TWIN_SLOTS = 2,  /* fetched ahead; without a ring the walk is where the arithmetic is */
    TWIN_FIRST = 1,  /* of them, asked for before the activations are */
    TWIN_COLUMNS = 2 /* slots, marks only, of the columns that a SIMD group has come */
};

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
    SHM u32 *stage, *scales;
    u32 ring;               /* where a SIMD group's slots begin, words behind its marks */
    i32 magic[4];           /* MAGIC_BITS */
    u32 flip;               /* TILE_FLIP */
    u32 tile0, expert, word; /* the list tile of its first job; a lane's: of tile0 + lane, as the list has them */
};

/* A SIMD group's jobs, in turn: job j of list tile `tile`. */
struct twin_at {
    u32 unit, tile, j;
};

/* The weight tiles that it fetches next. */
struct twin_walk {
    struct twin_at at;
    u32 seg;
    DEV const u8 *w0, *w1;
};

/* All that a SIMD group will need of the list, mostly. */
KFN void twin_list(struct at at, THR struct twin *s)
{
    u32 rest, i;
    s->tile0 = split_u32(s->from, s->jobs, &rest);
    i = least_u32(s->tile0 + at.lane, s->list[0] - 1u);
    s->expert = s->list[1u + 2u * i];
    s->word = s->list[2u + 2u * i];
    tile_unknown(s->word >> 28, s->magic, &s->flip);
}

KFN void twin_tile(struct at at, THR const struct twin *s, u32 tile, THR struct experts_tile *t)
{
    u32 i = tile - s->tile0, word = shuffle_from(at, s->word, i & 31u);
    t->expert = shuffle_from(at, s->expert, i & 31u);
    t->first = word & 0xFFFFFFu;
    t->n_pairs = word >> 24;
    if (i >= 32u)
        experts_tile_of(s->list, tile, t);
}

KFN void twin_on(THR const struct twin *s, u32 d, THR struct twin_at *p)
{
    p->unit += d;
    p->j += d;
    while (p->j >= s->jobs) {
        p->j -= s->jobs;
        p->tile++;
    }
}

KFN void twin_walk_job(struct at at, THR const struct twin *s, THR struct twin_walk *f)
{
    struct experts_tile t;
    twin_tile(at, s, f->at.tile, &t);
    u64 panel = (u64)t.expert * s->n_panels + f->at.j * s->width;
    f->seg = 0u;
    f->w0 = s->w0 + panel * (s->n_seg * s->bytes);
    f->w1 = s->w1 + panel * (s->n_seg * s->bytes);
    if (s->width == 2u && 2u * f->at.j + 1u < s->n_panels) /* the last panel may be alone: twice the same then */
        f->w1 += s->n_seg * s->bytes;
}

KFN void twin_fetch(struct at at, THR const struct twin *s, THR struct twin_walk *f, SHM u32 *own, u32 slot)
{
    if (f->at.unit >= s->to)
        return;
#if PS_METAL
    (void)at, (void)own, (void)slot;
#else
    ring_fetch_two(at, own, slot, s->ring + slot * (s->bytes / 2u), f->w0, f->w1, s->bytes);
#endif
    f->w0 += s->bytes;
    f->w1 += s->bytes;
    f->seg += 1u;
    if (f->seg < s->n_seg)
        return;
    twin_on(s, GPU_SIMDS, &f->at);
    if (f->at.unit < s->to)
        twin_walk_job(at, s, f);
}

/* Slots [slot, end) for the first time. */
KFN void twin_fill(struct at at, THR const struct twin *s, THR struct twin_walk *f, SHM u32 *own, u32 slot, u32 end)
{
#if PS_METAL
    (void)at, (void)s, (void)f, (void)own, (void)slot, (void)end;
#else
    for (; slot < end; slot++)
        twin_fetch(at, s, f, own, slot);
#endif
}

/* Where the next two tiles are for the arithmetic; they are there. */
KFN void twin_take(struct at at, const u32 type, THR const struct twin *s, THR const struct twin_walk *f, SHM u32 *own, u32 slot, WGT const u32 *THR *w)
{
#if PS_METAL
    (void)at, (void)type, (void)s, (void)own, (void)slot;
    w[0] = (WGT const u32 *)f->w0;
    w[1] = (WGT const u32 *)f->w1;
#else
    (void)f;
    ring_take_own(at, own, slot);
    w[0] = own + s->ring + slot * (GPU_TILE_BYTES(type) / 2u);
    w[1] = w[0] + GPU_TILE_BYTES(type) / 4u;
#endif
}

/* The share of output i of a tile that one block gives: rules 2 to 4. c: the sum of products from MAGIC_BITS on
 * (TYPE_FLIPPED times); h: q6_k's second half; d, m: as tile_pair has them (k: block, q4_k: byte); sum: dx times
 * the sum of the column's integers. */
KFN void twin_add(const u32 type, const u32 k, u32 d, u32 m, i32 c, i32 h, float dx, float sum, i32 magic, THR float *p,
                  THR float *low)
{
    if (type == GT_Q4_K) { /* the sub-scale times the integer is exact: at most 7,936,992; so is that times the magic */
        float s = byte_float(d, k, magic, 0.0f);
        *p = EX_FMA(EX_FMA(s, EX_FLOAT((u32)c), s * -EX_MAGIC), dx, *p);
        *low = EX_FMA(byte_float(m, k, magic, 0.0f), sum, *low);
        return;
    }
    const float less = 1.0f / TYPE_FLIPPED(type);
    float f = EX_FLOAT((u32)c) - EX_MAGIC;
    if (less < 1.0f) /* exact */
        f = EX_FMA(EX_FLOAT((u32)c), less, EX_MAGIC * -less);
    if (TYPE_IS_32(type)) {
        *p = EX_FMA(f, half_value(d >> 16u * k & 0xFFFFu) * dx, *p);
    } else { /* q6_k; exact: at most 16,646,144 < 2^24 */
        d ^= 0x80808080u;
        f = byte_float(d, 2u * k, magic, 128.0f) * f;
        f = EX_FMA(byte_float(d, 2u * k + 1u, magic, 128.0f), EX_FMA(EX_FLOAT((u32)h), less, EX_MAGIC * -less), f);
        *p = EX_FMA(f, dx, *p);
    }
}

/* twin_sums' share of blocks 2 two and 2 two + 1. q4_k: pair `of` of the tile's four blocks `four`. */
KFN void twin_blocks(struct at at, const u32 type, const u32 n, WGT const u32 *THR const *w,
                     SHM const u32 *THR const *q, SHM const u32 *s0, SHM const u32 *s1, THR const i32 *magic, u32 flip,
                     u32 four, u32 two, const u32 of, THR float *p, THR float *low)
{
    struct tile_pair t[2];
    w4 both[TILE_COLS];
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++)
        both[i] = load16(q[i] + two * 16u);
    UNROLL
    for (u32 m = 0; m < 2u; m++) {
        tile_words_flipped(at, type, w[m], two, flip, t[m].a);
        if (type == GT_Q4_K)
            tile_bytes(at, w[m], four, &t[m]);
        else
            tile_scales(at, type, w[m], two, &t[m]);
    }
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 b[2 * TILE_COLS];
        columns_b(both, k, b);
        const u32 to = 2u * GPU_TWIN_COLS(type) * (2u * two + k);
        w2 c0 = load8(s0 + to), c1 = n == 2u ? c0 : load8(s1 + to);
        float dx0 = EX_FLOAT(c0.x), dx1 = EX_FLOAT(c1.x);
        UNROLL
        for (u32 m = 0; m < 2u; m++) {
            i32 c[4], h[4] = {0, 0, 0, 0};
            if (type == GT_Q6_K) {
                tile_16_from(at, c, t[m].a[k][0], t[m].a[k][1], b, magic);
                tile_16_from(at, h, t[m].a[k][2], t[m].a[k][3], b + TILE_COLS, magic);
            } else if (type == GT_Q4_K) {
                tile_u_from(at, c, t[m].a[k], b, magic);
            } else {
                tile_s_from(at, c, t[m].a[k], b, magic);
            }
            UNROLL
            for (u32 i = 0; i < n; i++) {
                u32 r = n == 2u ? i : i / 2u, at_c = n == 2u ? 2u * i : i; /* row g or g + 8 */
                bool second = n == 4u && i % 2u;
                twin_add(type, type == GT_Q4_K ? 2u * of + k : k, t[m].d[r], t[m].m[r], c[at_c], h[at_c],
                         second ? dx1 : dx0, EX_FLOAT(second ? c1.y : c0.y), magic[0], &p[m * n + i], &low[m * n + i]);
            }
        }
    }
}

/* total += the sums of two tiles, w[0] and w[1]. n: outputs of a lane in each: 2 (row g, row g + 8 of column t), or 4 (row g of two columns, row
 * g + 8 of both). q: integers of the columns that the lane brings to the matrix tile (TILE_COLS), from its word on; s0, s1: scales and sums of its columns. */
KFN void twin_sums(struct at at, const u32 type, const u32 n, WGT const u32 *THR const *w, SHM const u32 *THR const *q,
                   SHM const u32 *s0, SHM const u32 *s1, THR const i32 *magic, u32 flip, THR float *total)
{
    float p[8], low[8];
    UNROLL
    for (u32 i = 0; i < 2u * n; i++)
        p[i] = low[i] = 0.0f;
    const u32 each = type == GT_Q4_K ? 2u : 1u; /* q4_k: four scales are a word */
    NO_UNROLL
    for (u32 two0 = 0; two0 < 4u; two0 += each)
        UNROLL
        for (u32 of = 0; of < each; of++)
            twin_blocks(at, type, n, w, q, s0, s1, magic, flip, two0 / 2u, two0 + of, of, p, low);
    UNROLL
    for (u32 i = 0; i < 2u * n; i++) {
        u32 m = i / n, r = n == 2u ? i % n : i % n / 2u;
        total[i] = total[i] + tile_end(type, w[m], (at.lane >> 2) + 8u * r, p[i], low[i]);
    }
}

/* One job: the SIMD group's sums of `n` outputs a lane and tile, then out. base: the staged column of the list tile's first pair; pair: lane i has that of
 * column i. */
KFN void twin_job(struct at at, const u32 type, const u32 n, const bool in, THR const struct twin *s, u32 last, u32 j, u32 base, u32 pair, SHM u32 *own,
                  THR struct twin_walk *f, THR u32 *slot)
{
    u32 g = at.lane >> 2, l = at.lane & 3u, step = 16u * GPU_TWIN_COLS(type);
    u32 c0 = n == 2u ? l : 2u * l, c1 = c0 + 1u;
    SHM const u32 *q[TILE_COLS];
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++) {
        u32 col = base + least_u32(n == 2u ? tile_col_of_four(at) : tile_col(at, i), last);
        q[i] = s->stage + col * STAGE_STRIDE(s->n_pad) + tile_word(at) * 4u;
    }
    SHM const u32 *s0 = s->scales + 2u * (base + least_u32(c0, last)), *s1 = s->scales + 2u * (base + least_u32(c1, last));
    float total[8];
    u32 pairs[2];
    pairs[0] = shuffle_from(at, pair, base + least_u32(c0, last));
    pairs[1] = n == 2u ? pairs[0] : shuffle_from(at, pair, base + least_u32(c1, last));
    UNROLL
    for (u32 i = 0; i < 2u * n; i++)
        total[i] = 0.0f;
    NO_UNROLL
    for (u32 seg = 0; seg < s->n_seg; seg++) {
        WGT const u32 *w[2];
        twin_take(at, type, s, f, own, *slot, w);
        twin_sums(at, type, n, w, q, s0, s1, s->magic, s->flip, total);
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
        DEV float *y = s->y + (u64)pairs[n == 4u && i % 2u ? 1 : 0] * s->y_stride;
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

/* What the arithmetic needs of the sum of a block's integers, in its place: with a minimum dx times it. */
KFN u32 twin_sum(const u32 type, u32 d, u32 sum)
{
    return type == GT_Q4_K ? EX_BITS(EX_FLOAT(d) * (float)(i32)sum) : sum;
}

/* Columns [0, n) from act rows, on their way: the integers as they are, and of two blocks a lane scales and sums. SIMD group s has columns s and s + 8. */
struct twin_acts {
    u32 d[4], sum[4];
};

KFN void twin_ask_acts(struct at at, THR const struct twin *s, u32 row, u32 n, SHM u32 *own, THR struct twin_acts *v)
{
    u32 blocks = s->n_pad / 32u;
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 col = at.simd + GPU_SIMDS * k;
        DEV const u32 *from = s->act + (u64)shuffle_from(at, row, col) * (GPU_ACT_BYTES(s->n_in) / 4u);
        SHM u32 *to = s->stage + col * STAGE_STRIDE(s->n_pad);
        if (col >= n)
            break;
#if PS_METAL
        (void)own;
        for (u32 i = 4u * at.lane; i < s->n_pad / 4u; i += 128u)
            *(SHM w4 *)(to + i) = load16(from + i);
#else
        ring_fetch_own(at, own, TWIN_COLUMNS + k, (u32)(to - own), from, s->n_pad);
#endif
        UNROLL
        for (u32 m = 0; m < 2u; m++)
            if (32u * m + at.lane < blocks) {
                v->d[2u * k + m] = from[8u * blocks + 32u * m + at.lane];
                v->sum[2u * k + m] = from[9u * blocks + 32u * m + at.lane];
            }
    }
}

KFN void twin_put_scale(const u32 type, THR const struct twin *s, u32 col, u32 block, u32 d, u32 sum)
{
    SHM u32 *to = s->scales + 2u * (GPU_TWIN_COLS(type) * block + col);
    to[0] = d;
    to[1] = twin_sum(type, d, sum);
}

KFN void twin_take_acts(struct at at, const u32 type, THR const struct twin *s, u32 row, u32 n, SHM u32 *own, THR const struct twin_acts *v)
{
    u32 blocks = s->n_pad / 32u;
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 col = at.simd + GPU_SIMDS * k;
        DEV const u32 *from = s->act + (u64)shuffle_from(at, row, col) * (GPU_ACT_BYTES(s->n_in) / 4u);
        if (col >= n)
            break;
        UNROLL
        for (u32 m = 0; m < 2u; m++)
            if (32u * m + at.lane < blocks)
                twin_put_scale(type, s, col, 32u * m + at.lane, v->d[2u * k + m], v->sum[2u * k + m]);
        NO_UNROLL
        for (u32 b = 64u + at.lane; b < blocks; b += 32u)
            twin_put_scale(type, s, col, b, from[8u * blocks + b], from[9u * blocks + b]);
#if !PS_METAL
        ring_take_own(at, own, TWIN_COLUMNS + k);
#else
        (void)own;
#endif
    }
}

/* A lane's four floats of piece i, 128 of a row; what fills it up is zeros. */
KFN w4 twin_floats(struct at at, THR const struct twin *s, u32 row, u32 i)
{
    w4 v = {0u, 0u, 0u, 0u};
    u32 e = 128u * i + 4u * at.lane;
    if (e < s->n_in)
        v = load16(s->x + (u64)row * s->x_stride + e);
    return v;
}

/* The same from floats, by rule 1: a piece a SIMD group, the next one on its way. */
KFN void twin_stage_floats(struct at at, const u32 type, THR const struct twin *s, u32 row, u32 n)
{
    u32 pieces = s->n_pad / 128u, i = at.simd, col = 0u;
    w4 v = {0u, 0u, 0u, 0u};
    bool fresh = true;
    NO_UNROLL
    for (u32 k = at.simd; k < n * pieces; k += GPU_SIMDS) {
        while (i >= pieces) {
            i -= pieces;
            col++;
        }
        u32 col1 = col, i1 = i + GPU_SIMDS;
        while (i1 >= pieces) {
            i1 -= pieces;
            col1++;
        }
        if (fresh)
            v = twin_floats(at, s, shuffle_from(at, row, col), i);
        fresh = false;
        w4 next = twin_floats(at, s, shuffle_from(at, row, least_u32(col1, n - 1u)), i1);
        float f[4] = {EX_FLOAT(v.x), EX_FLOAT(v.y), EX_FLOAT(v.z), EX_FLOAT(v.w)}, d;
        i32 sum;
        u32 word = act_quantise_8(at, f, &d, &sum), b = 4u * i + at.lane / 8u;
        s->stage[col * STAGE_STRIDE(s->n_pad) + act_word(b, at.lane % 8u)] = word;
        if (at.lane % 8u == 0u)
            twin_put_scale(type, s, col, b, EX_BITS(d), (u32)sum);
        v = next;
        i = i1;
        col = col1;
    }
}

/* List tiles that are staged together: jobs up to `end`, n pairs from number `first` on; pair: lane i has that of column i. */
struct twin_batch {
    u32 end, first, n, pair;
};

/* From *tile on, which goes behind it. */
KFN void twin_batch_of(struct at at, const u32 type, THR const struct twin *s, THR u32 *tile, THR struct twin_batch *b)
{
    struct experts_tile t;
    twin_tile(at, s, *tile, &t);
    u32 end = (*tile + 1u) * s->jobs, n = t.n_pairs;
    b->first = t.first;
    NO_UNROLL
    for (*tile += 1u; end < s->to; *tile += 1u, n += t.n_pairs, end += s->jobs) {
        twin_tile(at, s, *tile, &t);
        if (n + t.n_pairs > GPU_TWIN_COLS(type))
            break;
    }
    b->end = least_u32(end, s->to);
    b->n = n;
    b->pair = s->pairs[b->first + least_u32(at.lane, n - 1u)];
}

KFN void twin_jobs(struct at at, const u32 type, const bool in, THR struct twin *s, SHM u32 *shm)
{
    u32 stride = STAGE_STRIDE(s->n_pad), slot = 0, rest;

    SHM u32 *own = shm + at.simd * stride; /* its marks, in the filling before a column */
    s->stage = shm + 16;
    s->scales = shm + GPU_TWIN_COLS(type) * stride;
    s->ring = GPU_TWIN_COLS(type) * (stride + s->n_pad / 16u) + at.simd * (TWIN_SLOTS * (GPU_TILE_BYTES(type) / 2u)) - (u32)(own - shm);
#if !PS_METAL
    ring_open_own(at, own); /* takes long, and nothing is known yet */
#endif
    if (in)
        IN_TURN(at);
    share_units(at, s->list[0] * s->jobs, &s->from, &s->to);
    if (s->from >= s->to) { /* nothing for the group */
        if (!in)
            IN_TURN(at);
        return;
    }
    twin_list(at, s);
    struct twin_at p = {s->from, s->tile0, s->from - s->tile0 * s->jobs};
    u32 tile = s->tile0;
    twin_on(s, at.simd, &p);
    struct twin_walk f = {p, 0u, s->w0, s->w1};
    if (p.unit < s->to)
        twin_walk_job(at, s, &f);
    NO_UNROLL
    for (u32 begin = s->from; begin < s->to;) {
        struct twin_batch b;
        struct twin_acts acts;
        twin_batch_of(at, type, s, &tile, &b);
        if (begin != s->from) {
            BARRIER(at);
        } else {
            twin_fill(at, s, &f, own, 0u, TWIN_FIRST);
            if (!in)
                IN_TURN(at);
        }
        u32 row = split_u32(b.pair, s->per, &rest);
        if (s->x)
            twin_stage_floats(at, type, s, row, b.n);
        else
            twin_ask_acts(at, s, row, b.n, own, &acts);
        if (begin == s->from)
            twin_fill(at, s, &f, own, TWIN_FIRST, TWIN_SLOTS);
        if (!s->x)
            twin_take_acts(at, type, s, row, b.n, own, &acts);
        BARRIER(at);
        NO_UNROLL
        for (; p.unit < b.end; twin_on(s, GPU_SIMDS, &p)) {
            struct experts_tile t;
            twin_tile(at, s, p.tile, &t);
            if (t.n_pairs <= 4u)
                twin_job(at, type, 2, in, s, t.n_pairs - 1u, p.j, t.first - b.first, b.pair, own, &f, &slot);
            else
                twin_job(at, type, 4, in, s, t.n_pairs - 1u, p.j, t.first - b.first, b.pair, own, &f, &slot);
        }
        begin = b.end;
    }
}

KFN void twin_typed(struct at at, u32 type, const bool in, THR struct twin *s, SHM u32 *shm)
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
    twin_typed(at, a->type, false, &s, shm);
}
