/* Own log, exp, sin and cos in double precision: + - x / only, fixed term counts, so the results are the same bits under
 * every compiler that neither contracts nor reorders. Accurate to a few ulp of double, far below the fp32 they are
 * rounded to. */
#include "plan/rope.h"

#include <string.h>

static const double LN2_HI = 0x1.62e42fefa0000p-1; /* ln 2 to 36 bits: n * LN2_HI is exact for |n| < 2^17 */
static const double LN2_LO = 0x1.cf79abc9e3b39p-40;

/* pi/2 in three parts, 29 + 29 + 53 bits: k * part is exact for the first two while k < 2^24 */
static const double PIO2_1 = 0x1.921fb54000000p+0;
static const double PIO2_2 = 0x1.10b4610000000p-30;
static const double PIO2_3 = 0x1.a62633145c06ep-58;

static const double ROUND = 6755399441055744.0; /* 1.5 * 2^52: rounds to the nearest integer */

double rope_log(double x)
{
    u64 u;
    memcpy(&u, &x, 8);
    i64 e = (i64)(u >> 52) - 1023;
    u = (u & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        e += 1;
    }
    /* ln m = 2 atanh s = 2 (s + s^3/3 + ...), |s| <= 0.172: 12 terms leave s^25/25 < 4e-21 */
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * z + 1.0 / (double)k;
    double n = (double)e;
    return n * LN2_HI + (n * LN2_LO + 2.0 * s * sum);
}

double rope_exp(double x) /* |x| < 700 */
{
    double n = (x * 1.4426950408889634 + ROUND) - ROUND;
    double r = (x - n * LN2_HI) - n * LN2_LO, sum = 1.0;
    for (int k = 18; k >= 1; k--) /* r^19/19! < 2e-26 */
        sum = 1.0 + r * sum / (double)k;
    u64 u = (u64)((i64)n + 1023) << 52;
    double scale;
    memcpy(&scale, &u, 8);
    return sum * scale;
}

void rope_sincos(double x, double *s, double *c) /* 0 <= x < 2^24 */
{
    double k = (x * 0.6366197723675814 + ROUND) - ROUND;
    double r = ((x - k * PIO2_1) - k * PIO2_2) - k * PIO2_3, z = r * r;
    double sn = 1.0, cs = 1.0;
    for (int i = 20; i >= 2; i -= 2) { /* z <= 0.617: r^22/22! < 1e-23 */
        cs = 1.0 - z * cs / (double)(i * (i - 1));
        sn = 1.0 - z * sn / (double)(i * (i + 1));
    }
    sn = r * sn;
    switch ((i64)k & 3) {
    case 0:
        *s = sn, *c = cs;
        break;
    case 1:
        *s = cs, *c = -sn;
        break;
    case 2:
        *s = -sn, *c = -cs;
        break;
    default:
        *s = -cs, *c = sn;
        break;
    }
}

void rope_table(float *cs, u32 n_pos, const struct hparams *hp, const float *factors)
{
    u32 half = hp->d_rope / 2;
    double ln_base = rope_log((double)hp->rope_base);
    for (u32 i = 0; i < half; i++) {
        double f = rope_exp(-(double)(2 * i) / (double)hp->d_rope * ln_base) * (double)hp->rope_scale;
        float freq = (float)(factors ? f / (double)factors[i] : f);
        for (u32 p = 0; p < n_pos; p++) {
            double s, c;
            rope_sincos((double)p * (double)freq, &s, &c);
            cs[((u64)p * half + i) * 2] = (float)c;
            cs[((u64)p * half + i) * 2 + 1] = (float)s;
        }
    }
}
