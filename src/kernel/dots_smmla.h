/* Dots for Arm with i8mm: smmla multiplies 2 x 8 signed bytes with 8 x 2, 32 products where sdot makes 16. Four rows of
 * activations take it; fewer are left to sdot, which needs nothing rearranged.
 *
 *     w[g], w[g + 1]  4 outputs x 4 elements each -> zip ->  outputs 0, 1 x 8 elements | outputs 2, 3 x 8 elements
 *     rows r, r + 1   16 elements each            -> zip ->  both rows x the first 8   | both rows x the other 8
 *     a  r o0, r o1, r' o0, r' o1    b  r o2, r o3, r' o2, r' o3       (r' = r + 1)
 *     acc[r] = low halves of a, b    acc[r'] = their high halves */
#ifndef PS_DOTS_SMMLA_H
#define PS_DOTS_SMMLA_H

#include "kernel/sdot_rows.h"

WORD int8x16_t zip_low(vi a, vi b)
{
    return vreinterpretq_s8_s32(vzip1q_s32(a, b));
}

WORD int8x16_t zip_high(vi a, vi b)
{
    return vreinterpretq_s8_s32(vzip2q_s32(a, b));
}

WORD vi low_halves(vi a, vi b)
{
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

WORD vi high_halves(vi a, vi b)
{
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

/* Rows at x and x + LINE_Q against one strip's groups g0 .. g0 + n join acc and its neighbour's. */
WORD void smmla_pair(vi *acc, vi *next, const vi w[8], const i8 *x, u32 g0, u32 n)
{
    vi a = low_halves(*acc, *next), b = high_halves(*acc, *next);
    UNROLL for (u32 g = g0; g < g0 + n; g += 4) {
        vi x0 = vi_load(x + 4 * g), x1 = vi_load(x + LINE_Q + 4 * g);
        int8x16_t first = vreinterpretq_s8_s32(low_halves(x0, x1)), other = vreinterpretq_s8_s32(high_halves(x0, x1));
        a = vmmlaq_s32(a, first, zip_low(w[g], w[g + 1]));
        b = vmmlaq_s32(b, first, zip_high(w[g], w[g + 1]));
        a = vmmlaq_s32(a, other, zip_low(w[g + 2], w[g + 3]));
        b = vmmlaq_s32(b, other, zip_high(w[g + 2], w[g + 3]));
    }
    *acc = low_halves(a, b);
    *next = high_halves(a, b);
}

WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    (void)chain;
    if (rows % 4) {
        sdot_rows(acc, w, rows, strips, x, g0, n);
        return;
    }
    UNROLL for (u32 r = 0; r < rows; r += 2)
        UNROLL for (u32 s = 0; s < strips; s++)
            smmla_pair(&acc[r][s], &acc[r + 1][s], w[s], x + r * LINE_Q, g0, n);
}

#endif
