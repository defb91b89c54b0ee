/* What cuda_plugin.c launches: the kernels under names that the CUDA runtime knows (cuda_entry.cu). */
#ifndef PS_CUDA_ENTRY_H
#define PS_CUDA_ENTRY_H

#include "gpu/args.h"
#include "gpu/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* void kernel(union gpu_args args, struct bufs bufs, u64 *clock): any number of groups, GPU_THREADS threads each. clock: NULL, or where each
 * group has CUDA_CLOCK_WORDS: its begin and its end, in nanoseconds, and its SIMD groups' marks (gpu.h). cuda_entry.cu is compiled for each part: NULL for a kernel of another. */
enum { CUDA_PARTS = 7, CUDA_CLOCK_WORDS = 2 + GPU_SIMDS * GPU_MARK_WORDS };
const void *cuda_entry_0(enum gpu_kernel kernel);
const void *cuda_entry_1(enum gpu_kernel kernel);
const void *cuda_entry_2(enum gpu_kernel kernel);
const void *cuda_entry_3(enum gpu_kernel kernel);
const void *cuda_entry_4(enum gpu_kernel kernel);
const void *cuda_entry_5(enum gpu_kernel kernel);
const void *cuda_entry_6(enum gpu_kernel kernel);

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
