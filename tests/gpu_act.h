/* What GPU kernels' tests expect of act rows (gpu/layout.h). */
#ifndef PS_TEST_GPU_ACT_H
#define PS_TEST_GPU_ACT_H

#include "check_kernel.h"
#include "gpu/layout.h"

/* Act rows by the reference, words where layout.h says. */
static inline void act_rows(u32 *act, const float *x, u32 n, u32 stride, u32 rows)
{
    enum { MOST = 8192 };
    u32 n_pad = GPU_PAD(n);
    assert_true(n_pad <= MOST);
    for (u32 r = 0; r < rows; r++, act += GPU_ACT_BYTES(n) / 4, x += stride) {
        static i8 q[MOST];
        static float d[MOST / 32];
        static i16 sum[MOST / 32];
        kernels_scalar.quantise(x, n, q, d, sum);
        memset(q + n, 0, n_pad - n);
        for (u32 b = 0; b < n_pad / 32; b++) {
            act[n_pad / 4 + b] = b < n / 32 ? EX_BITS(d[b]) : 0;
            act[n_pad / 4 + n_pad / 32 + b] = b < n / 32 ? (u32)(i32)sum[b] : 0;
            for (u32 w = 0; w < 8; w++)
                memcpy(act + b / 2 * 16 + w % 4 * 4 + b % 2 * 2 + w / 4, q + 32 * b + 4 * w, 4);
        }
    }
}

#endif
