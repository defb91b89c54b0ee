/* One to three products of 5 to 128 rows, of types q4_0, q8_0, q4_k and q6_k, from act rows: dense_1, _2, _4 take 8, 16, 32 rows at a time.
 *
 * A SIMD group owns a segment of 256 inputs of one tile of rows, whose integers stay in its registers as the matrix tile's columns, and lets its panels'
 * weights pass: they come by a ring of its own, several tiles ahead (with loads into registers one tile ahead a tile took as long as memory did). Nothing is
 * staged but the columns' scales, by each SIMD group its own: barriers stand only where the segments' sums meet, for several panels at once.
 *
 * A unit is a panel of 16 outputs for one tile of rows; a group takes a contiguous share of units, a few panels of one matrix at a time (a batch). More
 * segments than SIMD groups: in rounds of 8, each with the columns loaded anew; half as many or fewer: two or four panels at once.
 *
 *   shared memory: for each SIMD group its ring (marks, slots; none in a PS_METAL build) | scales [8 SIMD groups][2][8 blocks][columns] |
 *                  sums [panels of a batch][segments][columns][20] */

enum { DENSE_COL = 20 }; /* words of a column's 16 sums: no two of a SIMD group in one bank */

struct dense {
    struct product_shape shape; /* ends, n_pad, n_seg, slot_words, slots: of the SIMD group's own ring */
    u32 panels;         /* of a batch */
    u32 across, first, seg; /* the SIMD group has every 2^across-th panel of a batch from `first` on, segments seg, seg + 8 ...; none where seg is no segment */
    DEV const u32 *act;
    u32 act_words, row0, n_rows; /* of the tile of rows */
    u32 held;           /* whose columns the SIMD group has: DENSE_HELD */
    u32 flip;           /* tile_unknown */
    i32 magic[4];
    u32 slot;           /* the next that is taken */
    SHM u32 *own;       /* the SIMD group's ring */
    SHM u32 *scales;    /* its scales */
    SHM float *sums;
};

#define DENSE_HELD(row0, seg) ((row0) << 20 | (seg))

/* GPU_TILE_BYTES of these types, which is a chain of branches. */
KFN u32 dense_bytes(u32 type)
{
    return type == GT_Q4_0 ? GPU_TILE_BYTES(GT_Q4_0) : type == GT_Q8_0 ? GPU_TILE_BYTES(GT_Q8_0) : type == GT_Q4_K ? GPU_TILE_BYTES(GT_Q4_K) : GPU_TILE_BYTES(GT_Q6_K);
}

KFN u32 most_u32(u32 a, u32 b) { return a > b ? a : b; }

/* As product_shape_of, in fewer instructions: at few rows a launch's begin is a good part of it. */
KFN void dense_shape(CON const struct product_args *a, const u32 n8, THR struct product_shape *s)
{
    u32 most = dense_bytes(a->type[0]), second = a->n_mats > 1u ? 1u : 0u, third = a->n_mats > 2u ? 1u : 0u;
    most = most_u32(most_u32(most, second * dense_bytes(a->type[1])), third * dense_bytes(a->type[2]));
    s->n_pad = GPU_PAD(a->n_in);
    s->n_seg = s->n_pad / GPU_SEG;
    s->ends[0] = panels_of(a->n_out[0]);
    s->ends[1] = s->ends[0] + second * panels_of(a->n_out[1]);
    s->ends[2] = s->ends[1] + third * panels_of(a->n_out[2]);
    s->split = true;
    s->slot_words = most / 4u;
    s->slots = GPU_DENSE_SLOTS(8u * n8, most);
}

/* ---- weights ---- */

/* The weight tiles that a SIMD group fetches: segment seg of the panels of a piece, one after another, then of the next segment that is its own. A piece is
 * what a share has of one matrix and tile of rows; where there are several rounds, a batch of that. */
struct dense_walk {
    u32 unit, end, p;        /* the next piece: its first unit, panel of all matrices. end: of the share */
    u32 n;                   /* panels of this one that are the SIMD group's */
    u32 seg, left;           /* segment, panels of the piece that are still to come */
    u32 bytes, step;         /* of a tile, of a panel */
    DEV const u8 *base, *w;  /* the first of them, the next tile */
};

/* Panels of matrix m from p on, of which `most` are there. */
KFN u32 dense_run_length(THR const struct dense *s, u32 m, u32 p, u32 most)
{
    return least_u32(most, (m == 0u ? s->shape.ends[0] : m == 1u ? s->shape.ends[1] : s->shape.ends[2]) - p);
}

