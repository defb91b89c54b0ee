/* Dots of unsigned weights with signed activations in 16-bit pairs (vpmaddubsw). Pairs saturate beyond 32,767, so only as
 * many are added as fit: chain groups. |x| <= 127 (rule 1):
 *   nibbles  15 * 127 * 2 =  3,810 a pair: 8 groups make 30,480
 *   5 bits   31 * 127 * 2 =  7,874: 4 groups make 31,496
 *   6 bits   63 * 127 * 2 = 16,002: 2 groups make 32,004
 *   8 bits  255 * 127 * 2 does not fit: split into two nibbles. */
#ifndef PS_DOTS_MADD_H
#define PS_DOTS_MADD_H

#include "kernel/mat_tile.h"

enum { OFFSET_8 = 128 }; /* of weights of 8 bits as dots_8 takes them: unsigned */

WORD vi weights_8(const u8 *p)
{
    return vi_xor(vi_load(p), vi_set8(-128));
}

/* acc[r][s] += the groups of four g0 .. g0 + n of w[s] times those of activation row r, which begins at x + LINE_Q * r. */
WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    vi ones = vi_set(0x00010001);
    UNROLL for (u32 g = g0; g < g0 + n; g += chain)
        UNROLL for (u32 r = 0; r < rows; r++) {
            vi pairs[STRIPS];
            UNROLL for (u32 c = 0; c < chain; c++) {
                vi xv = vi_four(x + r * LINE_Q + 4 * (g + c));
                UNROLL for (u32 s = 0; s < strips; s++) {
                    vi t = vi_maddubs(w[s][g + c], xv);
                    pairs[s] = c ? vi_add16(pairs[s], t) : t;
                }
            }
            UNROLL for (u32 s = 0; s < strips; s++)
                acc[r][s] = vi_add32(acc[r][s], vi_madd16(pairs[s], ones));
        }
}

/* Weights of 8 bits: 16 times the dot of the upper nibbles and the dot of the lower. */
WORD void dots_8(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x)
{
    vi low[STRIPS][8], high[STRIPS][8], more[GROUP][STRIPS];
    UNROLL for (u32 s = 0; s < strips; s++) {
        UNROLL for (u32 g = 0; g < 8; g++) {
            low[s][g] = vi_and(w[s][g], vi_set8(15));
            high[s][g] = vi_and(vi_shr(w[s][g], 4), vi_set8(15));
        }
        UNROLL for (u32 r = 0; r < rows; r++)
            more[r][s] = vi_zero();
    }
    dots(acc, low, rows, strips, x, 0, 8, 8);
    dots(more, high, rows, strips, x, 0, 8, 8);
    UNROLL for (u32 r = 0; r < rows; r++)
        UNROLL for (u32 s = 0; s < strips; s++)
            acc[r][s] = vi_add32(acc[r][s], vi_shl32(more[r][s], 4));
}

#endif
