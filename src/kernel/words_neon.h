/* The words that vector bodies are written in, for Arm's NEON of 64-bit machines: a register is 4 outputs, a quarter of a
 * panel. words_avx2.h has the same names for 8. Every word is one operation of rule 10, lane by lane; FPCR stays as the
 * system starts a thread: rounding to nearest, denormals kept. */
#ifndef PS_WORDS_NEON_H
#define PS_WORDS_NEON_H

#include "base/exact.h"
#include "kernel/words.h"

#include <arm_neon.h>

enum {
    LANES = 4,
    QUERIES = 2, /* of attention at once: 16 sums and 8 registers of columns, of 32 */
    GROUP = 4,
    STRIPS = 1, /* 8 registers of weights; two of a row's activations serve 8 dots by lane */
    TILE_ROWS = 4 /* of a tile of products: smmla takes them in pairs */
};

typedef float32x4_t vf;
typedef int32x4_t vi;

WORD vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}

WORD vf vf_set(float x)
{
    return vdupq_n_f32(x);
}

WORD vf vf_load(const float *p)
{
    return vld1q_f32(p);
}

WORD void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

WORD vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

WORD vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

WORD vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

WORD vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

/* a * b + c, rounded once. */
WORD vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

/* c - a * b, rounded once: fma(-a, b, c). */
WORD vf vf_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}

/* The sign turned, of NaN and zero too. */
WORD vf vf_neg(vf x)
{
    return vnegq_f32(x);
}

WORD vf vf_ints(vi x)
{
    return vcvtq_f32_s32(x);
}

/* LANES halves, denormals included (FZ16 is for arithmetic on halves; conversions obey no flush but FPCR's, never set). */
WORD vf vf_halves(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* LANES halves from floats of magnitude 65,504 or less, or NaN: nearest even, half denormals kept. */
WORD void vf_store_halves(u16 *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

WORD vf vf_bf16s(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/* LANES bytes as numbers. */
WORD uint8x8_t four_bytes(const u8 *p)
{
    u32 four;
    memcpy(&four, p, 4);
    return vreinterpret_u8_u32(vdup_n_u32(four));
}

WORD vf vf_u8s(const u8 *p)
{
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))));
}

WORD vf vf_i8s(const u8 *p)
{
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p))))));
}

WORD vi vi_zero(void)
{
    return vdupq_n_s32(0);
}

WORD vi vi_load(const void *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}

WORD vi vi_set(i32 x)
{
    return vdupq_n_s32(x);
}

/* Four activations in every lane. */
WORD vi vi_four(const i8 *x)
{
    i32 four;
    memcpy(&four, x, 4);
    return vdupq_n_s32(four);
}

WORD vi vi_set8(i32 x)
{
    return vreinterpretq_s32_s8(vdupq_n_s8((i8)x));
}

WORD vi vi_and(vi a, vi b)
{
    return vandq_s32(a, b);
}

WORD vi vi_or(vi a, vi b)
{
    return vorrq_s32(a, b);
}

WORD vi vi_xor(vi a, vi b)
{
    return veorq_s32(a, b);
}

WORD vi vi_add32(vi a, vi b)
{
    return vaddq_s32(a, b);
}

WORD i32 sum_16(const i8 *q)
{
    return vaddlvq_s8(vld1q_s8(q));
}

/* Shifts of 8-bit lanes: none of a lane's bits come from its neighbour. */
#define vi_shl(x, n) vreinterpretq_s32_u8(vshlq_n_u8(vreinterpretq_u8_s32(x), n))
#define vi_shr(x, n) vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), n))
#define vi_shl32(x, n) vshlq_n_s32(x, n)

/* Byte j of lane r: 16 where bit (4 * odd + j) of byte `byte` of lane r of x is set, else 0. */
WORD vi vi_spread_bits(vi x, u32 byte, u32 odd)
{
    uint64x2_t lane = vcombine_u64(vcreate_u64(0x0404040400000000u), vcreate_u64(0x0C0C0C0C08080808u)); /* its first byte */
    uint8x16_t at = vorrq_u8(vreinterpretq_u8_u64(lane), vdupq_n_u8((u8)byte));
    uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(odd ? 0x80402010u : 0x08040201u));
    uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_s32(x), at), bit);
    return vreinterpretq_s32_u8(vandq_u8(set, vdupq_n_u8(16)));
}

/* a > b ? a : b, NaN included. */
WORD vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* a < b ? a : b, NaN included. */
WORD vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

WORD vi vf_bits(vf x)
{
    return vreinterpretq_s32_f32(x);
}

/* The same bits as floats. */
WORD vf vi_floats(vi x)
{
    return vreinterpretq_f32_s32(x);
}

WORD vi vi_maxu32(vi a, vi b)
{
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}

/* To the nearest integer, ties to even. */
WORD vi vi_round(vf x)
{
    return vcvtnq_s32_f32(x);
}

/* a < b ? yes : no; no where either is NaN. */
WORD vf vf_less(vf a, vf b, vf yes, vf no)
{
    return vbslq_f32(vcltq_f32(a, b), yes, no);
}

/* ex_flush: |x| >= 2^-40 or NaN keeps its bits. */
WORD vf vf_flush(vf x)
{
    uint32x4_t mag = vreinterpretq_u32_s32(vi_and(vf_bits(x), vi_set(0x7FFFFFFF)));
    uint32x4_t big = vcgeq_u32(mag, vreinterpretq_u32_f32(vdupq_n_f32(EX_TINY)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), big));
}

/* Of 2 * LANES floats a, b: those of even index, those of odd; and the way back: the first LANES and the last of x0 y0 x1 y1 .. */
WORD vf vf_evens(vf a, vf b)
{
    return vuzp1q_f32(a, b);
}

WORD vf vf_odds(vf a, vf b)
{
    return vuzp2q_f32(a, b);
}

WORD vf vf_zip_first(vf x, vf y)
{
    return vzip1q_f32(x, y);
}

WORD vf vf_zip_last(vf x, vf y)
{
    return vzip2q_f32(x, y);
}

/* The lanes' low bytes; lanes are in -128..127. */
WORD void vi_store8(i8 *p, vi x)
{
    int16x4_t half = vmovn_s32(x);
    u32 four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(half, half))), 0);
    memcpy(p, &four, 4);
}

/* The largest lane, unsigned; the sum of all. */
WORD u32 vi_top(vi x)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(x));
}

WORD i32 vi_total(vi x)
{
    return vaddvq_s32(x);
}

#endif