/* The first piece from the walk's unit on that has a panel for the SIMD group, if there is one. */
KFN void dense_walk_piece(CON const struct product_args *a, struct bufs b, THR const struct dense *s, THR struct dense_walk *f)
{
    f->left = 0u;
    NO_UNROLL
    while (f->left == 0u && f->unit < f->end) {
        struct product_mat m;
        product_mat_of(a, b, &s->shape, f->p, &m);
        u32 n = dense_run_length(s, m.m, f->p, f->end - f->unit);
        if (s->shape.n_seg > GPU_SIMDS)
            n = least_u32(n, s->panels);
        f->bytes = dense_bytes(m.type);
        f->step = s->shape.n_seg * f->bytes;
        f->base = m.w + (u64)(m.panel + s->first) * f->step;
        f->step <<= s->across;
        f->n = f->left = (n + (1u << s->across) - 1u - s->first) >> s->across;
        f->seg = s->seg;
        f->w = f->base + f->seg * f->bytes;
        f->unit += n;
        f->p += n;
        f->p = f->p == s->shape.ends[2] ? 0u : f->p;
    }
}

/* The walk's tile on its way into a slot. */
KFN void dense_fetch(struct at at, CON const struct product_args *a, struct bufs b, THR const struct dense *s, THR struct dense_walk *f, u32 slot)
{
    if (f->left == 0u)
        return;
#if PS_METAL
    (void)at, (void)slot;
#else
    ring_fetch_own(at, s->own, slot, RING_MARKS + slot * s->shape.slot_words, f->w, f->bytes);
#endif
    f->w += f->step;
    f->left--;
    if (f->left)
        return;
    f->seg += GPU_SIMDS;
    if (f->seg < s->shape.n_seg) {
        f->left = f->n;
        f->w = f->base + f->seg * f->bytes;
        return;
    }
    dense_walk_piece(a, b, s, f);
}

/* A block joins an output's sums. d, e: its scale; K types: sub-scale and minimum, or both sub-scales. sum: q4_k:
 * dx times that of the column's integers. less: what one of the weight's integers counts in c and h (TYPE_FLIPPED). */
KFN void dense_add(const u32 type, const float less, float d, float e, i32 c, i32 h, float dx, float sum, THR float *p,
                   THR float *low)
{
    if (type == GT_Q4_K) { /* the sub-scale times the integer is exact: at most 7,936,992; so is that times the magic */
        *p = EX_FMA(EX_FMA(d, EX_FLOAT((u32)c), d * -EX_MAGIC), dx, *p);
        *low = EX_FMA(e, sum, *low);
        return;
    }
    float f = less < 1.0f ? EX_FMA(EX_FLOAT((u32)c), less, EX_MAGIC * -less) : EX_FLOAT((u32)c) - EX_MAGIC; /* exact */
    if (TYPE_IS_32(type)) {
        *p = EX_FMA(f, d * dx, *p);
        if (TYPE_HAS_MIN(type))
            *low = EX_FMA(e, sum, *low);
    } else if (type != GT_Q6_K) { /* the sub-scale times the integer is exact: at most 7,936,992 */
        *p = EX_FMA(d * f, dx, *p);
        *low = EX_FMA(e, sum, *low);
    } else { /* exact: at most 16,646,144 < 2^24 */
        float g = less < 1.0f ? EX_FMA(EX_FLOAT((u32)h), less, EX_MAGIC * -less) : EX_FLOAT((u32)h) - EX_MAGIC;
        f = EX_FMA(e, g, d * f);
        *p = EX_FMA(f, dx, *p);
    }
}

/* The scales of a lane's columns 2t, 2t + 1 of each 8, in one block. */
KFN void dense_scales(struct at at, const u32 n8, SHM const u32 *block, THR float *v)
{
    if (n8 == 1u) {
        w2 one = load8(block + 2u * (at.lane & 3u));
        v[0] = EX_FLOAT(one.x);
        v[1] = EX_FLOAT(one.y);
        return;
    }
    UNROLL
    for (u32 j = 0; j < n8; j += 2u) {
        w4 two = load16(block + 8u * j + 4u * (at.lane & 3u));
        v[2u * j] = EX_FLOAT(two.x);
        v[2u * j + 1u] = EX_FLOAT(two.y);
        v[2u * j + 2u] = EX_FLOAT(two.z);
        v[2u * j + 3u] = EX_FLOAT(two.w);
    }
}

