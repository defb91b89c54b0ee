/* What cuda_plugin.c launches: the kernels under names that the CUDA runtime knows (cuda_entry.cu), and one that runs a whole list of
 * them (cuda_walk.cu). */
#ifndef PS_CUDA_ENTRY_H
#define PS_CUDA_ENTRY_H

#include "gpu/args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* void kernel(union gpu_args args, struct bufs bufs, u64 *clock): any number of groups, GPU_THREADS threads each. clock: NULL, or where each
 * group leaves its begin and its end, in nanoseconds. cuda_entry.cu is compiled for each part: NULL for a kernel of another. */
enum { CUDA_PARTS = 7 };
const void *cuda_entry_0(enum gpu_kernel kernel);
const void *cuda_entry_1(enum gpu_kernel kernel);
const void *cuda_entry_2(enum gpu_kernel kernel);
const void *cuda_entry_3(enum gpu_kernel kernel);
const void *cuda_entry_4(enum gpu_kernel kernel);
const void *cuda_entry_5(enum gpu_kernel kernel);
const void *cuda_entry_6(enum gpu_kernel kernel);

/* void walk(const struct cuda_walk *list, u32 n, struct cuda_meeting *m): the list in order, in one cooperative launch of at most
 * CUDA_WALK_GROUPS groups an SM; dynamic shared memory: the most that a launch of the list wants, a ring before it where it has none of
 * its own. Built for compute capability 9.0 alone, and of the kernels that steps of few rows are made of, where waiting between launches is
 * what a step costs: the others would only take long to compile. */
const void *cuda_walk_entry(void);
#define CUDA_WALKS(kernel)                                                                                       \
    ((kernel) != GK_prompt && (kernel) != GK_product_2 && (kernel) != GK_product_many && \
     (kernel) != GK_experts_in_2 && (kernel) != GK_experts_out_2 && (kernel) != GK_experts_in_many && (kernel) != GK_experts_out_many && \
     (kernel) != GK_experts_in_twin && (kernel) != GK_experts_out_twin)

enum { CUDA_WALK_AHEAD = 3 };

struct cuda_walk { /* in device memory, 16-aligned; a multiple of 16 bytes */
    u32 kernel, n_groups, pad[2];
    struct bufs bufs;
    union gpu_args args;
    struct { /* weights that this launch reads whole: may be fetched to L2 while the one before ends; 0 bytes: none */
        u64 at, bytes;
    } ahead[CUDA_WALK_AHEAD];
};

/* Where the groups of a walk wait for each other; zero at first, then kept from walk to walk. Nothing resets it: `arrived` only grows
 * (and wraps), `base` is its value when no walk runs. */
struct cuda_meeting {
    u32 arrived, pad[63]; /* two lines apart: base is read while others arrive */
    u32 base, pad2[63];
};

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
KFN struct at cuda_at(struct ring *ring)
{
    struct at at = {blockIdx.x, gridDim.x, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31u, ring};
    return at;
}
#endif

#endif
