/* What all products with quantised weights share: act rows into shared memory, a weight tile into registers, the sums of one tile.
 *
 * Shared memory holds N columns (activation rows): column n's integers at word n * STAGE_STRIDE(n_pad), as the act row has them, 64 bytes apart
 * in banks from the next column; then for each block of 32 and column two words: scale, sum.
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
#define TYPE_OFFSET(t) ((t) == GT_Q4_0 ? 8 : (t) == GT_Q5_0 ? 16 : 0)

enum { TILE_REGS = 12 }; /* most 16-byte words of a tile that a lane holds */

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

/* Column n from floats, by rule 1: thread `first` of `step` (a multiple of 8; the caller's SIMD groups are whole). norm: x is multiplied by *r and by
 * norm's weights first (rule 6). act: NULL, or where the act row goes besides. */
KFN void stage_floats(struct at at, SHM u32 *stage, u32 n_cols, u32 col, u32 n_in, DEV const float *x, DEV const float *norm, float r,
                      u32 first, u32 step, DEV u32 *act)
{
    u32 n_pad = GPU_PAD(n_in), blocks = n_pad / 32u;
    SHM u32 *q = stage + col * STAGE_STRIDE(n_pad);
    SHM u32 *s = stage + n_cols * STAGE_STRIDE(n_pad) + 2u * col;
    for (u32 i0 = 0; i0 < n_pad / 4u; i0 += step) { /* whole SIMD groups: n_pad / 4 is a multiple of 64 */
        u32 i = i0 + first;
        bool live = i < n_pad / 4u, full = 4u * i < n_in; /* n_in is a multiple of 32 */
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (full) {
            w4 raw = load16(x + 4u * i);
            v[0] = EX_FLOAT(raw.x);
            v[1] = EX_FLOAT(raw.y);
            v[2] = EX_FLOAT(raw.z);
            v[3] = EX_FLOAT(raw.w);
            if (norm) {
                w4 w = load16(norm + 4u * i);
                v[0] = ex_flush(v[0] * r * EX_FLOAT(w.x));
                v[1] = ex_flush(v[1] * r * EX_FLOAT(w.y));
                v[2] = ex_flush(v[2] * r * EX_FLOAT(w.z));
                v[3] = ex_flush(v[3] * r * EX_FLOAT(w.w));
            }
        }
        float d;
        i32 sum;
        u32 word = act_quantise_8(at, v, &d, &sum);
        if (!live)
            continue;
        u32 b = i / 8u, w = i % 8u, to = b / 2u * 16u + w % 4u * 4u + b % 2u * 2u + w / 4u;
        q[to] = word;
        if (act)
            act[to] = word;
        if (w == 0u) {
            s[2u * n_cols * b] = EX_BITS(d);
            s[2u * n_cols * b + 1u] = (u32)sum;
            if (act) {
                act[n_pad / 4u + b] = EX_BITS(d);
                act[n_pad / 4u + blocks + b] = (u32)sum;
            }
        }
    }
}