/* A block's scales of output g (r 0) or g + 8 (r 1). */
KFN void dense_scale(const u32 type, THR const struct tile_pair *t, const u32 k, const u32 r, THR float *d, THR float *e)
{
    *e = 0.0f;
    if (TYPE_IS_32(type)) {
        *d = half_value(t->d[r] >> 16u * k & 0xFFFFu);
        if (TYPE_HAS_MIN(type))
            *e = half_value(t->m[r] >> 16u * k & 0xFFFFu);
    } else if (type != GT_Q6_K) {
        *d = byte_value(t->d[r], k);
        *e = byte_value(t->m[r], k);
    } else {
        *d = signed_byte_value(t->d[r], 2u * k);
        *e = signed_byte_value(t->d[r], 2u * k + 1u);
    }
}

/* The same; of q4_k from the bytes of four blocks, whose number i is meant. */
KFN void dense_scale_k(const u32 type, THR const struct tile_pair *t, const u32 k, const u32 i, i32 magic, const u32 r,
                       THR float *d, THR float *e)
{
    if (type == GT_Q4_K) {
        *d = byte_float(t->d[r], i, magic, 0.0f);
        *e = byte_float(t->m[r], i, magic, 0.0f);
    } else if (type == GT_Q6_K) {
        *d = byte_float(t->d[r] ^ 0x80808080u, 2u * k, magic, 128.0f);
        *e = byte_float(t->d[r] ^ 0x80808080u, 2u * k + 1u, magic, 128.0f);
    } else {
        dense_scale(type, t, k, r, d, e);
    }
}

/* v[4 j ..] = the tile's sums for columns 8 j.., as a matrix tile has them. */
KFN void dense_sums(struct at at, const u32 n8, const u32 type, WGT const u32 *w, THR const w4 *both,
                    SHM const u32 *scales, THR const struct dense *s, THR float *v)
{
    float low[4 * 4];
    UNROLL
    for (u32 i = 0; i < 4u * n8; i++)
        v[i] = low[i] = 0.0f;
    UNROLL
    for (u32 ch = 0; ch < 4u; ch++) {
        struct tile_pair t;
        tile_words_flipped(at, type, w, ch, s->flip, t.a);
        if (type == GT_Q4_K)
            tile_bytes(at, w, ch / 2u, &t);
        else
            tile_scales(at, type, w, ch, &t);
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            float d[2], e[2], dx[2 * 4], sum[2 * 4];
            dense_scale_k(type, &t, k, 2u * (ch % 2u) + k, s->magic[0], 0u, &d[0], &e[0]);
            dense_scale_k(type, &t, k, 2u * (ch % 2u) + k, s->magic[0], 1u, &d[1], &e[1]);
            dense_scales(at, n8, scales + (2u * ch + k) * 8u * n8, dx);
            if (type == GT_Q4_K)
                dense_scales(at, n8, scales + (2u * ch + k + 8u) * 8u * n8, sum);
            UNROLL
            for (u32 j = 0; j < n8; j++) {
                u32 b[2 * TILE_COLS];
                i32 c[4], h[4] = {0, 0, 0, 0};
                columns_b(both + (j * 4u + ch) * TILE_COLS, k, b);
                if (type == GT_Q6_K) {
                    tile_16_from(at, c, t.a[k][0], t.a[k][1], b, s->magic);
                    tile_16_from(at, h, t.a[k][2], t.a[k][3], b + TILE_COLS, s->magic);
                } else if (type == GT_Q4_K) {
                    tile_u_from(at, c, t.a[k], b, s->magic);
                } else {
                    tile_s_from(at, c, t.a[k], b, s->magic);
                }
                UNROLL
                for (u32 i = 0; i < 4u; i++)
                    dense_add(type, 1.0f / TYPE_FLIPPED(type), d[i / 2u], e[i / 2u], c[i], h[i], dx[2u * j + i % 2u],
                              type == GT_Q4_K ? sum[2u * j + i % 2u] : 0.0f, &v[4u * j + i], &low[4u * j + i]);
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < 4u * n8; i++)
        v[i] = tile_end(type, w, (at.lane >> 2) + (i % 4u < 2u ? 0u : 8u), v[i], low[i]);
}

/* ---- a batch ---- */

/* The columns of a segment into registers; into shared memory their scales, and those times the sums of the integers. A column that is not there is
 * the last one again. */
KFN void dense_columns(struct at at, const u32 n8, THR const struct dense *s, u32 seg, THR w4 *both)
{
    u32 last = s->n_rows ? s->n_rows - 1u : 0u, words = s->shape.n_pad / 4u, blocks = s->shape.n_pad / 32u;
    UNROLL
    for (u32 j = 0; j < n8; j++)
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++) {
            DEV const u32 *q = s->act + (u64)(s->row0 + least_u32(8u * j + tile_col(at, i), last)) * s->act_words + seg * 64u + tile_word(at) * 4u;
            UNROLL
            for (u32 ch = 0; ch < 4u; ch++)
                both[(j * 4u + ch) * TILE_COLS + i] = load16(q + ch * 16u);
        }
    SIMD_BARRIER(at); /* what stood there has been read */
    UNROLL
    for (u32 i0 = 0; i0 < 16u * n8; i0 += 32u) {
        u32 i = least_u32(i0 + at.lane, 16u * n8 - 1u), c = i & (8u * n8 - 1u), b = i / (8u * n8) * 4u; /* four blocks of a column */
        u32 place = n8 == 1u ? c : c / 16u * 16u + c % 8u / 2u * 4u + c / 8u % 2u * 2u + c % 2u; /* dense_scales */
        DEV const u32 *from = s->act + (u64)(s->row0 + least_u32(c, last)) * s->act_words + words + seg * 8u + b;
        w4 dx = load16(from), sum = load16(from + blocks);
        UNROLL
        for (u32 k = 0; k < 4u; k++) {
            s->scales[(b + k) * 8u * n8 + place] = few_word(dx, k);
            s->scales[(b + k + 8u) * 8u * n8 + place] = EX_BITS(EX_FLOAT(few_word(dx, k)) * (float)(i32)few_word(sum, k));
        }
    }
    SIMD_BARRIER(at);
}

