/* What all products with quantised weights share: act rows into shared memory, a weight tile into registers, the sums of one tile.
 *
 * Shared memory holds N columns (activation rows): column n's integers at word n * STAGE_STRIDE(n_pad), as the act row has them, 64 bytes apart
 * in banks from the next column; then for each block of 32 and column two words: scale, sum. In a PS_METAL build act rows are columns where they
 * lie, in device memory (IN_PLACE): only rows that a product quantises itself are staged.
 *
 * One SIMD group takes a tile: 16 outputs x 256 elements x N columns. Lane 4 g + t holds, for each 8 columns, v[0], v[1]: output g, columns 2t, 2t + 1;
 * v[2], v[3]: output g + 8. For each of the tile's 8 blocks: the integers of 2 rows out of nibbles or bytes into a[4], one matrix
 * tile for every 8 columns (exact), and v = fma(dot, dw * dx, v) in block order (rules 2-4). The integer sum starts at the bits of
 * 1.5 * 2^23 (less the offset times the column's sum), so that its bits are the float 12582912 + dot. */

#define STAGE_STRIDE(n_pad) ((n_pad) / 4u + 16u)               /* words between columns */
#define STAGE_WORDS(n, n_pad) ((n) * (STAGE_STRIDE(n_pad) + (n_pad) / 16u)) /* scales and sums: n_pad / 32 blocks of 2 words */
#define MAGIC_BITS 0x4B400000

/* Types with blocks of 32 and one half scale a block; with a minimum besides. */
#define TYPE_IS_32(t) ((t) == GT_Q4_0 || (t) == GT_Q4_1 || (t) == GT_Q5_0 || (t) == GT_Q5_1 || (t) == GT_Q8_0)
#define TYPE_HAS_MIN(t) ((t) == GT_Q4_1 || (t) == GT_Q5_1)
#define TYPE_HAS_FIFTH(t) ((t) == GT_Q5_0 || (t) == GT_Q5_1 || (t) == GT_Q5_K)
#define TYPE_HAS_LOW(t) (TYPE_HAS_MIN(t) || (t) == GT_Q4_K || (t) == GT_Q5_K) /* a second sum */
#define TYPE_IS_SIGNED(t) ((t) == GT_Q4_0 || (t) == GT_Q5_0 || (t) == GT_Q8_0 || (t) == GT_Q6_K) /* as many_words has it */
#define TYPE_OFFSET(t) ((t) == GT_Q4_0 ? 8 : (t) == GT_Q5_0 ? 16 : 0)

/* ---- shares of work ---- */

/* Units [*from, *to) of n that this group takes: contiguous, sizes one apart at most. */
KFN void share_units(struct at at, u32 n, THR u32 *from, THR u32 *to)
{
    u32 rest, each = split_u32(n, at.n_groups, &rest);
    *from = at.group * each + least_u32(at.group, rest);
    *to = *from + each + (at.group < rest ? 1u : 0u);
}

/* ---- act rows into shared memory ---- */

/* Column n of N from an act row. */
KFN void stage_act(SHM u32 *stage, u32 n_cols, u32 col, u32 n_pad, DEV const u32 *row, u32 first, u32 step)
{
    SHM u32 *q = stage + col * STAGE_STRIDE(n_pad);
    SHM u32 *s = stage + n_cols * STAGE_STRIDE(n_pad) + 2u * col;
    DEV const u32 *d = row + n_pad / 4u;
    u32 blocks = n_pad / 32u;
    for (u32 i = first; i < n_pad / 16u; i += step) {
        w4 v = load16(row + 4u * i);
        q[4u * i] = v.x;
        q[4u * i + 1u] = v.y;
        q[4u * i + 2u] = v.z;
        q[4u * i + 3u] = v.w;
    }
    for (u32 i = first; i < blocks; i += step) {
        s[2u * n_cols * i] = d[i];
        s[2u * n_cols * i + 1u] = d[blocks + i];
    }
}

enum { STAGE_AHEAD = 4 };

/* Column n from floats, by rule 1: thread `first` of `step` (a multiple of 8; the caller's SIMD groups are whole). norm: x is multiplied by *r and by
 * norm's weights first (rule 6). act: NULL, or where the act row goes besides. */
