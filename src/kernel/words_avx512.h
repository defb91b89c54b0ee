/* The words that vector bodies are written in, for AVX-512 (F, BW, DQ, VL): a register is 16 outputs, a whole panel.
 * words_avx2.h has the same names for 8. Every word is one operation of rule 10, lane by lane. */
#ifndef PS_WORDS_AVX512_H
#define PS_WORDS_AVX512_H

#include "base/exact.h"
#include "kernel/words.h"

#include <immintrin.h>

enum {
    LANES = 16,
    QUERIES = 8, /* of attention at once: 16 sums */
    GROUP = 4,     /* activation rows whose dots advance together, at most */
    STRIPS = 4,    /* registers of outputs that share a broadcast activation in a tile of products, and */
    TILE_ROWS = 3  /* its rows: 12 dots, 12 sums, 4 of weights, an activation: 29 of 32 */
};

typedef __m512 vf;
typedef __m512i vi;

WORD vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

WORD vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

WORD vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

WORD void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

WORD vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

WORD vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

WORD vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

WORD vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
WORD vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b, rounded once: fma(-a, b, c). */
WORD vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The sign turned, of NaN and zero too. */
WORD vf vf_neg(vf x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

WORD vf vf_ints(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

/* LANES halves, denormals included (no DAZ: the program never sets it). */
WORD vf vf_halves(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* LANES halves from floats of magnitude 65,504 or less, or NaN: nearest even, half denormals kept. */
WORD void vf_store_halves(u16 *p, vf x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

WORD vf vf_bf16s(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

/* LANES bytes as numbers. */
WORD vf vf_u8s(const u8 *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}

WORD vf vf_i8s(const u8 *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

WORD vi vi_zero(void)
{
    return _mm512_setzero_si512();
}

WORD vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

WORD vi vi_set(i32 x)
{
    return _mm512_set1_epi32(x);
}

/* Four activations in every lane. */
WORD vi vi_four(const i8 *x)
{
    i32 four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

WORD vi vi_set8(i32 x)
{
    return _mm512_set1_epi8((char)x);
}

WORD vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

WORD vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

WORD vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

WORD vi vi_add32(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

WORD vi vi_add16(vi a, vi b)
{
    return _mm512_add_epi16(a, b);
}

WORD i32 sum_16(const i8 *q)
{
    __m128i s = _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128((const void *)q), _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

/* x, from here on in a register: gcc would load it anew wherever it is used. */
WORD vi vi_hold(vi x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* Shifts of 16-bit lanes: bits that cross a byte are masked off by the caller. */
#define vi_shl(x, n) _mm512_slli_epi16(x, n)
#define vi_shr(x, n) _mm512_srli_epi16(x, n)
#define vi_shl32(x, n) _mm512_slli_epi32(x, n)

/* Pairs of unsigned a times signed b, added: 16 bits, saturating. */
WORD vi vi_maddubs(vi a, vi b)
{
    return _mm512_maddubs_epi16(a, b);
}

/* Pairs of 16-bit products, added: 32 bits. */
WORD vi vi_madd16(vi a, vi b)
{
    return _mm512_madd_epi16(a, b);
}

/* Byte j of lane r: 16 where bit (4 * odd + j) of byte `byte` of lane r of x is set, else 0. */
WORD vi vi_spread_bits(vi x, u32 byte, u32 odd)
{
    vi at = _mm512_add_epi8(_mm512_set1_epi32((i32)(byte * 0x01010101u)),
                            _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C)));
    vi bit = vi_set(odd ? (i32)0x80402010u : 0x08040201);
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8(x, at), bit), vi_set8(16));
}

/* a > b ? a : b, NaN included. */
WORD vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

/* a < b ? a : b, NaN included. */
WORD vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

WORD vi vf_bits(vf x)
{
    return _mm512_castps_si512(x);
}

/* The same bits as floats. */
WORD vf vi_floats(vi x)
{
    return _mm512_castsi512_ps(x);
}

WORD vi vi_maxu32(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}

/* To the nearest integer, ties to even: the rounding mode the program never changes. */
WORD vi vi_round(vf x)
{
    return _mm512_cvtps_epi32(x);
}

/* a < b ? yes : no; no where either is NaN. */
WORD vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

/* ex_flush. */
WORD vf vf_flush(vf x)
{
    __mmask16 big = _mm512_cmp_epu32_mask(_mm512_and_si512(vf_bits(x), _mm512_set1_epi32(0x7FFFFFFF)),
                                          _mm512_castps_si512(_mm512_set1_ps(EX_TINY)), _MM_CMPINT_NLT);
    return _mm512_maskz_mov_ps(big, x);
}

/* Of 2 * LANES floats a, b: those of even index, those of odd; and the way back: the first LANES and the last of x0 y0 x1 y1 .. */
WORD vf vf_evens(vf a, vf b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}

WORD vf vf_odds(vf a, vf b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

WORD vf vf_zip_first(vf x, vf y)
{
    return _mm512_permutex2var_ps(x, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), y);
}

WORD vf vf_zip_last(vf x, vf y)
{
    return _mm512_permutex2var_ps(x, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), y);
}

/* The lanes' low bytes. */
WORD void vi_store8(i8 *p, vi x)
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(x));
}

/* The largest lane, unsigned; the sum of all. */
WORD u32 vi_top(vi x)
{
    return _mm512_reduce_max_epu32(x);
}

WORD i32 vi_total(vi x)
{
    return _mm512_reduce_add_epi32(x);
}

#endif