/* The next n segments' sums, left to right, of a thread's outputs. */
KFN void dense_join(const u32 each, const u32 n, const u32 size, SHM const float *sums, THR float *total)
{
    UNROLL
    for (u32 k = 0; k < n; k++)
        UNROLL
        for (u32 j = 0; j < each; j++)
            total[j] = total[j] + sums[k * size + j * 16u * DENSE_COL];
}

/* The outputs of n panels from m's on, whose sums are on their way. Output row fastest: whole lines are written. */
KFN void dense_put(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, THR const struct dense *s, THR const struct product_mat *m, u32 n)
{
    const u32 each = n8 > 2u ? n8 / 2u : 1u, size = 8u * n8 * DENSE_COL; /* outputs of a thread and panel */
    u32 out = m->panel * GPU_PANEL + (at.id & 15u), col = at.id / 16u, n_seg = s->shape.n_seg;
    bool add = a->add && m->m == 0u;
    DEV float *y = m->y + (u64)(s->row0 + col) * m->y_stride + out, *x = 0;
    if (add)
        x = (DEV float *)b.p[12] + (u64)(s->row0 + col) * a->res_stride + out;
    SHM const float *sums = s->sums + (n8 == 1u ? col & 7u : col) * DENSE_COL + (at.id & 15u);
    float before[2] = {0.0f, 0.0f};
    BARRIER(at);
    NO_UNROLL
    for (u32 i = 0; i < n; i++) {
        float total[2] = {0.0f, 0.0f};
        bool there[2];
        UNROLL
        for (u32 j = 0; j < each; j++) {
            there[j] = col + j * 16u < s->n_rows && out < m->n_out;
            if (add && there[j]) /* no other thread has it */
                before[j] = x[j * 16u * a->res_stride];
        }
        NO_UNROLL
        for (u32 left = n_seg; left;) {
            if (left >= GPU_SIMDS) {
                dense_join(each, GPU_SIMDS, size, sums, total);
                sums += GPU_SIMDS * size;
                left -= GPU_SIMDS;
            } else {
                dense_join(each, 1u, size, sums, total);
                sums += size;
                left--;
            }
        }
        UNROLL
        for (u32 j = 0; j < each; j++)
            if (there[j]) {
                float v = m->bias ? total[j] + m->bias[out] : total[j];
                y[j * 16u * m->y_stride] = v;
                if (add)
                    x[j * 16u * a->res_stride] = before[j] + v;
            }
        out += GPU_PANEL;
        y += GPU_PANEL;
        if (add)
            x += GPU_PANEL;
    }
    BARRIER(at);
}