KFN void stage_floats(struct at at, SHM u32 *stage, u32 n_cols, u32 col, u32 n_in, DEV const float *x, DEV const float *norm, float r,
                      u32 first, u32 step, DEV u32 *act)
{
    u32 n_pad = GPU_PAD(n_in), blocks = n_pad / 32u;
    SHM u32 *q = stage + col * STAGE_STRIDE(n_pad);
    SHM u32 *s = stage + n_cols * STAGE_STRIDE(n_pad) + 2u * col;
    NO_UNROLL
    for (u32 i0 = first; i0 < n_pad / 4u + first; i0 += STAGE_AHEAD * step) { /* whole SIMD groups, as often each */
        w4 v[STAGE_AHEAD], w[STAGE_AHEAD];
        UNROLL
        for (u32 k = 0; k < STAGE_AHEAD; k++) { /* n_in is a multiple of 32: a word of four is there or it is not */
            u32 i = i0 + k * step;
            v[k].x = v[k].y = v[k].z = v[k].w = 0u;
            w[k] = v[k];
            if (4u * i < n_in) {
                v[k] = load16(x + 4u * i);
                if (norm)
                    w[k] = load16(norm + 4u * i);
            }
        }
        UNROLL
        for (u32 k = 0; k < STAGE_AHEAD; k++) {
            u32 i = i0 + k * step;
            float f[4] = {EX_FLOAT(v[k].x), EX_FLOAT(v[k].y), EX_FLOAT(v[k].z), EX_FLOAT(v[k].w)};
            if (norm && 4u * i < n_in) { /* what fills up a row stays zero, also where r is a NaN */
                f[0] = ex_flush(f[0] * r * EX_FLOAT(w[k].x));
                f[1] = ex_flush(f[1] * r * EX_FLOAT(w[k].y));
                f[2] = ex_flush(f[2] * r * EX_FLOAT(w[k].z));
                f[3] = ex_flush(f[3] * r * EX_FLOAT(w[k].w));
            }
            float d;
            i32 sum;
            u32 word = act_quantise_8(at, f, &d, &sum);
            if (i >= n_pad / 4u)
                continue;
            u32 b = i / 8u, to = act_word(b, i % 8u);
            q[to] = word;
            if (act)
                act[to] = word;
            if (i % 8u == 0u) {
                s[2u * n_cols * b] = EX_BITS(d);
                s[2u * n_cols * b + 1u] = (u32)sum;
                if (act) {
                    act[n_pad / 4u + b] = EX_BITS(d);
                    act[n_pad / 4u + blocks + b] = (u32)sum;
                }
            }
        }
    }
}

/* ---- a weight tile ---- */

