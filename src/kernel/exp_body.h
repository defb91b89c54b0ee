/* e^x for vector units, as ex_exp (base/exact.h) has it step by step: one text over the words of an instruction set. */
#ifndef PS_EXP_BODY_H
#define PS_EXP_BODY_H

#include "base/exact.h"
#include "kernel/words.h"

/* n of a NaN rounds to an integer whose low 9 bits are 0 (x86: 2^31; Arm: 0), so p, a NaN, is not disturbed; below -87 whatever
 * was computed is not used. */
WORD vf vec_exp(vf x)
{
    const vf magic = vf_set(EX_MAGIC);
    vf v = vf_min(vf_set(88.0f), x);
    vf n = vf_sub(vf_fma(v, vf_set(1.44269502f), magic), magic);
    vf r = vf_fma(n, vf_set(-0.693115234f), v);
    r = vf_fma(n, vf_set(-3.19461833e-05f), r);
    vf p = vf_set(1.98909824e-4f);
    p = vf_fma(p, r, vf_set(1.39336428e-3f));
    p = vf_fma(p, r, vf_set(8.33331048e-3f));
    p = vf_fma(p, r, vf_set(4.16664667e-2f));
    p = vf_fma(p, r, vf_set(1.66666672e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1.0f));
    vf y = vi_floats(vi_add32(vf_bits(p), vi_shl32(vi_round(n), 23)));
    return vf_less(x, vf_set(-87.0f), vf_zero(), y);
}

#endif
