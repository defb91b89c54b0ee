/* Dots of signed bytes in 16-bit lanes (smlal), for NEON without an instruction for four of them. Pairs of products must
 * fit 16 bits when they are added, so only as many groups are summed before: chain. |x| <= 127 (rule 1):
 *   nibbles  15 * 127 * 2 =  3,810 a pair: 8 groups make 30,480
 *   5 bits   31 * 127 * 2 =  7,874: 4 groups make 31,496
 *   6 bits   63 * 127 * 2 = 16,002: 2 groups make 32,004
 *   8 bits  128 * 127 * 2 = 32,512: 1 group
 *
 *     w[g]       o0e0 o0e1 o0e2 o0e3 | o1.. | o2.. | o3..     xv   e0 e1 e2 e3 e0 e1 e2 e3
 *     low, high  16-bit products of outputs 0 and 1, 2 and 3
 *     acc        outputs 0 1 2 3: pairs of low and high added (addp), then pairs of those (sadalp) */
#ifndef PS_DOTS_SMULL_H
#define PS_DOTS_SMULL_H

#include "kernel/dots_signed.h"

WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    UNROLL for (u32 g = g0; g < g0 + n; g += chain)
        UNROLL for (u32 r = 0; r < rows; r++)
            UNROLL for (u32 s = 0; s < strips; s++) {
                int16x8_t low = vdupq_n_s16(0), high = low;
                UNROLL for (u32 c = 0; c < chain; c++) {
                    int8x16_t xv = vreinterpretq_s8_s32(vi_four(x + r * LINE_Q + 4 * (g + c)));
                    int8x16_t wv = vreinterpretq_s8_s32(w[s][g + c]);
                    low = vmlal_s8(low, vget_low_s8(wv), vget_low_s8(xv));
                    high = vmlal_high_s8(high, wv, xv);
                }
                acc[r][s] = vpadalq_s16(acc[r][s], vpaddq_s16(low, high));
            }
}

#endif
