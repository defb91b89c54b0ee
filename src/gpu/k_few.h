/* Products of few rows, made for latency: few_1, _2, _4, _8 of at most so many, of types q4_0, q8_0, q4_k and q6_k; and what the experts of few rows
 * share with them (k_few_experts.h).
 *
 * At few rows a launch reads each weight once and waits for memory once: a SIMD group asks for all it will need, up to GPU_FEW_TILES tiles (layout.h:
 * 16 outputs x 256 elements), by 16-byte loads into registers, before it waits for anything; no ring. Tiles go to SIMD groups in the order in which
 * they lie, an equal share to each, whatever row or panel they belong to; their sums meet in shared memory and are added left to right.
 *
 * A matrix tile has 8 columns, more than there are rows. Here they are `cols` columns for each of 8 / cols weight tiles:
 *
 *   column   0 .. cols - 1             cols .. 2 cols - 1       ...
 *   holds    the rows, tile 0's part   the rows, tile 1's part  ...   of the activations; for the other tiles zeros
 *
 * so that all tiles add to the same integers and lane 4 g + t ends with two columns of one tile, output g and g + 8: what follows an integer (float,
 * scales, fma in block order) is done once for 8 / cols tiles, each lane its own part. A nibble is used 16 times too large: it needs no shift
 * down, and the factor leaves with the subtraction of the magic number.
 *
 *   shared memory: zeros | staged rows | not of SRC_ACT: norm weights, scales, rows of x | sums [2][tiles of a round][rows][16] */

/* Loads of a tile by each lane; columns for each tile, where longer ones leave fewer tiles; blocks whose integers are kept at a time. */
#define FEW_LOADS(type) ((type) == GT_Q8_0 ? 8u : (type) == GT_Q6_K ? 6u : 4u)
#define FEW_LEAST(type) (FEW_LOADS(type) > 6u ? 8u : FEW_LOADS(type) > 4u ? 4u : 2u)
#define FEW_COLS(type, cols) (FEW_LEAST(type) > (cols) ? FEW_LEAST(type) : (cols))
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 2u
#endif

/* The usual types; any other is no caller's. */
#define FOR_FEW_TYPE(value, CALL)                                                                                \
    switch (value) {                                                                                             \
    case GT_Q4_0: { const u32 type = GT_Q4_0; CALL; break; }                                                     \
    case GT_Q8_0: { const u32 type = GT_Q8_0; CALL; break; }                                                     \
    case GT_Q4_K: { const u32 type = GT_Q4_K; CALL; break; }                                                     \
    default: { const u32 type = GT_Q6_K; CALL; break; }                                                          \
    }

/* ---- weights ---- */

struct few_weights { /* in registers */
    w4 w[16];            /* tile by tile, chunk by chunk */
    w4 scale[2];         /* of rows g and g + 8 of the lane's own tile; K types: sub-scales */
    u32 d[2];            /* K types: scale and minimum of the super-block */
};

/* Tiles beside each other, for 2, 4 or 8 columns each; the one of them that a lane ends with. */
KFN u32 few_beside(u32 cols)
{
    return cols == 2u ? 4u : cols == 4u ? 2u : 1u;
}

KFN u32 few_own(struct at at, u32 cols)
{
    u32 t = at.lane & 3u;
    return cols == 2u ? t : cols == 4u ? t >> 1 : 0u;
}

struct few_from { /* where tiles beside each other lie */
    DEV const u8 *at[4];
};

/* n tiles on their way; `own`: the lane's. One text for all types: were there one for each, their
 * registers would not fit together. */
