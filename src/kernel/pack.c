/* File blocks -> panels of 16 rows, and one row back out of them. See pack.h for both layouts' bytes.
 *
 * Packing moves four elements at a time: files and panels both keep them in the bytes of a word, so a block becomes a few
 * shifts and masks a row. Unpacking a row goes element by element, from the panel's layout alone. */
#include "kernel/pack.h"

#include "base/exact.h"
#include "kernel/kernel.h"

#include <string.h>

struct block {
    u16 d, m;     /* half scales: of the integers, of the minimum */
    u8 sc[16];    /* K types: sub-scales; q6_k: 16 of i8, else 8 */
    u8 mn[8];     /* q4_k, q5_k: sub-minimums */
    u8 q[256];    /* integers as stored: unsigned; q8_0: i8 */
};

/* What a panel of one type holds for each block, in bytes and in this order. */
struct planes {
    u32 elems;    /* in a block */
    u32 halves;   /* planes of 16 halves: d, then m */
    u32 subs;     /* bytes of sub-scales and sub-minimums for each row */
    u32 bits;     /* of an integer: 4, 5, 6, 8 */
};

static const struct planes PLANES[DT_LIMIT] = {
    [DT_Q4_0] = {32, 1, 0, 4},   [DT_Q4_1] = {32, 2, 0, 4},   [DT_Q5_0] = {32, 1, 0, 5},
    [DT_Q5_1] = {32, 2, 0, 5},   [DT_Q8_0] = {32, 1, 0, 8},   [DT_Q4_K] = {256, 2, 16, 4},
    [DT_Q5_K] = {256, 2, 16, 5}, [DT_Q6_K] = {256, 1, 16, 6},
};

static u16 u16_at(const u8 *p)
{
    return (u16)(p[0] | p[1] << 8);
}

