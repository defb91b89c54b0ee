/* File blocks -> panels of 16 rows, and one row back out of them. See pack.h for both layouts' bytes.
 *
 * Every format is read in two steps: one block of one row becomes plain integers and scales (struct block), then
 * those go to their lane in the panel's planes. So each file layout is spelled out once, here. */
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

/* ---- one block of the file -> integers ---- */

/* Nibbles of q4_0, q4_1, q5_0, q5_1: the lower half of a block in the low nibbles, then the upper. */
static void read_nibbles(u8 *q, const u8 *p)
{
    for (u32 i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

static void read_fifth_bits(u8 *q, u32 bits)
{
    for (u32 i = 0; i < 32; i++)
        q[i] |= (u8)((bits >> i & 1) << 4);
}

/* Six-bit sub-scales and sub-minimums of q4_k and q5_k: eight of each in 12 bytes. The first four of both lie
 * in the low six bits of bytes 0-3 and 4-7; the others have their low nibble in bytes 8-11 and their upper two
 * bits above the first ones. */
static void read_k_scales(struct block *b, const u8 *p)
{
    for (u32 j = 0; j < 4; j++) {
        b->sc[j] = p[j] & 63;
        b->mn[j] = p[j + 4] & 63;
        b->sc[j + 4] = (u8)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        b->mn[j + 4] = (u8)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

/* 256 nibbles of q4_k and q5_k: each 32 bytes hold one sub-block low and the next one high. */
static void read_k_nibbles(u8 *q, const u8 *p)
{
    for (u32 j = 0; j < 4; j++)
        for (u32 i = 0; i < 32; i++) {
            q[64 * j + i] = p[32 * j + i] & 15;
            q[64 * j + 32 + i] = p[32 * j + i] >> 4;
        }
}

static void read_q6_k(struct block *b, const u8 *p)
{
    const u8 *low = p, *high = p + 128;
    for (u32 h = 0; h < 2; h++, low += 64, high += 32)
        for (u32 i = 0; i < 32; i++) {
            u8 *q = b->q + 128 * h + i;
            q[0] = (u8)((low[i] & 15) | (high[i] & 3) << 4);
            q[32] = (u8)((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
            q[64] = (u8)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
            q[96] = (u8)(low[i + 32] >> 4 | high[i] >> 6 << 4);
        }
    memcpy(b->sc, p + 192, 16);
    b->d = u16_at(p + 208);
}

static void read_block(enum dtype type, const u8 *p, struct block *b)
{
    b->d = u16_at(p);
    b->m = 0;
    switch (type) {
    case DT_Q4_0:
        read_nibbles(b->q, p + 2);
        break;
    case DT_Q4_1:
        b->m = u16_at(p + 2);
        read_nibbles(b->q, p + 4);
        break;
    case DT_Q5_0:
        read_nibbles(b->q, p + 6);
        read_fifth_bits(b->q, u32_at(p + 2));
        break;
    case DT_Q5_1:
        b->m = u16_at(p + 2);
        read_nibbles(b->q, p + 8);
        read_fifth_bits(b->q, u32_at(p + 4));
        break;
    case DT_Q8_0:
        memcpy(b->q, p + 2, 32);
        break;
    case DT_Q4_K:
        b->m = u16_at(p + 2);
        read_k_scales(b, p + 4);
        read_k_nibbles(b->q, p + 16);
        break;
    case DT_Q5_K:
        b->m = u16_at(p + 2);
        read_k_scales(b, p + 4);
        read_k_nibbles(b->q, p + 48);
        for (u32 i = 0; i < 256; i++) /* bit j of byte i belongs to element i of sub-block j */
            b->q[i] |= (u8)((p[16 + i % 32] >> i / 32 & 1) << 4);
        break;
    default: /* DT_Q6_K */
        read_q6_k(b, p);
        break;
    }
}

/* ---- integers <-> a lane of the panel's planes ---- */

static u32 group_bytes(u32 bits) /* of 32 elements of 16 rows */
{
    return PANEL * ACT_BLOCK / 8 * bits;
}

static u32 block_bytes(const struct planes *f)
{
    return f->halves * PANEL * 2 + f->subs * PANEL + f->elems / ACT_BLOCK * group_bytes(f->bits);
}

static void put_half(u8 *at, u32 lane, u16 h)
{
    at[2 * lane] = (u8)h;
    at[2 * lane + 1] = (u8)(h >> 8);
}

/* 32 integers of one row to its lane; the plane of upper bits (one or two each) follows the nibbles. */
static void put_group(u8 *at, u32 lane, u32 bits, const u8 *q)
{
    if (bits == 8) {
        for (u32 k = 0; k < 32; k++)
            at[k / 4 * 64 + lane * 4 + k % 4] = q[k];
        return;
    }
    for (u32 v = 0; v < 4; v++)
        for (u32 j = 0; j < 4; j++)
            at[v * 64 + lane * 4 + j] = (u8)((q[8 * v + j] & 15) | (q[8 * v + 4 + j] & 15) << 4);
    u8 *up = at + 256;
    if (bits == 5) {
        memset(up + 4 * lane, 0, 4);
        for (u32 k = 0; k < 32; k++)
            up[4 * lane + k / 8] |= (u8)((q[k] >> 4) << k % 8);
    } else if (bits == 6) {
        for (u32 v = 0; v < 2; v++)
            for (u32 j = 0; j < 4; j++) {
                const u8 *e = q + 16 * v + j;
                up[v * 64 + lane * 4 + j] =
                    (u8)(e[0] >> 4 | (e[4] >> 4) << 2 | (e[8] >> 4) << 4 | (e[12] >> 4) << 6);
            }
    }
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

static void put_block(const struct planes *f, u8 *at, u32 lane, const struct block *b)
{
    put_half(at, lane, b->d);
    if (f->halves == 2)
        put_half(at + 2 * PANEL, lane, b->m);
    at += f->halves * PANEL * 2;
    for (u32 j = 0; j < f->subs; j++) /* q6_k: 16 scales; else 8 scales, then 8 minimums */
        at[j * PANEL + lane] = f->bits == 6 || j < 8 ? b->sc[j] : b->mn[j - 8];
    at += f->subs * PANEL;
    for (u32 g = 0; g < f->elems / ACT_BLOCK; g++)
        put_group(at + g * group_bytes(f->bits), lane, f->bits, b->q + ACT_BLOCK * g);
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

static bool half_finite(u16 h)
{
    return (h & 0x7C00) != 0x7C00;
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

static bool pack_float_row(enum dtype type, const u8 *src, u32 n_in, u8 *panel, u32 lane)
{
    bool finite = true;
    for (u32 k = 0; k < n_in; k++) {
        float x;
        finite &= read_float(type, src, k, &x);
        u64 at = (u64)k * PANEL + lane;
        if (type == DT_F32) {
            memcpy(panel + 4 * at, &x, 4);
        } else {
            u16 h = type == DT_F16 ? (u16)ex_to_half(x) : (u16)(EX_BITS(x) >> 16);
            memcpy(panel + 2 * at, &h, 2);
        }
    }
    return finite;
}

static bool pack_quant_row(enum dtype type, const u8 *src, u32 n_in, u8 *panel, u32 lane)
{
    const struct planes *f = &PLANES[type];
    const struct dtype_info *t = dtype_info(type);
    bool finite = true;
    struct block b;
    memset(&b, 0, sizeof b);
    for (u32 i = 0; i < n_in / f->elems; i++, src += t->block_bytes, panel += block_bytes(f)) {
        read_block(type, src, &b);
        finite &= half_finite(b.d) && half_finite(b.m);
        put_block(f, panel, lane, &b);
    }
    return finite;
}

int pack(enum dtype type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row)
{
    const struct dtype_info *t = dtype_info(type);
    u64 row_bytes = (u64)(n_in / t->block_elems) * t->block_bytes;
    u64 panel_bytes = pack_panel_bytes(type, n_in);
    for (u32 p = p0; p < p1; p++) {
        u8 *panel = dst + p * panel_bytes;
        if ((p + 1) * PANEL > n_out)
            memset(panel, 0, panel_bytes);
        for (u32 lane = 0; lane < PANEL && p * PANEL + lane < n_out; lane++) {
            u32 row = p * PANEL + lane;
            const u8 *from = src + row * row_bytes;
            bool finite = t->quantised ? pack_quant_row(type, from, n_in, panel, lane)
                                       : pack_float_row(type, from, n_in, panel, lane);
            if (!finite) {
                *bad_row = row;
                return -1;
            }
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