KFN void few_load(struct at at, const u32 cols, u32 type, u32 n, THR const struct few_from *from, DEV const u8 *own, THR struct few_weights *f)
{
    u32 loads = FEW_LOADS(type), all = n * loads, row = at.lane >> 2;
    DEV const u8 *s = own + loads * 512u + row * 16u, *second = loads == 6u ? from->at[1] - 3072 : from->at[0];
    UNROLL
    for (u32 i = 0; i < (cols == 2u ? 16u : cols == 4u ? 12u : 8u); i++) { /* the most that a type has */
        u32 there = i < all ? 1u : 0u;
        DEV const u8 *w = loads == 4u ? from->at[i / 4u] + i % 4u * 512u : (i < 6u ? from->at[0] : second) + i * 512u;
        f->w[i] = load16_once_if(there, w + at.lane * 16u);
    }
    f->scale[0] = load16_once(s);
    f->scale[1] = load16_once(s + 128);
    f->d[0] = f->d[1] = 0u;
    if (type == GT_Q4_K || type == GT_Q6_K) {
        s = own + loads * 512u + 256u + (type == GT_Q4_K ? row * 4u : row / 2u * 4u);
        f->d[0] = *(DEV const u32 *)s;
        f->d[1] = *(DEV const u32 *)(s + (type == GT_Q4_K ? 32 : 16));
    }
}

/* Weights of the round after this one into the chip's cache, asked for once this one's are on their way: line `first` of those of 128 bytes, and every
 * step-th behind it. */
KFN void few_ahead(DEV const u8 *w, u32 bytes, u32 first, u32 step)
{
    for (u32 i = first * 128u; i < bytes; i += step * 128u)
        prefetch(w + i);
}

/* ---- a tile's integers and its sums ---- */

/* c, h += a chunk (blocks 2 ch and 2 ch + 1) of a tile times a lane's columns: c[4 k ..] block 2 ch + k; h: q6_k's upper 16. Nibbles times 16. */
KFN void few_chunk(struct at at, const u32 type, const u32 ch, THR const w4 *w, THR const w4 *both, THR i32 *c, THR i32 *h)
{
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 b[2 * TILE_COLS], a[4];
        columns_b(both, k, b);
        w4 q = w[type == GT_Q8_0 ? 2u * ch + k : ch];
        if (type == GT_Q8_0) {
            a[0] = q.x;
            a[1] = q.y;
            a[2] = q.z;
            a[3] = q.w;
            tile_s(at, c + 4u * k, a, b);
            continue;
        }
        u32 low = k ? q.z : q.x, high = k ? q.w : q.y;
        if (type != GT_Q6_K) {
            a[0] = low << 4 & 0xF0F0F0F0u;
            a[1] = high << 4 & 0xF0F0F0F0u;
            a[2] = low & 0xF0F0F0F0u;
            a[3] = high & 0xF0F0F0F0u;
            tile_u(at, c + 4u * k, a, b);
            continue;
        }
        w4 up = w[4u + ch / 2u];
        u32 bits = ch % 2u ? (k ? up.w : up.z) : (k ? up.y : up.x);
        a[0] = (low & 0x0F0F0F0Fu) | spread_sixth(bits);
        a[1] = (high & 0x0F0F0F0Fu) | spread_sixth(bits >> 8);
        a[2] = (low >> 4 & 0x0F0F0F0Fu) | spread_sixth(bits >> 16);
        a[3] = (high >> 4 & 0x0F0F0F0Fu) | spread_sixth(bits >> 24);
        UNROLL
        for (u32 i = 0; i < 4u; i++) { /* less 32, in each byte */
            u32 y = a[i] ^ 0x20202020u;
            a[i] = y + (y & 0x20202020u) * 6u;
        }
        tile_16(at, c + 4u * k, a[0], a[1], b);
        tile_16(at, h + 4u * k, a[2], a[3], b + TILE_COLS);
    }
}

KFN u32 few_word(w4 v, const u32 i)
{
    return i == 0u ? v.x : i == 1u ? v.y : i == 2u ? v.z : v.w;
}

