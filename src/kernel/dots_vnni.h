/* Dots of unsigned weights with signed activations where the machine has an instruction for four of them (vpdpbusd). It
 * does not saturate, so any integers may be added up. The including file defines DP4(acc, unsigned, signed). */
#ifndef PS_DOTS_VNNI_H
#define PS_DOTS_VNNI_H

#include "kernel/mat_tile.h"

enum { OFFSET_8 = 128 }; /* of weights of 8 bits as dots_8 takes them: unsigned */

WORD vi weights_8(const u8 *p)
{
    return vi_xor(vi_load(p), vi_set8(-128));
}

/* acc[r][s] += the groups of four g0 .. g0 + n of w[s] times those of activation row r, which begins at x + LINE_Q * r. Rows and
 * strips are inside: their sums are independent, each row's own is a chain of slow links. chain: see dots_madd.h. */
WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    (void)chain;
    UNROLL for (u32 g = g0; g < g0 + n; g++) {
        vi now[STRIPS];
        UNROLL for (u32 s = 0; s < strips; s++)
            now[s] = vi_hold(w[s][g]);
        UNROLL for (u32 r = 0; r < rows; r++) {
            vi xv = vi_four(x + r * LINE_Q + 4 * g);
            UNROLL for (u32 s = 0; s < strips; s++)
                acc[r][s] = DP4(acc[r][s], now[s], xv);
        }
    }
}

/* The same for weights of 8 bits. */
WORD void dots_8(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x)
{
    dots(acc, w, rows, strips, x, 0, 8, 1);
}

#endif