static u32 u32_at(const u8 *p)
{
    return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

static bool half_finite(u16 h)
{
    return (h & 0x7C00) != 0x7C00;
}

/* ---- one block of the file -> a lane of the panel's planes ---- */

enum { LOW = 0x0F0F0F0F };

static u32 word_at(const u8 *p) /* in memory's order: bytes stay bytes on every machine */
{
    u32 w;
    memcpy(&w, p, 4);
    return w;
}

static void put_word(u8 *plane, u32 v, u32 lane, u32 w)
{
    memcpy(plane + v * 64 + lane * 4, &w, 4);
}

static void put_half(u8 *plane, u32 lane, const u8 *from)
{
    memcpy(plane + 2 * lane, from, 2);
}

/* 32 elements, four in the low nibbles of each of 8 words. */
static void put_nibbles(u8 *at, u32 lane, const u32 w[8])
{
    for (u32 v = 0; v < 4; v++)
        put_word(at, v, lane, w[2 * v] | w[2 * v + 1] << 4);
}

/* n words' low or high nibbles. */
static void take_nibbles(u32 *w, const u8 *p, u32 n, u32 shift)
{
    for (u32 i = 0; i < n; i++)
        w[i] = word_at(p + 4 * i) >> shift & LOW;
}

/* q4_0, q4_1, q5_0, q5_1: the lower half of a block in the low nibbles, then the upper. The bit plane is the file's. */
static void put_block_32(u8 *at, u32 lane, const u8 *p, u32 bits)
{
    u32 w[8];
    const u8 *q = bits == 5 ? p + 4 : p;
    take_nibbles(w, q, 4, 0);
    take_nibbles(w + 4, q, 4, 4);
    put_nibbles(at, lane, w);
    if (bits == 5)
        memcpy(at + 256 + 4 * lane, p, 4);
}

static void put_bytes(u8 *at, u32 lane, const u8 *p)
{
    for (u32 g = 0; g < 8; g++)
        put_word(at, g, lane, word_at(p + 4 * g));
}

/* Six-bit sub-scales and sub-minimums of q4_k and q5_k: eight of each in 12 bytes. The first four of both lie
 * in the low six bits of bytes 0-3 and 4-7; the others have their low nibble in bytes 8-11 and their upper two
 * bits above the first ones. */
static void put_k_scales(u8 *at, u32 lane, const u8 *p)
{
    u8 *sc = at + lane, *mn = sc + 8 * PANEL;
    for (u32 j = 0; j < 4; j++) {
        sc[j * PANEL] = p[j] & 63;
        mn[j * PANEL] = p[j + 4] & 63;
        sc[(j + 4) * PANEL] = (u8)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        mn[(j + 4) * PANEL] = (u8)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

/* Bit j of 8 bytes, the first lowest: the product brings bit 0 of byte i to bit 56 + i, and no two sums meet. */
static u8 bits_of(const u8 *p, u32 j)
{
    u64 x = 0;
    for (u32 i = 0; i < 8; i++)
        x |= (u64)p[i] << 8 * i;
    return (u8)(((x >> j & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
}

/* Integers of q4_k and q5_k: each 32 bytes hold one sub-block low and the next one high. Bit j of byte i of `high` belongs
 * to element i of sub-block j. */
static void put_k_block(u8 *at, u32 lane, const u8 *p, const u8 *high)
{
    u32 w[8], group = high ? 320 : 256;
    for (u32 j = 0; j < 8; j++, at += group) {
        take_nibbles(w, p + 32 * (j / 2), 8, j % 2 * 4);
        put_nibbles(at, lane, w);
        for (u32 i = 0; high && i < 4; i++)
            at[256 + 4 * lane + i] = bits_of(high + 8 * i, j);
    }
}

/* Integers of q6_k: of each 128, group g has its nibbles in the low (g < 2) or high half of 32 bytes and its upper bits in
 * bits 2g of 32 others. */
static void put_6k_block(u8 *at, u32 lane, const u8 *low, const u8 *high)
{
    u32 w[8];
    for (u32 j = 0; j < 8; j++, at += 384) {
        const u8 *p = low + j / 4 * 64 + j % 2 * 32, *h = high + j / 4 * 32;
        take_nibbles(w, p, 8, j % 4 / 2 * 4);
        put_nibbles(at, lane, w);
        for (u32 v = 0; v < 2; v++) {
            u32 up = 0;
            for (u32 i = 0; i < 4; i++)
                up |= (word_at(h + 16 * v + 4 * i) >> j % 4 * 2 & 0x03030303u) << 2 * i;
            put_word(at + 256, v, lane, up);
        }
    }
}

/* One row's block; false when a scale is not finite. */
static bool put_block(enum dtype type, u8 *at, u32 lane, const u8 *p)
{
    const u8 *d = p, *m = NULL;
    switch (type) {
    case DT_Q4_0:
        put_block_32(at + 2 * PANEL, lane, p + 2, 4);
        break;
    case DT_Q4_1:
        m = p + 2;
        put_block_32(at + 4 * PANEL, lane, p + 4, 4);
        break;
    case DT_Q5_0:
        put_block_32(at + 2 * PANEL, lane, p + 2, 5);
        break;
    case DT_Q5_1:
        m = p + 2;
        put_block_32(at + 4 * PANEL, lane, p + 4, 5);
        break;
    case DT_Q8_0:
        put_bytes(at + 2 * PANEL, lane, p + 2);
        break;
    case DT_Q4_K:
    case DT_Q5_K:
        m = p + 2;
        put_k_scales(at + 4 * PANEL, lane, p + 4);
        put_k_block(at + 20 * PANEL, lane, type == DT_Q4_K ? p + 16 : p + 48, type == DT_Q4_K ? NULL : p + 16);
        break;
    default: /* DT_Q6_K */
        d = p + 208;
        for (u32 j = 0; j < 16; j++)
            at[2 * PANEL + j * PANEL + lane] = p[192 + j];
        put_6k_block(at + 18 * PANEL, lane, p, p + 128);
        break;
    }
    put_half(at, lane, d);
    if (m)
        put_half(at + 2 * PANEL, lane, m);
    return half_finite(u16_at(d)) && (!m || half_finite(u16_at(m)));
}

/* ---- a lane of the panel's planes -> integers ---- */

static u32 group_bytes(u32 bits) /* of 32 elements of 16 rows */
{
    return PANEL * ACT_BLOCK / 8 * bits;
}

static u32 block_bytes(const struct planes *f)
{
    return f->halves * PANEL * 2 + f->subs * PANEL + f->elems / ACT_BLOCK * group_bytes(f->bits);
}

static void get_group(const u8 *at, u32 lane, u32 bits, u8 *q)
{
    if (bits == 8) {
        for (u32 k = 0; k < 32; k++)
            q[k] = at[k / 4 * 64 + lane * 4 + k % 4];
        return;
    }
    const u8 *up = at + 256;
    for (u32 k = 0; k < 32; k++) {
        u32 v = at[k / 8 * 64 + lane * 4 + k % 4];
        u32 high = 0;
        if (bits == 5)
            high = up[4 * lane + k / 8] >> k % 8 & 1;
        else if (bits == 6)
            high = up[k / 16 * 64 + lane * 4 + k % 4] >> k % 16 / 4 * 2 & 3;
        q[k] = (u8)((k % 8 < 4 ? v & 15 : v >> 4) | high << 4);
    }
}

static void get_block(const struct planes *f, const u8 *at, u32 lane, struct block *b)
{
    b->d = u16_at(at + 2 * lane);
    b->m = f->halves == 2 ? u16_at(at + 2 * PANEL + 2 * lane) : 0;
    at += f->halves * PANEL * 2;
    for (u32 j = 0; j < f->subs; j++) {
        u8 s = at[j * PANEL + lane];
        if (f->bits == 6 || j < 8)
            b->sc[j] = s;
        else
            b->mn[j - 8] = s;
    }
    at += f->subs * PANEL;
    for (u32 g = 0; g < f->elems / ACT_BLOCK; g++)
        get_group(at + g * group_bytes(f->bits), lane, f->bits, b->q + ACT_BLOCK * g);
}

/* ---- whole panels ---- */

u32 pack_panels(u32 n_out)
{
    return (n_out + PANEL - 1) / PANEL;
}

u64 pack_panel_bytes(enum dtype type, u32 n_in)
{
    const struct dtype_info *t = dtype_info(type);
    if (!t || n_in % t->block_elems)
        return 0;
    if (!t->quantised)
        return (u64)n_in * PANEL * t->block_bytes;
    return (u64)(n_in / t->block_elems) * block_bytes(&PLANES[type]);
}

/* One float weight as it will be multiplied: its bits in the stored type, flushed. False when not finite. */
static bool read_float(enum dtype type, const u8 *p, u64 i, float *out)
{
    float x;
    if (type == DT_F32)
        x = EX_FLOAT(u32_at(p + 4 * i));
    else if (type == DT_F16)
        x = ex_half(u16_at(p + 2 * i));
    else
        x = ex_bf16(u16_at(p + 2 * i));
    *out = ex_flush(x);
    return (EX_BITS(x) & 0x7F800000u) != 0x7F800000u;
}

/* Flushed in their own bits: no half but zero is below 2^-40; a bfloat16's bits are a float's upper ones. */
static u32 flush_bits(u32 u, u32 sign, u32 least)
{
    return (u & ~sign) < least ? 0 : u;
}

static bool pack_float_row(enum dtype type, const u8 *src, u32 n_in, u8 *panel, u32 lane)
{
    bool finite = true;
    u32 tiny = EX_BITS(EX_TINY);
    if (type == DT_F32)
        for (u32 k = 0; k < n_in; k++) {
            u32 u = u32_at(src + 4 * k);
            finite &= (u & 0x7F800000u) != 0x7F800000u;
            u = flush_bits(u, 0x80000000u, tiny);
            memcpy(panel + 64 * (u64)k + 4 * lane, &u, 4);
        }
    u32 most = type == DT_F16 ? 0x7C00 : 0x7F80, least = type == DT_F16 ? 1 : tiny >> 16;
    if (type != DT_F32)
        for (u32 k = 0; k < n_in; k++) {
            u32 u = u16_at(src + 2 * k);
            finite &= (u & most) != most;
            u16 h = (u16)flush_bits(u, 0x8000, least);
            memcpy(panel + 32 * (u64)k + 2 * lane, &h, 2);
        }
    return finite;
}

/* A panel of n rows; the first row that holds something not finite, or n. */
static u32 pack_quant_panel(enum dtype type, const u8 *src, u64 row_bytes, u32 n_in, u8 *panel, u32 n)
{
    const struct planes *f = &PLANES[type];
    u32 file_bytes = dtype_info(type)->block_bytes, bytes = block_bytes(f), bad = 0, first = 0;
    for (u32 i = 0; i < n_in / f->elems; i++, src += file_bytes, panel += bytes)
        for (u32 lane = 0; lane < n; lane++)
            bad |= (u32)!put_block(type, panel, lane, src + lane * row_bytes) << lane;
    while (first < n && !(bad >> first & 1))
        first++;
    return first;
}

static u32 pack_float_panel(enum dtype type, const u8 *src, u64 row_bytes, u32 n_in, u8 *panel, u32 n)
{
    for (u32 lane = 0; lane < n; lane++)
        if (!pack_float_row(type, src + lane * row_bytes, n_in, panel, lane))
            return lane;
    return n;
}

int pack(enum dtype type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row)
{
    const struct dtype_info *t = dtype_info(type);
    u64 row_bytes = (u64)(n_in / t->block_elems) * t->block_bytes;
    u64 panel_bytes = pack_panel_bytes(type, n_in);
    for (u32 p = p0; p < p1; p++) {
        u8 *panel = dst + p * panel_bytes;
        u32 row = p * PANEL, n = min_u32(PANEL, n_out - row);
        if (n < PANEL)
            memset(panel, 0, panel_bytes);
        u32 good = (t->quantised ? pack_quant_panel : pack_float_panel)(type, src + row * row_bytes, row_bytes, n_in, panel, n);
        if (good < n) {
            *bad_row = row + good;
            return -1;
        }
    }
    return 0;
}

int pack_floats(enum dtype type, const u8 *src, u64 n, float *dst)
{
    bool finite = true;
    for (u64 i = 0; i < n; i++)
        finite &= read_float(type, src, i, dst + i);
    return finite ? 0 : -1;
}

/* ---- one row back: embeddings ---- */

/* Element i of a block as its value: integers first, then the scale, then the minimum (rule 4). */
static float block_value(enum dtype type, const struct block *b, u32 i)
{
    float d = ex_half(b->d), m = ex_half(b->m);
    i32 q = b->q[i];
    switch (type) {
    case DT_Q4_0:
        return (float)(q - 8) * d;
    case DT_Q5_0:
        return (float)(q - 16) * d;
    case DT_Q4_1:
    case DT_Q5_1:
        return (float)q * d + m;
    case DT_Q8_0:
        return (float)(i8)q * d;
    case DT_Q4_K:
    case DT_Q5_K:
        return (float)(b->sc[i / 32] * q) * d - (float)b->mn[i / 32] * m;
    default: /* DT_Q6_K */
        return (float)((i8)b->sc[i / 16] * (q - 32)) * d;
    }
}

void unpack_row(enum dtype type, const u8 *w, u32 n_in, u32 row, float *y)
{
    const struct dtype_info *t = dtype_info(type);
    const u8 *panel = w + row / PANEL * pack_panel_bytes(type, n_in);
    u32 lane = row % PANEL;
    if (!t->quantised) {
        for (u32 k = 0; k < n_in; k++)
            read_float(type, panel, (u64)k * PANEL + lane, y + k);
        return;
    }
    const struct planes *f = &PLANES[type];
    struct block b;
    memset(&b, 0, sizeof b);
    for (u32 i = 0; i < n_in / f->elems; i++, panel += block_bytes(f)) {
        get_block(f, panel, lane, &b);
        for (u32 k = 0; k < f->elems; k++)
            y[i * f->elems + k] = ex_flush(block_value(type, &b, k));
    }
}