/* Block b of a lane's column joins output g (r 0) or g + 8 (r 1): its integer's bits, the column's scale and sum. */
KFN void few_add(const u32 type, const u32 b, THR const struct few_weights *f, const u32 r, i32 c, i32 h, float dx, i32 sum, THR float *p, THR float *low)
{
    if (type == GT_Q4_0 || type == GT_Q8_0) {
        u32 d = few_word(f->scale[r], b / 2u) >> b % 2u * 16u & 0xFFFFu;
        float dot = type == GT_Q8_0 ? EX_FLOAT((u32)c) - EX_MAGIC : EX_FMA(EX_FLOAT((u32)c), 0.0625f, EX_MAGIC * -0.0625f); /* exact */
        *p = EX_FMA(dot, half_value(d) * dx, *p);
    } else if (type == GT_Q4_K) {
        float dot = EX_FMA(EX_FLOAT((u32)c), 0.0625f, EX_MAGIC * -0.0625f);
        *p = EX_FMA(byte_value(few_word(f->scale[r], b / 4u), b % 4u) * dot, dx, *p);
        *low = EX_FMA(byte_value(few_word(f->scale[r], 2u + b / 4u), b % 4u), dx * (float)sum, *low);
    } else { /* exact: at most 16,646,144 < 2^24 */
        u32 sc = few_word(f->scale[r], b / 2u);
        float dot = signed_byte_value(sc, b % 2u * 2u) * (EX_FLOAT((u32)c) - EX_MAGIC);
        dot = EX_FMA(signed_byte_value(sc, b % 2u * 2u + 1u), EX_FLOAT((u32)h) - EX_MAGIC, dot);
        *p = EX_FMA(dot, dx, *p);
    }
}

KFN float few_end(const u32 type, u32 row, u32 d, float p, float low)
{
    if (type == GT_Q4_K)
        return EX_FMA(-half_value(d >> 16), low, EX_FMA(half_value(d & 0xFFFFu), p, 0.0f));
    return type == GT_Q6_K ? EX_FMA(half_value(d >> row % 2u * 16u & 0xFFFFu), p, 0.0f) : p;
}

/* v[2 r + j]: the sum of the lane's own tile for output g + 8 r and the j-th of its columns (rows 1: there is only the first). x[i]: where the lane's
 * column (TILE_COLS of them for each tile) has tile i's activations, or zeros; s[j]: scales and sums of its j-th column of its own tile. Words of shm. */
KFN void few_sums(struct at at, const u32 type, const u32 cols, const u32 rows, THR const struct few_weights *f, SHM const u32 *shm, THR const u32 *x,
                  THR const u32 *s, THR float *v)
{
    const u32 each = type == GT_Q6_K ? 2u : FEW_BLOCKS, n_cols = rows == 1u ? 1u : 2u;
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    v[0] = v[1] = v[2] = v[3] = 0.0f;
    UNROLL
    for (u32 b0 = 0; b0 < 8u; b0 += each) {
        i32 c[4 * 8], h[4 * 2];
        UNROLL
        for (u32 b = 0; b < each; b++) {
            c[4u * b] = c[4u * b + 1u] = MAGIC_BITS;
            if (type == GT_Q4_0) {
                c[4u * b] -= 128 * (i32)shm[s[0] + 2u * (b0 + b) + 1u];
                if (n_cols == 2u)
                    c[4u * b + 1u] -= 128 * (i32)shm[s[1] + 2u * (b0 + b) + 1u];
            }
            c[4u * b + 2u] = c[4u * b];
            c[4u * b + 3u] = c[4u * b + 1u];
        }
        UNROLL
        for (u32 b = 0; b < 8u; b++)
            h[b] = MAGIC_BITS;
        UNROLL
        for (u32 i = 0; i < 8u / cols; i++) { /* one that is not there is zeros, and asking would take longer */
            UNROLL
            for (u32 ch = b0 / 2u; ch < (b0 + each) / 2u; ch++) {
                w4 both[TILE_COLS];
                UNROLL
                for (u32 k = 0; k < TILE_COLS; k++)
                    both[k] = load16(shm + x[i * TILE_COLS + k] + ch * 16u);
                few_chunk(at, type, ch, f->w + i * FEW_LOADS(type), both, c + 8u * (ch - b0 / 2u), h);
            }
        }
        UNROLL
        for (u32 b = 0; b < each; b++)
            UNROLL
            for (u32 j = 0; j < n_cols; j++) {
                w2 ds = load8(shm + s[j] + 2u * (b0 + b));
                UNROLL
                for (u32 r = 0; r < 2u; r++)
                    few_add(type, b0 + b, f, r, c[4u * b + 2u * r + j], h[4u * (b & 1u) + 2u * r + j], EX_FLOAT(ds.x), (i32)ds.y, &v[2u * r + j], &low[2u * r + j]);
            }
    }
    UNROLL
    for (u32 i = 0; i < 4u; i++)
        v[i] = few_end(type, at.lane >> 2, f->d[i / 2u], v[i], low[i]);
}

