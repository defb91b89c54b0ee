/* exact.h: frozen bits over sweeps of all bit patterns, halves against a slow implementation by
 * search, exp and log against libm's double. A hash here changes only with every hash in
 * tests/golden.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/exact.h"

#include <stdlib.h>

/* FNV-1a 64 over the words' bytes, low byte first. NaNs count as one: their payload is the
 * machine's. */
static u64 fnv(u64 hash, u32 word)
{
    if ((word & 0x7FFFFFFFu) > 0x7F800000u)
        word = 0x7FC00000u;
    for (int i = 0; i < 4; i++, word >>= 8)
        hash = (hash ^ (word & 0xFFu)) * 0x100000001B3u;
    return hash;
}

#define FNV_START 0xCBF29CE484222325u

enum { STRIDE = 4099 }; /* a prime: 1,047,809 of the 2^32 patterns, every exponent, all low bits */

static void check_hash(const char *what, u64 got, u64 want)
{
    if (got != want)
        fail_msg("%s: hash %016llx, frozen %016llx", what, (unsigned long long)got,
                 (unsigned long long)want);
}

static void sweeps_keep_their_bits(void **state)
{
    (void)state;
    u64 h_exp = FNV_START, h_log = FNV_START, h_round = FNV_START, h_flush = FNV_START;
    u64 h_half = FNV_START, h_to_half = FNV_START, h_bf16 = FNV_START, h_unit = FNV_START;
    for (u64 u = 0; u < 1ull << 32; u += STRIDE) {
        float x = EX_FLOAT((u32)u);
        h_exp = fnv(h_exp, EX_BITS(ex_exp(x)));
        h_flush = fnv(h_flush, EX_BITS(ex_flush(x)));
        h_to_half = fnv(h_to_half, ex_to_half(x));
        h_unit = fnv(h_unit, EX_BITS(ex_unit((u32)u)));
        if (u < 0x7F7FF000u) /* rounds to a finite number */
            h_round = fnv(h_round, EX_BITS(ex_round11(x)));
        if (u >= 0x00800000u && u < 0x7F800000u)
            h_log = fnv(h_log, EX_BITS(ex_log(x)));
    }
    for (u32 h = 0; h < 0x10000; h++) {
        h_half = fnv(h_half, EX_BITS(ex_half(h)));
        h_bf16 = fnv(h_bf16, EX_BITS(ex_bf16(h)));
    }
    check_hash("ex_exp", h_exp, 0x91EB474A75997000u);
    check_hash("ex_log", h_log, 0x32881AEB29809AA6u);
    check_hash("ex_round11", h_round, 0x2C6185C186D2768Eu);
    check_hash("ex_flush", h_flush, 0xE7A0408EC8C2398Du);
    check_hash("ex_half", h_half, 0x1F87F165810EA7C5u);
    check_hash("ex_to_half", h_to_half, 0x8CF37660F53D9809u);
    check_hash("ex_bf16", h_bf16, 0xCF8E09175D8F5BA5u);
    check_hash("ex_unit", h_unit, 0x89C0F4609FA93C32u);
}

/* Philox over counters and keys that walk all words. */
static void philox_keeps_its_bits(void **state)
{
    (void)state;
    u64 hash = FNV_START;
    u32 c[6] = {0};
    for (u32 i = 0; i < 20000; i++) {
        c[i % 6] += 0x9E3779B9u + i;
        struct ex_philox r = ex_philox(c[0], c[1], c[2], c[3], c[4], c[5]);
        for (int k = 0; k < 4; k++)
            hash = fnv(hash, r.c[k]);
    }
    check_hash("ex_philox", hash, 0x106AD0E3796022E4u);
}

/* |got - want| in units of the last place that a float of want's size has. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e); /* |want| in [2^(e-1), 2^e): the last of 24 bits is worth 2^(e-24) */
    return fabs((double)got - want) / ldexp(1, e - 24);
}

static void exp_and_log_are_near(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0;
    for (u64 u = 0; u < 1ull << 32; u += 2 * STRIDE - 1) {
        float x = EX_FLOAT((u32)u);
        if (x >= -87.0f && x <= 88.0f)
            worst_exp = fmax(worst_exp, ulps(ex_exp(x), exp((double)x)));
        if (u >= 0x00800000u && u < 0x7F800000u && x != 1.0f)
            worst_log = fmax(worst_log, ulps(ex_log(x), log((double)x)));
    }
    for (u32 u = EX_BITS(0.5f); u < EX_BITS(2.0f); u += 11) { /* where log is small */
        float x = EX_FLOAT(u);
        if (x != 1.0f)
            worst_log = fmax(worst_log, ulps(ex_log(x), log((double)x)));
    }
    for (u32 u = EX_BITS(1e-3f); u < EX_BITS(87.0f); u += 67) {
        worst_exp = fmax(worst_exp, ulps(ex_exp(EX_FLOAT(u)), exp((double)EX_FLOAT(u))));
        worst_exp = fmax(worst_exp, ulps(ex_exp(-EX_FLOAT(u)), exp(-(double)EX_FLOAT(u))));
    }
    print_message("worst: exp %.4f ulp, log %.4f ulp\n", worst_exp, worst_log);
    assert_true(worst_exp <= 1.1);
    assert_true(worst_log <= 2.0);
    assert_true(ex_exp(0.0f) == 1.0f && ex_exp(-0.0f) == 1.0f && ex_log(1.0f) == 0.0f);
    assert_true(ex_exp(-87.5f) == 0.0f && ex_exp(-INFINITY) == 0.0f);
    assert_true(ex_exp(INFINITY) == ex_exp(88.0f) && isnan(ex_exp(NAN)));
}