/* Four bits to bit 4 of four bytes; four pairs of bits to bits 4-5 of four bytes. */
KFN u32 spread_fifth(u32 bits)
{
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

KFN u32 spread_sixth(u32 bits)
{
    bits &= 0xFFu;
    return ((bits | bits << 6 | bits << 12 | bits << 18) & 0x03030303u) << 4;
}

/* What a lane needs of blocks 2 * two and 2 * two + 1 of a tile: integers, and for rows g and g + 8 scales (and minimums), as they are stored. */
struct tile_pair {
    u32 a[2][4];
    u32 d[2], m[2]; /* row g, row g + 8: both blocks' halves or bytes (q6_k: four) */
};

/* The scales of it. */
KFN void tile_scales(struct at at, const u32 type, WGT const u32 *w, u32 two, THR struct tile_pair *p)
{
    u32 g = at.lane >> 2;
    if (type == GT_Q8_0)
        w += 1024u;
    else
        w += TYPE_HAS_FIFTH(type) ? 640u : type == GT_Q6_K ? 768u : 512u;
    if (TYPE_IS_32(type) || type == GT_Q6_K) {
        p->d[0] = w[g * 4u + two];
        p->d[1] = w[32u + g * 4u + two];
        if (TYPE_HAS_MIN(type)) {
            p->m[0] = w[64u + g * 4u + two];
            p->m[1] = w[96u + g * 4u + two];
        }
        return;
    }
    UNROLL
    for (u32 i = 0; i < 2u; i++) { /* sub-scales: 8 bytes a row, then sub-minimums */
        u32 shift = two % 2u * 16u;
        p->d[i] = w[i * 32u + g * 4u + two / 2u] >> shift;
        p->m[i] = w[i * 32u + g * 4u + 2u + two / 2u] >> shift;
    }
}

/* The integers that stand in word t of rows g and g + 8, blocks 2 c and 2 c + 1: a[k][0] row g, elements 4t..; [1] row g + 8; [2], [3] elements
 * 16 + 4t.. */
KFN void tile_words(const u32 type, WGT const u32 *w, u32 g, u32 c, u32 t, THR u32 a[2][4])
{
    u32 lane = 4u * g + t;
    if (type == GT_Q8_0) {
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            w4 q = load16(w + (2u * c + k) * 128u + lane * 4u);
            a[k][0] = q.x;
            a[k][1] = q.y;
            a[k][2] = q.z;
            a[k][3] = q.w;
        }
        return;
    }
    w4 q = load16(w + c * 128u + lane * 4u);
    u32 fifth = TYPE_HAS_FIFTH(type) ? w[512u + lane * 4u + c] : 0u;
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 lo = k ? q.z : q.x, hi = k ? q.w : q.y;
        a[k][0] = lo & 0x0F0F0F0Fu;
        a[k][1] = hi & 0x0F0F0F0Fu;
        a[k][2] = lo >> 4 & 0x0F0F0F0Fu;
        a[k][3] = hi >> 4 & 0x0F0F0F0Fu;
        if (TYPE_HAS_FIFTH(type)) {
            u32 bits = fifth >> 16u * k;
            a[k][0] |= spread_fifth(bits);
            a[k][2] |= spread_fifth(bits >> 4);
            a[k][1] |= spread_fifth(bits >> 8);
            a[k][3] |= spread_fifth(bits >> 12);
        }
        if (type == GT_Q6_K) {
            u32 bits = w[512u + c / 2u * 128u + lane * 4u + c % 2u * 2u + k];
            a[k][0] |= spread_sixth(bits);
            a[k][1] |= spread_sixth(bits >> 8);
            a[k][2] |= spread_sixth(bits >> 16);
            a[k][3] |= spread_sixth(bits >> 24);
            UNROLL
            for (u32 i = 0; i < 4u; i++) {
                u32 y = a[k][i] ^ 0x20202020u;
                a[k][i] = y + (y & 0x20202020u) * 6u;
            }
        }
    }
}

#define TILE_FLIP 0x80808080u /* the highest bit of a nibble: from 0 .. 15 to -8 .. 7 */

/* As tile_words, of block 2 c + k; but the highest bit is a byte's, so that there is no offset and no sign to extend:
 * q4_0 16 times as large, without a shift for half of them, q6_k four times. flip: TILE_FLIP, unknown. */
#define TYPE_FLIPPED(t) ((t) == GT_Q4_0 ? 16.0f : (t) == GT_Q6_K ? 4.0f : 1.0f)
KFN void tile_words_flipped(struct at at, const u32 type, WGT const u32 *w, const u32 c, u32 flip, THR u32 a[2][4])
{
    if (type != GT_Q4_0 && type != GT_Q6_K) {
        tile_words(type, w, at.lane >> 2, c, at.lane & 3u, a);
        return;
    }
    w4 q = load16(w + c * 128u + at.lane * 4u);
    UNROLL
    for (u32 k = 0; k < 2u; k++) {
        u32 low = (k ? q.z : q.x), high = (k ? q.w : q.y);
        if (type == GT_Q4_0) {
            a[k][0] = (low << 4 ^ flip) & 0xF0F0F0F0u;
            a[k][1] = (high << 4 ^ flip) & 0xF0F0F0F0u;
            a[k][2] = (low ^ flip) & 0xF0F0F0F0u;
            a[k][3] = (high ^ flip) & 0xF0F0F0F0u;
            continue;
        }
        u32 bits = w[512u + c / 2u * 128u + at.lane * 4u + c % 2u * 2u + k];
        u32 even = bits & 0x33333333u, odd = bits >> 2 & 0x33333333u; /* of elements 0 and 2, 1 and 3 */
        UNROLL
        for (u32 h = 0; h < 2u; h++) { /* of two words; to a byte's highest bits, of which the first is turned */
            u32 e = bytes_by(0x4000C080u, 0u, even >> 16u * h), o = bytes_by(0x4000C080u, 0u, odd >> 16u * h);
            u32 x = h ? low >> 2 : low << 2, y = h ? high >> 2 : high << 2;
            a[k][2u * h] = (x & 0x3C3C3C3Cu) | bytes_by(e, o, 0x5140u);
            a[k][2u * h + 1u] = (y & 0x3C3C3C3Cu) | bytes_by(e, o, 0x7362u);
        }
    }
}