/* The same. x: a lane's own tile's activations for row 0, in words of shm, rows `region` words apart, scales `stride` behind; seg: its number along the row. */
KFN void few_tiles(struct at at, const u32 type, const u32 of_cols, const u32 rows, THR const struct few_weights *f, SHM const u32 *shm, u32 x, u32 seg,
                   u32 region, u32 stride, THR float *v)
{
    const u32 cols = FEW_COLS(type, of_cols);
    u32 col = 2u * (at.lane & 3u) & (cols - 1u), from[4 * TILE_COLS], s[2];
    UNROLL
    for (u32 i = 0; i < 8u / cols; i++) {
        u32 tile = shuffle_from(at, x + seg * 64u, i * cols / 2u);
        UNROLL
        for (u32 k = 0; k < TILE_COLS; k++) {
            u32 g = tile_col(at, k);
            from[i * TILE_COLS + k] = (g / cols == i && g % cols < rows ? tile + g % cols * region : GPU_FEW_ZEROS) + 4u * tile_word(at);
        }
    }
    UNROLL
    for (u32 j = 0; j < 2u; j++)
        s[j] = x + least_u32(col + j, rows - 1u) * region + stride + seg * 16u;
    few_sums(at, type, cols, rows, f, shm, from, s, v);
}

/* Sums to their places: tile `first` of a round and those behind it, rows of 16. */
KFN void few_sums_put(struct at at, u32 cols, const u32 rows, u32 n, THR const float *v, SHM float *sums, u32 first)
{
    u32 own = few_own(at, cols), col = 2u * (at.lane & 3u) & (cols - 1u);
    UNROLL
    for (u32 j = 0; j < 2u; j++)
        if (own < n && col + j < rows) {
            SHM float *to = sums + ((first + own) * rows + col + j) * 16u + (at.lane >> 2);
            to[0] = v[j];
            to[8] = v[2u + j];
        }
}

/* ---- activations into shared memory ---- */

/* n act rows that follow each other, by all threads; with the zeros. Integers go straight to shared memory; a block's
 * scale and sum come to stand beside each other, by 8 or 32 threads a row. */
KFN void few_stage_acts(struct at at, SHM u32 *shm, u32 n_pad, DEV const u32 *rows, u32 n)
{
    u32 pieces = n_pad / 16u, region = STAGE_WORDS(1u, n_pad), words = pieces * 5u, i;
    u32 row = split_u32(at.id, pieces, &i);
    if (at.id < 64u)
        shm[GPU_FEW_ZEROS + at.id] = 0u;
    shm += GPU_FEW_STAGE;
    NO_UNROLL
    for (; row < n;) {
        copy16(shm + row * region + 4u * i, rows + row * words + 4u * i);
        i += GPU_THREADS;
        while (i >= pieces) {
            i -= pieces;
            row++;
        }
    }
    const u32 spread = n_pad <= 1024u ? 3u : 5u;
    NO_UNROLL
    for (row = at.id >> spread; row < n; row += GPU_THREADS >> spread) {
        DEV const u32 *scale = rows + row * words + 4u * pieces;
        SHM u32 *to = shm + row * region + STAGE_STRIDE(n_pad);
        NO_UNROLL
        for (i = 4u * (at.id & ((1u << spread) - 1u)); i < pieces / 2u; i += 4u << spread) {
            w4 d = load16(scale + i), sum = load16(scale + pieces / 2u + i);
            w4 low = {d.x, sum.x, d.y, sum.y}, high = {d.z, sum.z, d.w, sum.w};
            *(SHM w4 *)(to + 2u * i) = low;
            *(SHM w4 *)(to + 2u * i + 4u) = high;
        }
    }
    copies_done();
}

