/* File blocks -> the GPU's panels (gpu/layout.h), on the host that uploads them.
 *
 * A tile keeps a lane's four words together, so packing is moving words of four elements: q4_0, q4_1, q5_0, q5_1
 * and q8_0 have them in the file as they are, K types after a shift and a mask. A row's part of a tile is read once, from
 * front to back. What kernel/pack.c refuses is refused here, with the same row; what it flushes is flushed.
 *
 * For little-endian hosts, as are all that GPUs stand in. */
#include "device/dev_gpu.h"

#include "base/dtype.h"
#include "base/exact.h"
#include "gpu/layout.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    BLOCKS = GPU_SEG / 32, /* in a tile */
    CHUNK = 32 * 16,       /* bytes: a lane's 16 of each of 32 lanes */
    LOW = 0x0F0F0F0F,
    HALVES = GPU_PANEL * BLOCKS * 2 /* bytes of a half for every row and block */
};

INLINE u32 word_at(const u8 *p)
{
    u32 w;
    memcpy(&w, p, 4);
    return w;
}

INLINE u16 half_at(const u8 *p)
{
    u16 h;
    memcpy(&h, p, 2);
    return h;
}

INLINE bool half_finite(u16 h)
{
    return (h & 0x7C00) != 0x7C00;
}

/* ---- a block of 32 of one row -> its places in the planes of a tile ---- */

/* The first byte of the lane that works on this row's words t. */
INLINE u8 *lane_at(u8 *chunk, u32 row, u32 t)
{
    return chunk + (row % 8 * 4 + t) * 16;
}

INLINE void put_nibbles(u8 *plane, u32 row, u32 b, const u32 w[4])
{
    u8 *at = plane + b / 2 * CHUNK + b % 2 * 8 + row / 8 * 4;
    for (u32 t = 0; t < 4; t++)
        memcpy(lane_at(at, row, t), &w[t], 4);
}

/* bits: bit k is the fifth bit of element k. */
INLINE void put_fifth(u8 *plane, u32 row, u32 b, u32 bits)
{
    for (u32 t = 0; t < 4; t++)
        lane_at(plane, row, t)[2 * b + row / 8] = (u8)((bits >> 4 * t & 15) | (bits >> (12 + 4 * t) & 0xF0));
}

/* Two bits of each of four bytes side by side. */
INLINE u8 pairs_of(u32 w)
{
    w &= 0x03030303;
    w |= w >> 6;
    return (u8)(w | w >> 12);
}

/* up: the upper bits of elements 4i..4i+3 are bits 0-1 of word i's bytes. */
INLINE void put_sixth(u8 *plane, u32 row, u32 b, const u32 up[8])
{
    u8 *at = plane + b / 4 * CHUNK + b % 4 * 4 + row / 8;
    for (u32 t = 0; t < 4; t++) {
        lane_at(at, row, t)[0] = pairs_of(up[t]);
        lane_at(at, row, t)[2] = pairs_of(up[4 + t]);
    }
}

INLINE void put_bytes(u8 *plane, u32 row, u32 b, const u8 *p)
{
    u8 *at = plane + b * CHUNK + row / 8 * 4;
    for (u32 t = 0; t < 4; t++) {
        memcpy(lane_at(at, row, t), p + 4 * t, 4);
        memcpy(lane_at(at, row, t) + 8, p + 16 + 4 * t, 4);
    }
}

/* 32 bytes' low (shift 0) or high (4) nibbles, elements 16.. above elements 0.. */
INLINE void fold_nibbles(u32 w[4], const u8 *p, u32 shift)
{
    for (u32 t = 0; t < 4; t++)
        w[t] = (word_at(p + 4 * t) >> shift & LOW) | (word_at(p + 16 + 4 * t) >> shift & LOW) << 4;
}

/* ---- one row of a tile; false when a scale is not finite ---- */