/* Constants that the compiler must not know: then they stay in registers, where the sums of a matrix tile begin, and
 * where instructions find them that have room for one constant. zero: 0, unknown, not the same to it in all lanes. */
KFN void tile_unknown(u32 zero, THR i32 *magic, THR u32 *flip)
{
    UNROLL
    for (u32 k = 0; k < 4u; k++)
        magic[k] = MAGIC_BITS + (i32)(zero >> k);
    *flip = TILE_FLIP + (zero << 28);
}

/* Byte i of a word as a float, less `less`; magic: MAGIC_BITS, unknown. */
KFN float byte_float(u32 word, const u32 i, i32 magic, const float less)
{
    return EX_FLOAT(bytes_by(word, (u32)magic, 0x7650u + i)) - (EX_MAGIC + less);
}

/* Sub-scales and minimums of q4_k, of four blocks: bytes of d and m. */
KFN void tile_bytes(struct at at, WGT const u32 *w, u32 four, THR struct tile_pair *t)
{
    w += 512u + (at.lane >> 2) * 4u + four;
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        t->d[i] = w[i * 32u];
        t->m[i] = w[i * 32u + 2u];
    }
}

KFN float byte_value(u32 word, const u32 i)
{
    return (float)(i32)(word >> 8u * i & 0xFFu);
}

KFN float signed_byte_value(u32 word, const u32 i)
{
    return (float)((i32)(word << (24u - 8u * i)) >> 24);
}

/* Where a lane finds its columns in the staged rows, for each 8 of them: its words of those that it brings to the tile (TILE_COLS), scale and
 * sum of columns 2t and 2t + 1. In place: q as there, from `stage` on; s0 and s1 the words at which those columns' act rows begin. */
struct columns {
    u32 q[TILE_COLS], s0, s1;
};

/* B of a tile, block 2 two + k, out of a lane's words of both blocks. */
KFN void columns_b(THR const w4 *both, const u32 k, THR u32 *b)
{
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++) {
        b[i] = k ? both[i].z : both[i].x;
        b[TILE_COLS + i] = k ? both[i].w : both[i].y;
    }
}

/* n_cols 0: the columns are act rows in place. */
#define IN_PLACE(n_cols) (PS_METAL && (n_cols) == 0u)

/* Scales and sums of blocks 2 * pair and 2 * pair + 1 of an act row in place that begins at word `row`. */
struct place_scales {
    w2 d, sum;
};

ANYWHERE KFN void place_scales(any_words act, u32 n_pad, u32 pair, u32 row, THR struct place_scales *s)
{
    s->d = load8(act + row + n_pad / 4u + 2u * pair);
    s->sum = load8(act + row + n_pad / 4u + n_pad / 32u + 2u * pair);
}

/* Block k of the two: scale, sum. */
KFN w2 place_scale(THR const struct place_scales *s, const u32 k)
{
    w2 v = {k ? s->d.y : s->d.x, k ? s->sum.y : s->sum.x};
    return v;
}

/* A tile's two sums of one output become one: with the super-block's scale and minimum, where there are such. */
KFN float tile_end(const u32 type, WGT const u32 *w, u32 row, float p, float low)
{
    if (TYPE_HAS_MIN(type))
        return p + low;
    if (TYPE_IS_32(type))
        return p;
    if (type == GT_Q6_K)
        return EX_FMA(half_value(w[832u + row / 2u] >> row % 2u * 16u & 0xFFFFu), p, 0.0f);
    u32 d = w[(type == GT_Q5_K ? 704u : 576u) + row];
    return EX_FMA(-half_value(d >> 16), low, EX_FMA(half_value(d & 0xFFFFu), p, 0.0f));
}

