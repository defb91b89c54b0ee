/* Dots of unsigned weights with signed activations where the machine has an instruction for four of them (vpdpbusd). It
 * does not saturate, so any integers may be added up. The including file defines DP4(acc, unsigned, signed). */
#ifndef PS_DOTS_VNNI_H
#define PS_DOTS_VNNI_H

/* acc[s] += sum over n groups of four of w[s][group] * x; chain is of interest to dots_madd.h only. */
WORD void dots(vi *acc, const vi (*w)[8], u32 strips, const i8 *x, u32 g0, u32 n, u32 chain)
{
    (void)chain;
    UNROLL for (u32 g = g0; g < g0 + n; g++) {
        i32 four;
        memcpy(&four, x + 4 * g, 4);
        vi xv = vi_set(four);
        UNROLL for (u32 s = 0; s < strips; s++)
            acc[s] = DP4(acc[s], w[s][g], xv);
    }
}

/* The same for weights of 8 bits. */
WORD void dots_8(vi *acc, const vi (*w)[8], u32 strips, const i8 *x)
{
    dots(acc, w, strips, x, 0, 8, 1);
}

#endif
