/* The words that vector bodies are written in, for AVX2 with FMA and F16C: a register is 8 outputs, half a panel.
 * words_avx512.h has the same names for 16. Every word is one operation of rule 10, lane by lane. */
#ifndef PS_WORDS_AVX2_H
#define PS_WORDS_AVX2_H

#include "base/exact.h"
#include "kernel/words.h"

#include <immintrin.h>

enum {
    LANES = 8,
    QUERIES = 2, /* of attention at once: 8 sums */
    GROUP = 4,     /* activation rows whose dots advance together, at most */
    STRIPS = 2,    /* registers of outputs that share a broadcast activation in a tile of products, and */
    TILE_ROWS = 3  /* its rows: 6 dots, 6 sums, 2 of weights, an activation: 15 of 16 */
};

typedef __m256 vf;
typedef __m256i vi;

WORD vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

WORD vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

WORD vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

WORD void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

WORD vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

WORD vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

WORD vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

WORD vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c, rounded once. */
WORD vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* c - a * b, rounded once: fma(-a, b, c). */
WORD vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* The sign turned, of NaN and zero too. */
WORD vf vf_neg(vf x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

WORD vf vf_ints(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

/* LANES halves, denormals included (no DAZ: the program never sets it). */
WORD vf vf_halves(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* LANES halves from floats of magnitude 65,504 or less, or NaN: nearest even, half denormals kept. */
WORD void vf_store_halves(u16 *p, vf x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

WORD vf vf_bf16s(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

/* LANES bytes as numbers. */
WORD vf vf_u8s(const u8 *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)));
}

WORD vf vf_i8s(const u8 *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

WORD vi vi_zero(void)
{
    return _mm256_setzero_si256();
}

WORD vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

WORD vi vi_set(i32 x)
{
    return _mm256_set1_epi32(x);
}

/* Four activations in every lane. */
WORD vi vi_four(const i8 *x)
{
    i32 four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

WORD vi vi_set8(i32 x)
{
    return _mm256_set1_epi8((char)x);
}

WORD vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

WORD vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

WORD vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

WORD vi vi_add32(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

WORD vi vi_add16(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}

WORD i32 sum_16(const i8 *q)
{
    __m128i s = _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128((const void *)q), _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

/* x, from here on in a register: gcc would load it anew wherever it is used. */
WORD vi vi_hold(vi x)
{
    __asm__("" : "+x"(x));
    return x;
}

/* Shifts of 16-bit lanes: bits that cross a byte are masked off by the caller. */
#define vi_shl(x, n) _mm256_slli_epi16(x, n)
#define vi_shr(x, n) _mm256_srli_epi16(x, n)
#define vi_shl32(x, n) _mm256_slli_epi32(x, n)

/* Pairs of unsigned a times signed b, added: 16 bits, saturating. */
WORD vi vi_maddubs(vi a, vi b)
{
    return _mm256_maddubs_epi16(a, b);
}

/* Pairs of 16-bit products, added: 32 bits. */
WORD vi vi_madd16(vi a, vi b)
{
    return _mm256_madd_epi16(a, b);
}

/* Byte j of lane r: 16 where bit (4 * odd + j) of byte `byte` of lane r of x is set, else 0. */
WORD vi vi_spread_bits(vi x, u32 byte, u32 odd)
{
    vi at = _mm256_add_epi8(_mm256_set1_epi32((i32)(byte * 0x01010101u)),
                            _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C)));
    vi bit = vi_set(odd ? (i32)0x80402010u : 0x08040201);
    vi set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(x, at), bit), bit);
    return _mm256_and_si256(set, vi_set8(16));
}

/* a > b ? a : b, NaN included. */
WORD vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

/* a < b ? a : b, NaN included. */
WORD vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

WORD vi vf_bits(vf x)
{
    return _mm256_castps_si256(x);
}

/* The same bits as floats. */
WORD vf vi_floats(vi x)
{
    return _mm256_castsi256_ps(x);
}

WORD vi vi_maxu32(vi a, vi b)
{
    return _mm256_max_epu32(a, b);
}

/* To the nearest integer, ties to even: the rounding mode the program never changes. */
WORD vi vi_round(vf x)
{
    return _mm256_cvtps_epi32(x);
}

/* a < b ? yes : no; no where either is NaN. */
WORD vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

/* ex_flush: magnitudes are below 2^31, so a signed compare orders them. */
WORD vf vf_flush(vf x)
{
    vi mag = _mm256_and_si256(vf_bits(x), vi_set(0x7FFFFFFF));
    vi small = _mm256_cmpgt_epi32(vf_bits(vf_set(EX_TINY)), mag);
    return _mm256_andnot_ps(_mm256_castsi256_ps(small), x);
}

/* Of 2 * LANES floats a, b: those of even index, those of odd; and the way back: the first LANES and the last of x0 y0 x1 y1 .. */
WORD vf vf_evens(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xD8));
}

WORD vf vf_odds(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD)), 0xD8));
}

WORD vf vf_zip_first(vf x, vf y)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x20);
}

WORD vf vf_zip_last(vf x, vf y)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x31);
}

/* The lanes' low bytes; lanes are in -128..127. */
WORD void vi_store8(i8 *p, vi x)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((void *)p, _mm_packs_epi16(words, words));
}

/* The largest lane, unsigned; the sum of all. */
WORD u32 vi_top(vi x)
{
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4E));
    return (u32)_mm_cvtsi128_si32(_mm_max_epu32(t, _mm_shuffle_epi32(t, 0xB1)));
}

WORD i32 vi_total(vi x)
{
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1)));
}

#endif
