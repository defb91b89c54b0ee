/* Dots for Arm with dotprod: sdot for every tile. */
#ifndef PS_DOTS_SDOT_H
#define PS_DOTS_SDOT_H

#include "kernel/sdot_rows.h"

WORD void dots(vi (*acc)[STRIPS], const vi (*w)[8], u32 rows, u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    (void)chain;
    sdot_rows(acc, w, rows, strips, x, g0, n);
}

#endif