/* ---- halves ---- */

static double slow_half(u32 h) /* h < 0x7C00 */
{
    u32 e = h >> 10, m = h & 0x3FF;
    return e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
}

/* Searches all finite halves for the nearest; of two the even one. */
static u32 slow_to_half(float x)
{
    u32 sign = EX_BITS(x) >> 31 << 15;
    if (isnan(x))
        return sign | 0x7E00;
    double v = fabs((double)x);
    u32 lo = 0, hi = 0x7BFF;
    if (v >= slow_half(hi))
        return sign | hi;
    while (hi - lo > 1) { /* half(lo) <= v < half(hi) */
        u32 mid = (lo + hi) / 2;
        if (slow_half(mid) <= v)
            lo = mid;
        else
            hi = mid;
    }
    double below = v - slow_half(lo), above = slow_half(hi) - v;
    return sign | (below < above || (below == above && lo % 2 == 0) ? lo : hi);
}

static void check_to_half(float x)
{
    u32 got = ex_to_half(x), want = slow_to_half(x);
    if (got != want)
        fail_msg("ex_to_half(%08x) is %04x, want %04x", EX_BITS(x), got, want);
}

/* Between two neighbouring decision points the answer cannot change: those points and the floats on
 * both sides of them stand for all 2^32. */
static void halves_convert_exactly(void **state)
{
    (void)state;
    for (u32 h = 0; h < 0x7C00; h++) {
        for (u32 sign = 0; sign <= 0x8000; sign += 0x8000) {
            float x = ex_half(sign | h);
            assert_true((double)x == (sign ? -slow_half(h) : slow_half(h)));
            assert_int_equal(EX_BITS(x) >> 31, sign >> 15);
            assert_int_equal(ex_to_half(x), sign | h);
        }
        double next = h < 0x7BFF ? slow_half(h + 1) : 65536;
        float mid = (float)((slow_half(h) + next) / 2); /* exact: 12 bits */
        for (int step = -2; step <= 2; step++) {
            u32 at_mid = EX_BITS(mid) + (u32)step,
                at_half = EX_BITS((float)slow_half(h)) + (u32)step;
            check_to_half(EX_FLOAT(at_mid));
            check_to_half(-EX_FLOAT(at_mid));
            if (at_half < 0x80000000u)
                check_to_half(EX_FLOAT(at_half));
        }
    }
    for (u64 u = 0; u < 1ull << 32; u += 16 * STRIDE)
        check_to_half(EX_FLOAT((u32)u));
    assert_true(isinf(ex_half(0x7C00)) && ex_half(0xFC00) < 0 && isinf(ex_half(0xFC00)));
    for (u32 h = 0x7C01; h < 0x8000; h++)
        assert_true(isnan(ex_half(h)) && isnan(ex_half(0x8000 | h)));
    assert_int_equal(ex_to_half(INFINITY), 0x7BFF); /* saturating, by contract */
    assert_int_equal(ex_to_half(-INFINITY), 0xFBFF);
    assert_int_equal(ex_to_half(NAN) & 0x7FFF, 0x7E00);
}

/* 11 significant bits, ties to even, by integer arithmetic on the significand. */
static void rounding_to_11_bits(void **state)
{
    (void)state;
    for (u64 u = 0x00800000u; u < 0x7F7FF000u; u += 97 * 13) {
        u32 m = (u32)u & 0x7FFFFFu, e = (u32)u >> 23;
        u32 whole = (m | 0x800000u) >> 13, rest = m & 0x1FFF;
        whole += rest > 0x1000 || (rest == 0x1000 && whole % 2 == 1);
        double want = ldexp(whole, (int)e - 127 - 10);
        if ((double)ex_round11(EX_FLOAT((u32)u)) != want)
            fail_msg("ex_round11(%08x) is %08x", (u32)u, EX_BITS(ex_round11(EX_FLOAT((u32)u))));
    }
    assert_true(ex_round11(0.0f) == 0.0f);
    static const u32 ties[][2] = {
        {0x3F801000u, 0x3F800000u}, {0x3F803000u, 0x3F804000u}, {0x3FFFF000u, 0x40000000u}};
    for (u32 i = 0; i < COUNT(ties); i++)
        assert_int_equal(EX_BITS(ex_round11(EX_FLOAT(ties[i][0]))), ties[i][1]);
}

static void flushing(void **state)
{
    (void)state;
    assert_int_equal(EX_BITS(ex_flush(-0.0f)), 0);
    assert_int_equal(EX_BITS(ex_flush(-1e-40f)), 0);
    assert_true(EX_TINY == 0x1p-40f && EX_TINY_SCALE == 0x1p-60f);
    assert_true(ex_flush(0x1p-40f) == 0x1p-40f && ex_flush(-0x1p-40f) == -0x1p-40f);
    assert_int_equal(EX_BITS(ex_flush(EX_FLOAT(EX_BITS(0x1p-40f) - 1))), 0);
    assert_true(isnan(ex_flush(NAN)) && isinf(ex_flush(INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sweeps_keep_their_bits), cmocka_unit_test(philox_keeps_its_bits),
        cmocka_unit_test(exp_and_log_are_near),   cmocka_unit_test(halves_convert_exactly),
        cmocka_unit_test(rounding_to_11_bits),    cmocka_unit_test(flushing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