/* ---- rows of floats ----
 *
 * A thread has elements 4q .. 4q + 3 of a block and 16 more, q = 0..3 (act_quantise_4): piece i of a row. */

KFN u32 few_piece(u32 i)
{
    return i / 4u * 32u + i % 4u * 4u;
}

KFN w4 few_word_of(DEV const float *row, u32 k, u32 n)
{
    w4 v = load16(row + (k < n ? k : 0u)), none = {0u, 0u, 0u, 0u};
    return k < n ? v : none;
}

/* `rows` rows of n floats (of n_rows, stride apart) to shared memory, rows of n_pad, filled up with zeros. */
KFN void few_fetch(struct at at, const u32 rows, SHM float *to, u32 n_pad, DEV const float *from, u32 stride, u32 n,
                   u32 n_rows)
{
    NO_UNROLL
    for (u32 i = at.id; i < n_pad / 8u; i += GPU_THREADS) {
        u32 k = few_piece(i);
        w4 v[2 * 4];
        UNROLL
        for (u32 c = 0; c < rows; c++) {
            DEV const float *row = from + (u64)(c < n_rows ? c : 0u) * stride;
            v[2u * c] = few_word_of(row, k, n);
            v[2u * c + 1u] = few_word_of(row, k + 16u, n);
        }
        UNROLL
        for (u32 c = 0; c < rows; c++) {
            *(SHM w4 *)(to + c * n_pad + k) = v[2u * c];
            *(SHM w4 *)(to + c * n_pad + k + 16u) = v[2u * c + 1u];
        }
    }
}

/* The norm's weights, on their way. */
KFN void few_ask_norm(struct at at, SHM u32 *to, DEV const u32 *w, u32 n)
{
    NO_UNROLL
    for (u32 i = 4u * at.id; i < n; i += 4u * GPU_THREADS)
        copy16(to + i, w + i);
}

KFN void few_four(w4 v, THR float *f)
{
    f[0] = EX_FLOAT(v.x);
    f[1] = EX_FLOAT(v.y);
    f[2] = EX_FLOAT(v.z);
    f[3] = EX_FLOAT(v.w);
}

/* Piece i of a row of n_pad elements into an act row. */
KFN void few_put_act(DEV u32 *act, u32 n_pad, u32 i, w2 word, w2 scale)
{
    u32 b = i / 4u;
    *(DEV w2 *)(act + act_word(b, i % 4u)) = word;
    if (i % 4u == 0u) {
        act[n_pad / 4u + b] = scale.x;
        act[n_pad / 4u + n_pad / 32u + b] = scale.y;
    }
}

/* Row c's pieces by rule 1 into its region (and its act row); norm: normalised first, r the row's scale. x and w are
 * rows of n_pad. */
KFN void few_put_floats(struct at at, const bool norm, SHM u32 *to, CON const struct product_args *a, struct bufs b,
                        u32 c, SHM const float *x, SHM const float *w, float r)
{
    u32 n_pad = GPU_PAD(a->n_in);
    NO_UNROLL
    for (u32 i = at.id; i < n_pad / 8u; i += GPU_THREADS) { /* whole SIMD groups */
        u32 k = few_piece(i);
        float f[8], by[8], d;
        i32 sum;
        few_four(*(SHM const w4 *)(x + k), f);
        few_four(*(SHM const w4 *)(x + k + 16u), f + 4);
        if (norm) {
            few_four(*(SHM const w4 *)(w + k), by);
            few_four(*(SHM const w4 *)(w + k + 16u), by + 4);
            UNROLL
            for (u32 j = 0; j < 8u; j++)
                f[j] = ex_flush(f[j] * r * by[j]);
        }
        w2 word = act_quantise_4(at, !norm || k < a->n_in, f, &d, &sum), scale = {EX_BITS(d), (u32)sum};
        *(SHM w2 *)(to + act_word(i / 4u, i % 4u)) = word;
        if (i % 4u == 0u)
            *(SHM w2 *)(to + STAGE_STRIDE(n_pad) + i / 2u) = scale;
        if (a->write_act && at.group == 0u)
            few_put_act((DEV u32 *)b.p[13] + (u64)c * (n_pad / 16u * 5u), n_pad, i, word, scale);
    }
}

