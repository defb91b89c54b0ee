/* Arithmetic that gives the same bits on every machine: rounding, halves, exp, log, random numbers.
 *
 * Written in the GPU dialect (docs/gpu.md): fp32 + - x / sqrt fma, compare, integer operations and bit casts only, no
 * double, no pointer without an address space, so that CPU kernels, GPU kernels and the engine read this one text.
 * A GPU reader defines EX_FN, EX_BITS, EX_FLOAT, EX_FMA and EX_MULHI before including it, EX_DIV where `/` rounds
 * otherwise, and EX_BELOW where another comparison takes less. */
#ifndef PS_EXACT_H
#define PS_EXACT_H

#ifndef EX_FN
#include "base/base.h"
#include <math.h>
#include <string.h>

#define EX_FN static inline
#define EX_FMA(a, b, c) fmaf(a, b, c)
#define EX_MULHI(a, b) ((u32)((u64)(a) * (b) >> 32))

static inline u32 EX_BITS(float x)
{
    u32 u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float EX_FLOAT(u32 u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
#endif

#ifndef EX_DIV
#define EX_DIV(a, b) ((a) / (b))
#endif

#ifndef EX_BELOW
#define EX_BELOW(x, least) ((EX_BITS(x) & 0x7FFFFFFFu) < EX_BITS(least)) /* |x| < least; a NaN is not */
#endif

#define EX_TINY 9.094947017729282379150390625e-13f /* 2^-40: what enters a sum is 0 or at least this (rule 12) */
#define EX_TINY_SCALE 8.67361737988403547205962240695953369140625e-19f /* 2^-60: least activation scale */
#define EX_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds |v| < 2^22 to the nearest even integer */

/* x, or +0 where |x| < 2^-40. NaN passes. */
EX_FN float ex_flush(float x)
{
    return EX_BELOW(x, EX_TINY) ? 0.0f : x;
}

/* x >= 0 rounded to 11 significant bits, ties to even; carries into the exponent as it should (rule 1). */
EX_FN float ex_round11(float x)
{
    u32 u = EX_BITS(x);
    return EX_FLOAT((u + 0xFFFu + (u >> 13 & 1u)) & ~0x1FFFu);
}

/* A half's value, denormals included: their 10 bits are scaled as an integer, so no float denormal is met. All three cases
 * are computed and one is selected: a vector compiler keeps every lane busy. */
EX_FN float ex_half(u32 h)
{
    u32 sign = (h & 0x8000u) << 16, mag = h & 0x7FFFu;
    u32 small = EX_BITS((float)(i32)mag * 5.9604644775390625e-8f); /* 2^-24 */
    u32 bias = mag < 0x7C00u ? 0x38000000u : 0x70000000u;          /* exponents 127 - 15; inf and NaN: 255 - 31 */
    u32 normal = (mag << 13) + bias;
    return EX_FLOAT(sign | (mag < 0x400u ? small : normal));
}

/* The nearest half, ties to even, saturating at 65,504; NaN stays NaN (0x7E00). */
EX_FN u32 ex_to_half(float x)
{
    u32 u = EX_BITS(x), sign = u >> 16 & 0x8000u, mag = u & 0x7FFFFFFFu;
    if (mag > 0x7F800000u)
        return sign | 0x7E00u;
    if (mag >= 0x477FF000u) /* 65,520 and more would round past the largest */
        return sign | 0x7BFFu;
    if (mag < 0x38800000u) { /* below 2^-14: count 2^-24ths, rounded by the float adder */
        float v = EX_FLOAT(mag) + 0.5f; /* 0.5 has its last bit at 2^-24 */
        return sign | (EX_BITS(v) - 0x3F000000u);
    }
    return sign | ((mag - 0x38000000u + 0xFFFu + (mag >> 13 & 1u)) >> 13);
}

/* A bfloat16's value: the upper half of a float. */
EX_FN float ex_bf16(u32 h)
{
    return EX_FLOAT(h << 16);
}

/* e^x for x <= 88, within 1.1 ulp; +0 below -87, so that no denormal is made; NaN passes; x > 88 counts as 88.
 * x = n ln2 + r with |r| <= ln2/2; e^r = 1 + r + r^2 P(r), P by Chebyshev interpolation of (e^r - 1 - r)/r^2 in six
 * nodes of [-0.34658, 0.34658]. */
EX_FN float ex_exp(float x)
{
    float v = x > 88.0f ? 88.0f : x;
    float n = EX_FMA(v, 1.44269502f, EX_MAGIC) - EX_MAGIC;
    float r = EX_FMA(n, -0.693115234f, v); /* ln2's first 12 bits: exact product */
    r = EX_FMA(n, -3.19461833e-05f, r);
    float p = 1.98909824e-4f;
    p = EX_FMA(p, r, 1.39336428e-3f);
    p = EX_FMA(p, r, 8.33331048e-3f);
    p = EX_FMA(p, r, 4.16664667e-2f);
    p = EX_FMA(p, r, 1.66666672e-1f);
    p = EX_FMA(p, r, 0.5f);
    p = EX_FMA(p, r * r, r) + 1.0f;
    /* -126 <= n <= 127 wherever the result is used, so the exponent field stays normal. */
    i32 e = x >= -87.0f ? (i32)n : 0;
    float y = EX_FLOAT(EX_BITS(p) + ((u32)e << 23));
    return x < -87.0f ? 0.0f : y;
}

/* ln x for positive normal x, within 2 ulp. m in [sqrt(1/2), sqrt 2), s = (m-1)/(m+1), ln m = 2 atanh s as the odd
 * series to s^11: s <= 0.1716, the next term is below 2e-11. */
EX_FN float ex_log(float x)
{
    u32 u = EX_BITS(x) - 0x3F3504F3u; /* bits of sqrt(1/2): the exponent steps there */
    i32 e = (i32)u >> 23;
    float m = EX_FLOAT((u & 0x7FFFFFu) + 0x3F3504F3u);
    float f = m - 1.0f;
    float s = EX_DIV(f, 2.0f + f), z = s * s;
    float p = 0.181818187f; /* 2/11, 2/9, 2/7, 2/5, 2/3 */
    p = EX_FMA(p, z, 0.222222224f);
    p = EX_FMA(p, z, 0.285714298f);
    p = EX_FMA(p, z, 0.4f);
    p = EX_FMA(p, z, 0.666666687f);
    float lm = EX_FMA(p * z, s, 2.0f * s);
    float n = (float)e;
    return EX_FMA(n, 0.693115234f, EX_FMA(n, 3.19461833e-05f, lm));
}

/* Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011): four random words from a counter and a key. */
struct ex_philox {
    u32 c[4];
};

EX_FN struct ex_philox ex_philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1)
{
    struct ex_philox p;
    for (int round = 0; round < 10; round++) {
        u32 h0 = EX_MULHI(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = EX_MULHI(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    p.c[0] = c0;
    p.c[1] = c1;
    p.c[2] = c2;
    p.c[3] = c3;
    return p;
}

/* A random word as a number in [0, 1): its upper 24 bits. */
EX_FN float ex_unit(u32 word)
{
    return (float)(i32)(word >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}

#endif