/* n panels of one matrix, from m's on, in batches: the tiles that are the SIMD group's, one segment after another. f: the walk that fetches. */
KFN void dense_run(struct at at, const u32 n8, const u32 type, CON const struct product_args *a, struct bufs b, THR struct dense *s, THR struct product_mat *m, u32 n,
                   THR struct dense_walk *f, THR w4 *both)
{
    const u32 size = 8u * n8 * DENSE_COL;
    u32 n_seg = s->shape.n_seg;
    NO_UNROLL
    while (n) {
        u32 k = least_u32(n, s->panels);
        NO_UNROLL
        for (u32 seg = s->seg; seg < n_seg; seg += GPU_SIMDS) {
            SHM float *to = s->sums + (s->first * n_seg + seg) * size + 2u * (at.lane & 3u) * DENSE_COL + (at.lane >> 2);
            if (s->held != DENSE_HELD(s->row0, seg))
                dense_columns(at, n8, s, seg, both);
            s->held = DENSE_HELD(s->row0, seg);
            NO_UNROLL
            for (u32 i = s->first; i < k; i += 1u << s->across) {
                float v[4 * 4];
#if PS_METAL
                WGT const u32 *w = (WGT const u32 *)(m->w + (u64)((m->panel + i) * n_seg + seg) * GPU_TILE_BYTES(type));
#else
                ring_take_own(at, s->own, s->slot);
                WGT const u32 *w = s->own + RING_MARKS + s->slot * s->shape.slot_words;
#endif
                dense_sums(at, n8, type, w, both, s->scales, s, v);
                SIMD_BARRIER(at);
                dense_fetch(at, a, b, s, f, s->slot);
                s->slot = s->slot + 1u == s->shape.slots ? 0u : s->slot + 1u;
                UNROLL
                for (u32 j = 0; j < 4u * n8; j++)
                    to[(j / 4u * 8u + (j & 1u)) * DENSE_COL + (j & 2u) * 4u] = v[j];
                to += n_seg * size << s->across;
            }
        }
        dense_put(at, n8, a, b, s, m, k);
        m->panel += k;
        n -= k;
    }
}

/* Where the parts of shared memory are. */
KFN void dense_begin(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, SHM u32 *shm, THR struct dense *s)
{
    dense_shape(a, n8, &s->shape);
    s->act_words = GPU_ACT_BYTES(a->n_in) / 4u;
    s->panels = GPU_DENSE_PANELS(a->n_in);
    s->act = (DEV const u32 *)b.p[1];
    s->held = ~0u;
    s->slot = 0u;
    s->across = s->shape.n_seg > 4u ? 0u : s->shape.n_seg > 2u ? 1u : 2u;
    s->seg = at.simd;
    s->first = 0u;
    NO_UNROLL
    while (s->seg >= s->shape.n_seg && s->first + 1u < 1u << s->across) {
        s->seg -= s->shape.n_seg;
        s->first++;
    }
    tile_unknown((a->rows >> 28) * at.lane, s->magic, &s->flip);
    u32 ring = PS_METAL ? 0u : RING_MARKS + s->shape.slots * s->shape.slot_words;
    s->own = shm + at.simd * ring;
    s->scales = shm + GPU_SIMDS * ring + at.simd * 128u * n8;
    s->sums = (SHM float *)(shm + GPU_SIMDS * (ring + 128u * n8));
}

KFN void dense(struct at at, const u32 n8, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    u32 unit, end, p;
    struct dense s;
    struct dense_walk f;
    w4 both[4 * 4 * TILE_COLS];
    dense_begin(at, n8, a, b, shm, &s);
    share_units(at, (a->rows + 8u * n8 - 1u) / (8u * n8) * s.shape.ends[2], &unit, &end);
    u32 tile = split_u32(unit, s.shape.ends[2], &p);
    f.unit = unit;
    f.end = end;
    f.p = p;
    f.left = 0u;
    if (s.seg < s.shape.n_seg)
        dense_walk_piece(a, b, &s, &f);
#if !PS_METAL
    ring_open_own(at, s.own);
    NO_UNROLL
    for (u32 i = 0; i < s.shape.slots; i++)
        dense_fetch(at, a, b, &s, &f, i);
#endif
    IN_TURN(at);
    u32 all = ((DEV const u32 *)b.p[0])[IN_ROWS + a->which]; /* fewer than the launch was made for, maybe */
    NO_UNROLL
    while (unit < end) {
        struct product_mat m;
        product_mat_of(a, b, &s.shape, p, &m);
        u32 n = dense_run_length(&s, m.m, p, end - unit);
        s.row0 = tile * 8u * n8;
        s.n_rows = s.row0 < all ? least_u32(8u * n8, all - s.row0) : 0u;
        s.row0 = s.n_rows ? s.row0 : 0u; /* no row of this tile: row 0 is read instead, and nothing written */
        FOR_FEW_TYPE(m.type, dense_run(at, n8, type, a, b, &s, &m, n, &f, both))
        unit += n;
        p += n;
        if (p == s.shape.ends[2]) {
            p = 0u;
            tile++;
        }
    }
}

KFN void k_dense_1(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    dense(at, 1, a, b, shm);
}

KFN void k_dense_2(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    dense(at, 2, a, b, shm);
}

KFN void k_dense_4(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    dense(at, 4, a, b, shm);
}