/* Eight addends of a lane's sum of squares. */
KFN void few_eight(SHM const float *x, THR float *v)
{
    UNROLL
    for (u32 j = 0; j < 8u; j++)
        v[j] = x[32u * j];
}

KFN float few_squares(THR const float *v, float s)
{
    UNROLL
    for (u32 j = 0; j < 8u; j++)
        s = square_joins(v[j], s);
    return s;
}

/* Rule 6 for a row in shared memory, filled up with zeros to n_pad, by one SIMD group, its 32 sums in its 32 lanes. The
 * next ones are on their way while eight join, without a branch. */
KFN float few_norm_of(struct at at, SHM const float *x, u32 n, u32 n_pad, float eps)
{
    float s = 0.0f, v[8], w[8];
    u32 i = n_pad & 256u, last = n_pad - 256u;
    x += at.lane;
    if (i) {
        few_eight(x, v);
        s = few_squares(v, s);
    }
    few_eight(x + least_u32(i, last), v);
    NO_UNROLL
    for (; i < n_pad; i += 512u) {
        few_eight(x + i + 256u, w);
        s = few_squares(v, s);
        few_eight(x + least_u32(i + 512u, last), v);
        s = few_squares(w, s);
    }
    return div_rn(1.0f, sqrt_rn(div_rn(simd_tree(at, s), (float)(i32)n) + eps));
}

/* Rows of floats: a row's norm is a SIMD group's. here: norm weights (on their way), the rows' scales, the rows. */
KFN void few_stage_rows(struct at at, const u32 rows, const bool norm, SHM u32 *shm, CON const struct product_args *a,
                        struct bufs b, u32 n_rows, SHM float *here)
{
    u32 n_pad = GPU_PAD(a->n_in);
    SHM float *scale = here + n_pad, *x = scale + 16;
    few_fetch(at, rows, x, n_pad, (DEV const float *)b.p[1], a->x_stride, a->n_in, n_rows);
    if (norm) {
        copies_done();
        BARRIER(at);
        if (at.simd < n_rows) {
            float r = few_norm_of(at, x + at.simd * n_pad, a->n_in, n_pad, a->eps);
            if (at.lane == 0u)
                scale[at.simd] = r;
        }
        BARRIER(at);
    }
    NO_UNROLL
    for (u32 c = 0; c < n_rows; c++)
        few_put_floats(at, norm, shm + GPU_FEW_STAGE + c * STAGE_WORDS(1u, n_pad), a, b, c, x + c * n_pad, here,
                       norm ? scale[c] : 0.0f);
}

/* ---- products ---- */

KFN void few_stage(struct at at, const u32 rows, SHM u32 *shm, CON const struct product_args *a, struct bufs b,
                   u32 n_rows, SHM float *here)
{
    if (a->source == SRC_ACT)
        few_stage_acts(at, shm, GPU_PAD(a->n_in), (DEV const u32 *)b.p[1], n_rows);
    else if (a->source == SRC_NORM)
        few_stage_rows(at, rows, true, shm, a, b, n_rows, here);
    else
        few_stage_rows(at, rows, false, shm, a, b, n_rows, here); /* what a thread puts down it reads itself */
}

/* A thread's output of a round, known before its sum is: its number along the tiles, and what is added to it. */
struct few_out {
    u32 panel, row, out;
    bool there;
    float bias, x;
};

