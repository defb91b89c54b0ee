/* Dots with Arm's instruction for four signed bytes (sdot), for any count of rows. A register holds 16 activations of a row; each
 * dot names the lane of its four, so none is broadcast. */
#ifndef PS_SDOT_ROWS_H
#define PS_SDOT_ROWS_H

#include "kernel/dots_signed.h"

/* As dots of dots_signed.h. */
WORD void sdot_rows(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n)
{
    UNROLL for (u32 g = g0; g < g0 + n; g += 4)
        UNROLL for (u32 r = 0; r < rows; r++) {
            int8x16_t xv = vld1q_s8(x + r * LINE_Q + 4 * g);
            UNROLL for (u32 s = 0; s < strips; s++) {
                vi a = acc[r][s];
                a = vdotq_laneq_s32(a, vreinterpretq_s8_s32(w[s][g]), xv, 0);
                a = vdotq_laneq_s32(a, vreinterpretq_s8_s32(w[s][g + 1]), xv, 1);
                a = vdotq_laneq_s32(a, vreinterpretq_s8_s32(w[s][g + 2]), xv, 2);
                acc[r][s] = vdotq_laneq_s32(a, vreinterpretq_s8_s32(w[s][g + 3]), xv, 3);
            }
        }
}

#endif