/* v[8 columns][4] = the sums of a tile (see above). n8: number of 8 columns, type: constants. w: the tile; stage: the staged rows, or act rows; seg: the
 * tile's number along the row; n_cols: staged columns, 0: in place. */
ANYWHERE KFN void tile_sums(struct at at, const u32 n8, const u32 type, WGT const u32 *w, any_words stage, u32 n_pad, u32 n_cols, u32 seg,
                            THR const struct columns *col, THR float *v)
{
    float low[4 * 8]; /* the second sum of types with a minimum */
    any_words q = stage + seg * 64u;
    any_words s = stage + n_cols * STAGE_STRIDE(n_pad) + seg * 16u * n_cols;
    UNROLL
    for (u32 i = 0; i < 4u * n8; i++) {
        v[i] = 0.0f;
        low[i] = 0.0f;
    }
    NO_UNROLL
    for (u32 two = 0; two < 4u; two++) {
        struct tile_pair t;
        w4 both[8 * TILE_COLS];
        struct place_scales in0[8], in1[8];
        tile_words(type, w, at.lane >> 2, two, at.lane & 3u, t.a);
        tile_scales(at, type, w, two, &t);
        UNROLL
        for (u32 j = 0; j < n8; j++) {
            UNROLL
            for (u32 i = 0; i < TILE_COLS; i++)
                both[TILE_COLS * j + i] = load16(q + col[j].q[i] + two * 16u);
            if (IN_PLACE(n_cols)) {
                place_scales(stage, n_pad, 4u * seg + two, col[j].s0, &in0[j]);
                place_scales(stage, n_pad, 4u * seg + two, col[j].s1, &in1[j]);
            }
        }
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            float dw0, dw1, mw0 = 0.0f, mw1 = 0.0f, dh0 = 0.0f, dh1 = 0.0f;
            if (TYPE_IS_32(type)) {
                dw0 = half_value(t.d[0] >> 16u * k & 0xFFFFu);
                dw1 = half_value(t.d[1] >> 16u * k & 0xFFFFu);
            } else if (type == GT_Q6_K) {
                dw0 = signed_byte_value(t.d[0], 2u * k);
                dh0 = signed_byte_value(t.d[0], 2u * k + 1u);
                dw1 = signed_byte_value(t.d[1], 2u * k);
                dh1 = signed_byte_value(t.d[1], 2u * k + 1u);
            } else {
                dw0 = byte_value(t.d[0], k);
                dw1 = byte_value(t.d[1], k);
                mw0 = byte_value(t.m[0], k);
                mw1 = byte_value(t.m[1], k);
            }
            if (TYPE_HAS_MIN(type)) {
                mw0 = half_value(t.m[0] >> 16u * k & 0xFFFFu);
                mw1 = half_value(t.m[1] >> 16u * k & 0xFFFFu);
            }
            UNROLL
            for (u32 j = 0; j < n8; j++) {
                u32 bb[2 * TILE_COLS];
                columns_b(both + TILE_COLS * j, k, bb);
                any_words sc = s + 2u * n_cols * (2u * two + k);
                w2 c0 = IN_PLACE(n_cols) ? place_scale(&in0[j], k) : load8(sc + col[j].s0);
                w2 c1 = IN_PLACE(n_cols) ? place_scale(&in1[j], k) : load8(sc + col[j].s1);
                float dx0 = EX_FLOAT(c0.x), dx1 = EX_FLOAT(c1.x);
                THR float *p = v + 4u * j, *m = low + 4u * j;
                i32 c[4];
                float f[4];
                c[0] = MAGIC_BITS - TYPE_OFFSET(type) * (i32)c0.y;
                c[1] = MAGIC_BITS - TYPE_OFFSET(type) * (i32)c1.y;
                c[2] = c[0];
                c[3] = c[1];
                if (type == GT_Q6_K) {
                    i32 h[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
                    tile_16(at, c, t.a[k][0], t.a[k][1], bb);
                    tile_16(at, h, t.a[k][2], t.a[k][3], bb + TILE_COLS);
                    UNROLL
                    for (u32 i = 0; i < 4u; i++) { /* exact: at most 16,646,144 < 2^24 */
                        f[i] = (i < 2u ? dw0 : dw1) * (EX_FLOAT((u32)c[i]) - EX_MAGIC);
                        f[i] = EX_FMA(i < 2u ? dh0 : dh1, EX_FLOAT((u32)h[i]) - EX_MAGIC, f[i]);
                        p[i] = EX_FMA(f[i], i % 2u ? dx1 : dx0, p[i]);
                    }
                    continue;
                }
                if (type == GT_Q8_0)
                    tile_s(at, c, t.a[k], bb);
                else
                    tile_u(at, c, t.a[k], bb);
                UNROLL
                for (u32 i = 0; i < 4u; i++)
                    f[i] = EX_FLOAT((u32)c[i]) - EX_MAGIC;
                if (TYPE_IS_32(type)) {
                    p[0] = EX_FMA(f[0], dw0 * dx0, p[0]);
                    p[1] = EX_FMA(f[1], dw0 * dx1, p[1]);
                    p[2] = EX_FMA(f[2], dw1 * dx0, p[2]);
                    p[3] = EX_FMA(f[3], dw1 * dx1, p[3]);
                } else { /* the sub-scale times the integer is exact: at most 7,936,992 */
                    p[0] = EX_FMA(dw0 * f[0], dx0, p[0]);
                    p[1] = EX_FMA(dw0 * f[1], dx1, p[1]);
                    p[2] = EX_FMA(dw1 * f[2], dx0, p[2]);
                    p[3] = EX_FMA(dw1 * f[3], dx1, p[3]);
                }
                if (TYPE_HAS_MIN(type) || !TYPE_IS_32(type)) {
                    float s0 = dx0 * (float)(i32)c0.y, s1 = dx1 * (float)(i32)c1.y;
                    m[0] = EX_FMA(mw0, s0, m[0]);
                    m[1] = EX_FMA(mw0, s1, m[1]);
                    m[2] = EX_FMA(mw1, s0, m[2]);
                    m[3] = EX_FMA(mw1, s1, m[3]);
                }
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < 4u * n8; i++)
        v[i] = tile_end(type, w, (at.lane >> 2) + (i % 4u < 2u ? 0u : 8u), v[i], low[i]);
}

/* The sums of a tile for at most four columns: column n of the matrix tile is column n / 2 of the four, so that a lane has to do with one: v[0] row g,
 * column t, v[1] row g + 8. col.q[0]: where column tile_col_of_four is, col.s0: the scale and sum of column t. Two thirds of the work of tile_sums. */
ANYWHERE KFN void tile_sums_4(struct at at, const u32 type, WGT const u32 *w, any_words stage, u32 n_pad, u32 n_cols, u32 seg,
                              THR const struct columns *col, THR float *v)
{
    float p[2] = {0.0f, 0.0f}, low[2] = {0.0f, 0.0f};
    any_words q = stage + seg * 64u + col->q[0];
    any_words s = stage + n_cols * STAGE_STRIDE(n_pad) + seg * 16u * n_cols + col->s0;
    NO_UNROLL
    for (u32 two = 0; two < 4u; two++) {
        struct tile_pair t;
        struct place_scales in;
        tile_words(type, w, at.lane >> 2, two, at.lane & 3u, t.a);
        tile_scales(at, type, w, two, &t);
        w4 both[TILE_COLS];
        if (IN_PLACE(n_cols))
            place_scales(stage, n_pad, 4u * seg + two, col->s0, &in);
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            both[i] = load16(q + two * 16u);
        UNROLL
        for (u32 k = 0; k < 2u; k++) {
            u32 bb[2 * TILE_COLS];
            columns_b(both, k, bb);
            w2 sc = IN_PLACE(n_cols) ? place_scale(&in, k) : load8(s + 2u * n_cols * (2u * two + k));
            float dx = EX_FLOAT(sc.x), sum = dx * (float)(i32)sc.y;
            i32 c[4], h[4], init = MAGIC_BITS - TYPE_OFFSET(type) * (i32)sc.y;
            if (type == GT_Q6_K) {
                c[0] = c[1] = c[2] = c[3] = h[0] = h[1] = h[2] = h[3] = 0;
                tile_16(at, c, t.a[k][0], t.a[k][1], bb);
                tile_16(at, h, t.a[k][2], t.a[k][3], bb + TILE_COLS);
            } else if (type == GT_Q8_0) {
                tile_s0(at, c, t.a[k], bb);
            } else {
                tile_u0(at, c, t.a[k], bb);
            }
            UNROLL
            for (u32 r = 0; r < 2u; r++) {
                float f = EX_FLOAT((u32)(c[2u * r] + init)) - EX_MAGIC;
                if (TYPE_IS_32(type)) {
                    p[r] = EX_FMA(f, half_value(t.d[r] >> 16u * k & 0xFFFFu) * dx, p[r]);
                    if (TYPE_HAS_MIN(type))
                        low[r] = EX_FMA(half_value(t.m[r] >> 16u * k & 0xFFFFu), sum, low[r]);
                } else if (type == GT_Q6_K) { /* exact: at most 16,646,144 < 2^24 */
                    f = signed_byte_value(t.d[r], 2u * k) * f;
                    f = EX_FMA(signed_byte_value(t.d[r], 2u * k + 1u), EX_FLOAT((u32)(h[2u * r] + MAGIC_BITS)) - EX_MAGIC, f);
                    p[r] = EX_FMA(f, dx, p[r]);
                } else { /* the sub-scale times the integer is exact: at most 7,936,992 */
                    p[r] = EX_FMA(byte_value(t.d[r], k) * f, dx, p[r]);
                    low[r] = EX_FMA(byte_value(t.m[r], k), sum, low[r]);
                }
            }
        }
    }
    UNROLL
    for (u32 r = 0; r < 2u; r++)
        v[r] = tile_end(type, w, (at.lane >> 2) + 8u * r, p[r], low[r]);
}

/* A lane's column of the four when column n of the tile is staged column n. */
KFN void column_in_order(struct at at, u32 n_pad, THR struct columns *col)
{
    col->q[0] = tile_col_of_four(at) * STAGE_STRIDE(n_pad) + tile_word(at) * 4u;
    col->s0 = 2u * (at.lane & 3u);
    col->s1 = 0u;
}

/* Where a lane's columns lie when column n of the tile is staged column n. */
KFN void columns_in_order(struct at at, const u32 n8, u32 n_pad, THR struct columns *col)
{
    UNROLL
    for (u32 j = 0; j < n8; j++) {
        UNROLL
        for (u32 i = 0; i < TILE_COLS; i++)
            col[j].q[i] = (8u * j + tile_col(at, i)) * STAGE_STRIDE(n_pad) + tile_word(at) * 4u;
        col[j].s0 = 2u * (8u * j + 2u * (at.lane & 3u));
        col[j].s1 = col[j].s0 + 2u;
    }
}

/* Runs CALL with `type` a constant of that value: one copy of a kernel's inner loop for each type. */
#define FOR_TYPE(value, CALL)                                                                                    \
    switch (value) {                                                                                             \
    case GT_Q4_0: { const u32 type = GT_Q4_0; CALL; break; }                                                     \
    case GT_Q4_1: { const u32 type = GT_Q4_1; CALL; break; }                                                     \
    case GT_Q5_0: { const u32 type = GT_Q5_0; CALL; break; }                                                     \
    case GT_Q5_1: { const u32 type = GT_Q5_1; CALL; break; }                                                     \
    case GT_Q8_0: { const u32 type = GT_Q8_0; CALL; break; }                                                     \
    case GT_Q4_K: { const u32 type = GT_Q4_K; CALL; break; }                                                     \
    case GT_Q5_K: { const u32 type = GT_Q5_K; CALL; break; }                                                     \
    default: { const u32 type = GT_Q6_K; CALL; break; }                                                          \
    }