KFN void few_out_of(struct at at, const u32 rows, CON const struct product_args *a, struct bufs b, THR const struct product_mat *m, u32 panels, u32 n_rows,
                    THR struct few_out *o)
{
    u32 i = at.id / 16u;
    o->panel = i / rows;
    o->row = i % rows;
    o->out = (m->panel + o->panel) * GPU_PANEL + (at.id & 15u);
    o->there = o->panel < panels && o->row < n_rows && o->out < m->n_out;
    o->bias = o->x = 0.0f;
    if (o->there && m->bias)
        o->bias = m->bias[o->out];
    if (o->there && a->add && m->m == 0u)
        o->x = ((DEV const float *)b.p[12])[(u64)o->row * a->res_stride + o->out];
}

KFN void few_out_put(struct at at, const u32 rows, CON const struct product_args *a, struct bufs b, THR const struct product_mat *m, u32 n_seg, SHM const float *sums,
                     THR const struct few_out *o)
{
    if (!o->there)
        return;
    float v = sums_get(sums + (o->panel * n_seg * rows + o->row) * 16u + (at.id & 15u), n_seg, rows * 16u);
    if (m->bias)
        v = v + o->bias;
    m->y[(u64)o->row * m->y_stride + o->out] = v;
    if (a->add && m->m == 0u)
        ((DEV float *)b.p[12])[(u64)o->row * a->res_stride + o->out] = o->x + v;
}

/* Where the parts of shared memory are and how many panels a round has. */
struct few_shape {
    u32 n_pad, n_seg, region, most;
    SHM float *here, *sums;
};

KFN void few_shape_of(const u32 rows, CON const struct product_args *a, SHM u32 *shm, THR struct few_shape *s)
{
    const u32 cols = GPU_FEW_COLS(rows);
    u32 rest;
    s->n_pad = GPU_PAD(again(a->n_in)); /* computed here once more rather than kept for it */
    s->n_seg = s->n_pad / GPU_SEG;
    s->region = STAGE_WORDS(1u, s->n_pad);
    s->most = least_u32(split_u32(64u / cols, s->n_seg, &rest), 16u / rows);
    s->most = s->most ? s->most : 1u;
    s->here = (SHM float *)(shm + GPU_FEW_STAGE + rows * s->region);
    s->sums = s->here + (a->source == SRC_ACT ? 0u : (rows + 1u) * s->n_pad + 16u);
}

/* The matrix of panel p; *end: the first panel behind it. */
KFN void few_mat_of(CON const struct product_args *a, struct bufs b, u32 p, THR struct product_mat *m, THR u32 *end)
{
    struct product_shape s;
    s.ends[0] = panels_of(again(a->n_out[0]));
    s.ends[1] = s.ends[0] + (a->n_mats > 1u ? panels_of(again(a->n_out[1])) : 0u);
    s.ends[2] = s.ends[1] + (a->n_mats > 2u ? panels_of(again(a->n_out[2])) : 0u);
    product_mat_of(a, b, &s, p, m);
    *end = m->m == 0u ? s.ends[0] : m->m == 1u ? s.ends[1] : s.ends[2];
}

/* A SIMD group's share of a round: tiles [k, last). */
struct few_share {
    u32 k, last;
};

KFN void few_share_of(struct at at, u32 n_tiles, THR struct few_share *w)
{
    u32 each = (n_tiles + GPU_SIMDS - 1u) / GPU_SIMDS;
    w->k = at.simd * each;
    w->last = least_u32(w->k + each, n_tiles);
}

KFN void few_product_tiles(struct at at, const u32 cols, const u32 rows, THR const struct product_mat *m,
                           THR const struct few_shape *s, THR const struct few_weights *f, SHM const u32 *shm, u32 seg,
                           THR float *v)
{
    u32 stride = STAGE_STRIDE(s->n_pad);
    FOR_FEW_TYPE(m->type, few_tiles(at, type, cols, rows, f, shm, GPU_FEW_STAGE, seg, s->region, stride, v))
}