/* 1 / sqrt(mean of squares + eps) of a row, in every lane (rule 6). */
KFN float norm_of_row(struct at at, DEV const float *x, u32 n, float eps)
{
    float s = 0.0f;
    u32 i = at.lane;
    for (; i + 480u < n; i += 512u) {
        float v[16];
        UNROLL
        for (u32 j = 0; j < 16u; j++)
            v[j] = x[i + 32u * j];
        UNROLL
        for (u32 j = 0; j < 16u; j++) {
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

/* ---- a weight tile ---- */

/* The tile's lines asked for, by a SIMD group. */
KFN void tile_prefetch(struct at at, DEV const u8 *w, u32 bytes)
{
    for (u32 i = at.lane * 128u; i < bytes; i += 32u * 128u)
        prefetch(w + i);
}

/* Whether the next tile is loaded while this one is worked on: where two fit into 128 registers beside the sums. */
#define TILE_AHEAD(type) (GPU_TILE_BYTES(type) <= 2400u)

/* A lane's part of a tile: r[0..TILE_REGS) as tile_sums wants them. type is a constant. */
KFN void tile_load(struct at at, const u32 type, DEV const u8 *w, THR w4 *r)
{
    u32 g = at.lane >> 2;
    DEV const u8 *at_lane = w + at.lane * 16u;
    UNROLL
    for (u32 c = 0; c < 4u; c++)
        r[c] = load16_once(at_lane + c * 512u);
    if (type == GT_Q8_0) {
        UNROLL
        for (u32 c = 4; c < 8u; c++)
            r[c] = load16_once(at_lane + c * 512u);
        r[8] = load16_once(w + 4096u + g * 16u);
        r[9] = load16_once(w + 4096u + 128u + g * 16u);
        return;
    }
    w += 2048u;
    if (TYPE_HAS_FIFTH(type)) {
        r[8] = load16_once(w + at.lane * 16u);
        w += 512u;
    }
    if (type == GT_Q6_K) {
        r[8] = load16_once(w + at.lane * 16u);
        r[9] = load16_once(w + 512u + at.lane * 16u);
        w += 1024u;
    }
    r[4] = load16_once(w + g * 16u); /* d; scmn; sc */
    r[5] = load16_once(w + 128u + g * 16u);
    if (TYPE_HAS_MIN(type)) {
        r[6] = load16_once(w + 256u + g * 16u);
        r[7] = load16_once(w + 384u + g * 16u);
    }
    if (type == GT_Q4_K || type == GT_Q5_K) {
        r[6].x = *(DEV const u32 *)(w + 256u + g * 4u); /* d, dmin */
        r[6].y = *(DEV const u32 *)(w + 256u + 32u + g * 4u);
    }
    if (type == GT_Q6_K) {
        r[6].x = *(DEV const u16 *)(w + 256u + g * 2u);
        r[6].y = *(DEV const u16 *)(w + 256u + 16u + g * 2u);
    }
}

/* The tile loaded ahead (TILE_AHEAD: q4_0, q4_k) becomes the tile at hand. */
KFN void tile_take(const u32 type, THR w4 *r, THR const w4 *next)
{
    UNROLL
    for (u32 k = 0; k < 6u; k++)
        r[k] = next[k];
    if (type == GT_Q4_K) {
        r[6].x = next[6].x;
        r[6].y = next[6].y;
    }
}

KFN u32 word_of(w4 v, const u32 i)
{
    return i == 0u ? v.x : i == 1u ? v.y : i == 2u ? v.z : v.w;
}

KFN u32 half_of(w4 v, const u32 i)
{
    return word_of(v, i / 2u) >> 16u * (i % 2u) & 0xFFFFu;
}

KFN u32 byte_of(w4 v, const u32 i)
{
    return word_of(v, i / 4u) >> 8u * (i % 4u) & 0xFFu;
}

KFN i32 signed_byte_of(w4 v, const u32 i)
{
    return (i32)(word_of(v, i / 4u) << (24u - 8u * (i % 4u))) >> 24;
}

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

/* Integers of block k of the tile (a constant) for this lane. */
KFN void tile_ints(const u32 type, THR const w4 *r, const u32 k, THR u32 *a)
{
    if (type == GT_Q8_0) {
        a[0] = r[k].x;
        a[1] = r[k].y;
        a[2] = r[k].z;
        a[3] = r[k].w;
        return;
    }
    u32 lo = word_of(r[k / 2u], k % 2u * 2u), hi = word_of(r[k / 2u], k % 2u * 2u + 1u);
    a[0] = lo & 0x0F0F0F0Fu;
    a[1] = hi & 0x0F0F0F0Fu;
    a[2] = lo >> 4 & 0x0F0F0F0Fu;
    a[3] = hi >> 4 & 0x0F0F0F0Fu;
    if (TYPE_HAS_FIFTH(type)) {
        u32 bits = half_of(r[8], k);
        a[0] |= spread_fifth(bits);
        a[2] |= spread_fifth(bits >> 4);
        a[1] |= spread_fifth(bits >> 8);
        a[3] |= spread_fifth(bits >> 12);
    }
    if (type == GT_Q6_K) {
        u32 bits = word_of(r[8u + k / 4u], k % 4u);
        a[0] |= spread_sixth(bits);
        a[1] |= spread_sixth(bits >> 8);
        a[2] |= spread_sixth(bits >> 16);
        a[3] |= spread_sixth(bits >> 24);
        UNROLL
        for (u32 i = 0; i < 4u; i++) { /* less 32, byte by byte: bit 5 turned round, then spread upwards */
            u32 y = a[i] ^ 0x20202020u;
            a[i] = y + (y & 0x20202020u) * 6u;
        }
    }
}

/* Where a lane finds its columns in the staged rows, for each 8 of them: q of column g, scale and sum of columns 2t and 2t + 1. */
struct columns {
    u32 q, s0, s1;
};

/* v[8 columns][4] = the sums of a tile (see above). n8: number of 8 columns, type: constants. stage: the shared memory; seg: the tile's number
 * along the row; n_cols: staged columns. */
KFN void tile_sums(struct at at, const u32 n8, const u32 type, THR const w4 *r, SHM const u32 *stage, u32 n_pad, u32 n_cols, u32 seg,
                   THR const struct columns *col, THR float *v)
{
    float low[4 * 8]; /* the second sum of types with a minimum */
    SHM const u32 *q = stage + seg * 64u;
    SHM const u32 *s = stage + n_cols * STAGE_STRIDE(n_pad) + seg * 16u * n_cols;
    w4 both[8];
    UNROLL
    for (u32 i = 0; i < 4u * n8; i++) {
        v[i] = 0.0f;
        low[i] = 0.0f;
    }
    UNROLL
    for (u32 two = 0; two < 4u; two++) {
        UNROLL
        for (u32 j = 0; j < n8; j++)
            both[j] = load16(q + col[j].q + two * 16u);
        UNROLL
        for (u32 odd = 0; odd < 2u; odd++) {
            const u32 k = 2u * two + odd;
            u32 a[4];
            float dw0 = 0.0f, dw1 = 0.0f, mw0 = 0.0f, mw1 = 0.0f, dh0 = 0.0f, dh1 = 0.0f;
            tile_ints(type, r, k, a);
            if (TYPE_IS_32(type)) {
                dw0 = half_value(half_of(r[type == GT_Q8_0 ? 8u : 4u], k));
                dw1 = half_value(half_of(r[type == GT_Q8_0 ? 9u : 5u], k));
            } else if (type == GT_Q6_K) {
                dw0 = (float)signed_byte_of(r[4], 2u * k);
                dh0 = (float)signed_byte_of(r[4], 2u * k + 1u);
                dw1 = (float)signed_byte_of(r[5], 2u * k);
                dh1 = (float)signed_byte_of(r[5], 2u * k + 1u);
            } else {
                dw0 = (float)(i32)byte_of(r[4], k);
                dw1 = (float)(i32)byte_of(r[5], k);
                mw0 = (float)(i32)byte_of(r[4], 8u + k);
                mw1 = (float)(i32)byte_of(r[5], 8u + k);
            }
            if (TYPE_HAS_MIN(type)) {
                mw0 = half_value(half_of(r[6], k));
                mw1 = half_value(half_of(r[7], k));
            }
            UNROLL
            for (u32 j = 0; j < n8; j++) {
                u32 bb[2] = {odd ? both[j].z : both[j].x, odd ? both[j].w : both[j].y};
                w2 c0 = load8(s + 2u * n_cols * k + col[j].s0), c1 = load8(s + 2u * n_cols * k + col[j].s1);
                float dx0 = EX_FLOAT(c0.x), dx1 = EX_FLOAT(c1.x);
                i32 c[4];
                c[0] = MAGIC_BITS - TYPE_OFFSET(type) * (i32)c0.y;
                c[1] = MAGIC_BITS - TYPE_OFFSET(type) * (i32)c1.y;
                c[2] = c[0];
                c[3] = c[1];
                THR float *p = v + 4u * j, *m = low + 4u * j;
                if (type == GT_Q6_K) {
                    i32 h[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
                    tile_16(at, c, a[0], a[1], bb[0]);
                    tile_16(at, h, a[2], a[3], bb[1]);
                    float f[4], e[4];
                    UNROLL
                    for (u32 i = 0; i < 4u; i++) {
                        f[i] = EX_FLOAT((u32)c[i]) - EX_MAGIC;
                        e[i] = EX_FLOAT((u32)h[i]) - EX_MAGIC;
                    }
                    /* exact: at most 16,646,144 < 2^24 */
                    p[0] = EX_FMA(EX_FMA(dh0, e[0], dw0 * f[0]), dx0, p[0]);
                    p[1] = EX_FMA(EX_FMA(dh0, e[1], dw0 * f[1]), dx1, p[1]);
                    p[2] = EX_FMA(EX_FMA(dh1, e[2], dw1 * f[2]), dx0, p[2]);
                    p[3] = EX_FMA(EX_FMA(dh1, e[3], dw1 * f[3]), dx1, p[3]);
                    continue;
                }
                if (type == GT_Q8_0)
                    tile_s(at, c, a, bb);
                else
                    tile_u(at, c, a, bb);
                float f[4];
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
    if (TYPE_HAS_MIN(type)) {
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++)
            v[i] = v[i] + low[i];
    }
    if (!TYPE_IS_32(type)) {
        float d0 = half_value(r[6].x & 0xFFFFu), d1 = half_value(r[6].y & 0xFFFFu), n0 = half_value(r[6].x >> 16), n1 = half_value(r[6].y >> 16);
        UNROLL
        for (u32 i = 0; i < 4u * n8; i++) {
            v[i] = EX_FMA(i % 4u < 2u ? d0 : d1, v[i], 0.0f);
            if (type != GT_Q6_K)
                v[i] = EX_FMA(-(i % 4u < 2u ? n0 : n1), low[i], v[i]);
        }
    }
}

/* Where a lane's columns lie when column n of the tile is staged column n. */
KFN void columns_in_order(struct at at, const u32 n8, u32 n_pad, THR struct columns *col)
{
    UNROLL
    for (u32 j = 0; j < n8; j++) {
        col[j].q = (8u * j + (at.lane >> 2)) * STAGE_STRIDE(n_pad) + (at.lane & 3u) * 4u;
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
