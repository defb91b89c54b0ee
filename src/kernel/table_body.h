/* An instruction set's table out of the bodies. The including file defines TABLE, its name, and ISA, what --isa calls it,
 * and has included words and dots. */
#include "kernel/tables.h"

#include "kernel/attend_body.h"
#include "kernel/float_body.h"
#include "kernel/mat_body.h"
#include "kernel/rows_body.h"

const struct kernels TABLE = {
    .isa = ISA,
    .quantise = vec_quantise,
    .mat = {[DT_Q4_0] = vec_q4_0, [DT_Q4_1] = vec_q4_1, [DT_Q5_0] = vec_q5_0, [DT_Q5_1] = vec_q5_1,
            [DT_Q8_0] = vec_q8_0, [DT_Q4_K] = vec_q4_k, [DT_Q5_K] = vec_q5_k, [DT_Q6_K] = vec_q6_k,
            [DT_F32] = vec_f32, [DT_F16] = vec_f16, [DT_BF16] = vec_bf16},
    .rmsnorm = vec_rmsnorm,
    .rope = vec_rope,
    .swiglu = vec_swiglu,
    .add = vec_add,
    .combine = vec_combine,
    .halves = vec_halves,
    .attend_f16 = vec_attend_f16,
    .attend_f16_many = vec_attend_f16_many,
    .attend_q8 = vec_attend_q8,
    .attend_q8_many = vec_attend_q8_many,
    .attend_join = vec_attend_join,
    .attend_end = vec_attend_end,
};