/* At most `rows` rows. A group takes a contiguous share of panels, in rounds of as many as its SIMD groups can have in registers at once. */
KFN void few_product(struct at at, const u32 rows, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    const u32 cols = GPU_FEW_COLS(rows);
    u32 from, to, n_rows = rows, turn = 0, end;
    bool fresh = true;
    struct few_shape s;
    few_shape_of(rows, a, shm, &s);
    if (a->source == SRC_NORM)
        few_ask_norm(at, (SHM u32 *)s.here, (DEV const u32 *)b.p[2], a->n_in);
    if (a->source != SRC_ACT && at.id < 64u)
        shm[GPU_FEW_ZEROS + at.id] = 0u;
    if (rows > 1u) /* few_1: there is one, or no launch */
        n_rows = least_u32(rows, ((DEV const u32 *)b.p[0])[IN_ROWS + a->which]);
    share_units(at, panels_of(a->n_out[0]) + (a->n_mats > 1u ? panels_of(a->n_out[1]) : 0u) + (a->n_mats > 2u ? panels_of(a->n_out[2]) : 0u), &from, &to);
    NO_UNROLL
    for (u32 p = from; p < to;) {
        struct product_mat m;
        struct few_share w;
        struct few_out o;
        few_mat_of(a, b, p, &m, &end);
        u32 panels = least_u32(s.most, least_u32(to, end) - p), of_cols = FEW_COLS(m.type, cols);
        u32 bytes = GPU_TILE_BYTES(m.type);
        few_share_of(at, panels * s.n_seg, &w);
        if (of_cols == 2u && panels * s.n_seg <= 2u * GPU_SIMDS) /* two tiles each: half of the work of four */
            of_cols = 4u;
        u32 own = few_own(at, of_cols);
        NO_UNROLL
        do {
            struct few_weights f;
            float v[4];
            u32 n = w.k < w.last ? least_u32(few_beside(of_cols), w.last - w.k) : 0u, seg;
            DEV const u8 *first = m.w + (n ? (u64)(m.panel * s.n_seg + w.k) * bytes : 0u);
            struct few_from from_of = {{first, first + bytes, first + 2u * bytes, first + 3u * bytes}};
            few_load(at, cols, m.type, n, &from_of, first + (own < n ? own * bytes : 0u), &f);
            split_u32(w.k + own, s.n_seg, &seg);
            if (fresh) {
                IN_TURN(at);
                few_stage(at, rows, shm, a, b, n_rows, s.here);
                BARRIER(at);
                fresh = false;
            }
            if (p + panels < to && w.k + n >= w.last) { /* the round's last tiles; */
                u32 more = p + panels < end ? bytes : 0u;
                few_ahead(m.w + (u64)((m.panel + panels) * s.n_seg) * bytes, least_u32(s.most, to - p - panels) * s.n_seg * more, at.id, GPU_THREADS);
            }
            if (cols == 2u && of_cols == 4u)
                few_product_tiles(at, 4, rows, &m, &s, &f, shm, seg, v);
            else
                few_product_tiles(at, cols, rows, &m, &s, &f, shm, seg, v);
            few_sums_put(at, of_cols, rows, n, v, s.sums + turn * GPU_FEW_SUMS(rows, s.n_seg), w.k);
            w.k += few_beside(of_cols);
        } while (w.k < w.last);
        few_out_of(at, rows, a, b, &m, panels, n_rows, &o);
        BARRIER(at);
        few_out_put(at, rows, a, b, &m, s.n_seg, s.sums + turn * GPU_FEW_SUMS(rows, s.n_seg), &o);
        turn ^= 1u;
        p += panels;
    }
}

KFN void k_few_1(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    few_product(at, 1, a, b, shm);
}

KFN void k_few_2(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    few_product(at, 2, a, b, shm);
}

KFN void k_few_4(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    few_product(at, 4, a, b, shm);
}
