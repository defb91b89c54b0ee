/* What dots have in common where both factors are signed bytes, as on Arm: weights of 4, 5 and 6 bits are unsigned but
 * fit, those of 8 bits are taken as they are stored. The including file writes dots. */
#ifndef PS_DOTS_SIGNED_H
#define PS_DOTS_SIGNED_H

#include "kernel/mat_tile.h"

enum { OFFSET_8 = 0 }; /* of weights of 8 bits as dots_8 takes them: signed */

WORD vi weights_8(const u8 *p)
{
    return vi_load(p);
}

/* acc[r][s] += the groups of four g0 .. g0 + n of w[s] times those of activation row r, which begins at x + LINE_Q * r. n is 4 or
 * 8; chain: as many groups may be added up in 16-bit pairs (dots_smull.h). */
WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain);

/* The same for weights of 8 bits: a pair of products, 128 * 127 * 2 = 32,512, just fits. */
WORD void dots_8(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x)
{
    dots(acc, w, rows, strips, x, 0, 8, 1);
}

#endif
