/* What attention's kernels (k_attend.h, k_prompt.h) share of rule 7: scores ordered as unsigned numbers, so that the highest is a maximum of
 * integers, and a weight from a score. */

KFN u32 attend_key(float x)
{
    u32 u = EX_BITS(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

KFN float attend_unkey(u32 u)
{
    return EX_FLOAT(u & 0x80000000u ? u & 0x7FFFFFFFu : ~u);
}

#define ATT_NONE EX_FLOAT(0xFF800000u) /* the score of a position not seen: no maximum, weight 0 */

/* ex_flush(ex_exp(x)) for x <= 0, -infinity or NaN, without a branch. The power of two is a factor here and not added to the exponent: exact
 * as well, 2^-126 being normal, and a NaN stays one. */
KFN float attend_weight(float x)
{
    float t = EX_FMA(x, 1.44269502f, EX_MAGIC), n = t - EX_MAGIC;
    float r = EX_FMA(n, -0.693115234f, x);
    r = EX_FMA(n, -3.19461833e-05f, r);
    float p = 1.98909824e-4f;
    p = EX_FMA(p, r, 1.39336428e-3f);
    p = EX_FMA(p, r, 8.33331048e-3f);
    p = EX_FMA(p, r, 4.16664667e-2f);
    p = EX_FMA(p, r, 1.66666672e-1f);
    p = EX_FMA(p, r, 0.5f);
    p = EX_FMA(p, r * r, r) + 1.0f;
    float y = p * EX_FLOAT((EX_BITS(t) << 23) + 0x3F800000u); /* magic's own bits are shifted out: 2^n */
    return (x < -87.0f || y < EX_TINY) ? 0.0f : y;
}