/* Types with blocks of 32: n of them, bits 4, 5 or 8. */
INLINE bool put_row_32(u8 *tile, u32 row, const u8 *p, u32 n, u32 bits, bool has_min)
{
    u8 *fifth = tile + 4 * CHUNK, *d = tile + (bits == 8 ? 8 : bits == 5 ? 5 : 4) * CHUNK + row * BLOCKS * 2;
    bool finite = true;
    for (u32 b = 0; b < n; b++) {
        finite &= half_finite(half_at(p));
        memcpy(d + 2 * b, p, 2);
        p += 2;
        if (has_min) {
            finite &= half_finite(half_at(p));
            memcpy(d + HALVES + 2 * b, p, 2);
            p += 2;
        }
        if (bits == 5) {
            put_fifth(fifth, row, b, word_at(p));
            p += 4;
        }
        if (bits == 8) {
            put_bytes(tile, row, b, p);
            p += 32;
        } else {
            u32 w[4];
            memcpy(w, p, 16);
            put_nibbles(tile, row, b, w);
            p += 16;
        }
    }
    return finite;
}

/* Six-bit sub-scales and sub-minimums of q4_k and q5_k: eight of each in 12 bytes. The first four of both lie in the
 * low six bits of bytes 0-3 and 4-7; the others have their low nibble in bytes 8-11 and their upper two bits above
 * the first ones. */
INLINE void put_k_scales(u8 *at, const u8 *p)
{
    u32 a = word_at(p), b = word_at(p + 4), c = word_at(p + 8);
    u32 out[4] = {a & 0x3F3F3F3F, (c & LOW) | (a >> 2 & 0x30303030),
                  b & 0x3F3F3F3F, (c >> 4 & LOW) | (b >> 2 & 0x30303030)};
    memcpy(at, out, 16);
}

/* Bit j of 32 bytes, the first lowest. Of eight: the product brings bit 0 of byte i to bit 56 + i, and no two sums meet. */
INLINE u32 bits_of(const u64 x[4], u32 j)
{
    u32 bits = 0;
    for (u32 i = 0; i < 4; i++)
        bits |= (u32)((x[i] >> j & 0x0101010101010101u) * 0x0102040810204080u >> 56) << 8 * i;
    return bits;
}

/* q4_k and q5_k: each 32 bytes hold one sub-block low and the next one high; bit j of byte i of the upper bits belongs to
 * element i of sub-block j. */
INLINE bool put_row_k(u8 *tile, u32 row, const u8 *p, u32 bits)
{
    u8 *scmn = tile + (bits == 5 ? 5 : 4) * CHUNK, *dd = scmn + GPU_PANEL * 16;
    const u8 *q = p + (bits == 5 ? 48 : 16);
    u64 high[4] = {0};
    put_k_scales(scmn + 16 * row, p + 4);
    memcpy(dd + 4 * row, p, 4);
    if (bits == 5)
        memcpy(high, p + 16, sizeof high);
    for (u32 j = 0; j < BLOCKS; j++) {
        u32 w[4];
        fold_nibbles(w, q + 32 * (j / 2), j % 2 * 4);
        put_nibbles(tile, row, j, w);
        if (bits == 5)
            put_fifth(tile + 4 * CHUNK, row, j, bits_of(high, j));
    }
    return half_finite(half_at(p)) && half_finite(half_at(p + 2));
}

/* q6_k: of each 128, group g has its nibbles in the low (g < 2) or high half of 32 bytes and its upper bits in bits 2g
 * of 32 others. */
INLINE bool put_row_6k(u8 *tile, u32 row, const u8 *p)
{
    u8 *sc = tile + 6 * CHUNK, *d1 = sc + GPU_PANEL * 16;
    memcpy(sc + 16 * row, p + 192, 16);
    memcpy(d1 + 2 * row, p + 208, 2);
    for (u32 j = 0; j < BLOCKS; j++) {
        const u8 *low = p + j / 4 * 64 + j % 2 * 32, *high = p + 128 + j / 4 * 32;
        u32 w[4], up[8];
        fold_nibbles(w, low, j % 4 / 2 * 4);
        put_nibbles(tile, row, j, w);
        for (u32 i = 0; i < 8; i++)
            up[i] = word_at(high + 4 * i) >> j % 4 * 2;
        put_sixth(tile + 4 * CHUNK, row, j, up);
    }
    return half_finite(half_at(p + 208));
}

INLINE bool put_row_f32(u8 *tile, u32 row, const u8 *p, u32 n)
{
    bool finite = true;
    for (u32 k = 0; k < n; k++) {
        u32 u = word_at(p + 4 * k);
        finite &= (u & 0x7F800000u) != 0x7F800000u;
        u = (u & 0x7FFFFFFFu) < EX_BITS(EX_TINY) ? 0 : u;
        memcpy(tile + (GPU_PANEL * k + row) * 4, &u, 4);
    }
    return finite;
}

/* Flushed in their own bits: no half but zero is below 2^-40 (least 1); a bfloat16's bits are a float's upper ones. */
INLINE bool put_row_16(u8 *tile, u32 row, const u8 *p, u32 n, u32 exponent, u32 least)
{
    bool finite = true;
    for (u32 k = 0; k < n; k++) {
        u16 h = half_at(p + 2 * k);
        finite &= (h & exponent) != exponent;
        h = (h & 0x7FFF) < least ? 0 : h;
        memcpy(tile + (GPU_PANEL * k + row) * 2, &h, 2);
    }
    return finite;
}

/* n: elements of this row in this tile, a multiple of the type's block. */
static bool put_row(u32 type, u8 *tile, u32 row, const u8 *p, u32 n)
{
    switch (type) {
    case GT_Q4_0:
        return put_row_32(tile, row, p, n / 32, 4, false);
    case GT_Q4_1:
        return put_row_32(tile, row, p, n / 32, 4, true);
    case GT_Q5_0:
        return put_row_32(tile, row, p, n / 32, 5, false);
    case GT_Q5_1:
        return put_row_32(tile, row, p, n / 32, 5, true);
    case GT_Q8_0:
        return put_row_32(tile, row, p, n / 32, 8, false);
    case GT_Q4_K:
        return put_row_k(tile, row, p, 4);
    case GT_Q5_K:
        return put_row_k(tile, row, p, 5);
    case GT_Q6_K:
        return put_row_6k(tile, row, p);
    case GT_F32:
        return put_row_f32(tile, row, p, n);
    case GT_F16:
        return put_row_16(tile, row, p, n, 0x7C00, 1);
    default: /* GT_BF16 */
        return put_row_16(tile, row, p, n, 0x7F80, EX_BITS(EX_TINY) >> 16);
    }
}

/* ---- whole panels ---- */

u64 gpu_panel_bytes(u32 type, u32 n_in)
{
    const struct dtype_info *t = dtype_info(type);
    if (!t || n_in % t->block_elems)
        return 0;
    return (u64)(GPU_PAD(n_in) / GPU_SEG) * GPU_TILE_BYTES(type);
}

int gpu_pack(u32 type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row)
{
    const struct dtype_info *t = dtype_info(type);
    u32 tile_bytes = GPU_TILE_BYTES(type), seg_bytes = GPU_SEG / t->block_elems * t->block_bytes;
    u64 row_bytes = (u64)(n_in / t->block_elems) * t->block_bytes;
    for (u32 p = p0; p < p1; p++) {
        u32 row = p * GPU_PANEL, n = min_u32(GPU_PANEL, n_out - row), bad = 0;
        const u8 *from = src + row * row_bytes;
        for (u32 k = 0; k < n_in; k += GPU_SEG, from += seg_bytes, dst += tile_bytes) {
            u32 width = min_u32(GPU_SEG, n_in - k);
            if (n < GPU_PANEL || width < GPU_SEG)
                memset(dst, 0, tile_bytes);
            for (u32 i = 0; i < n; i++)
                bad |= (u32)!put_row(type, dst, i, from + i * row_bytes, width) << i;
        }
        if (bad) {
            *bad_row = row + (u32)__builtin_ctz(bad);
            return -1;
        }
    }
    return 0;
}
