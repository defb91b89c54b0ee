/* Where Apple's host enters the kernels: kernel plainsong_<name> for each of GPU_KERNELS. tools/metal_text.sh
 * makes one text of this and all that it includes; nothing else reads it.
 *
 *   buffer(0)       the kernel's arguments, struct <args>_args       buffer(i + 1)   buffer i of args.h
 *   threadgroup(0)  shared memory, of a length that the host sets
 *
 * 256 threads a group (said to the compiler, which may give each the more registers), the number of groups is the
 * grid: one dimension. A buffer that a kernel has no use for is not looked at. */
#ifndef PS_METAL_ENTRY_H
#define PS_METAL_ENTRY_H

#include "gpu/kernels.h"

#define ENTRY_BUF(i, index) DEV u8 *b##i [[buffer(index)]]
#define X(name, args_of)                                                                                              \
    [[max_total_threads_per_threadgroup(GPU_THREADS)]]                                                                \
    kernel void plainsong_##name(constant struct args_of##_args &a [[buffer(0)]],                                     \
        ENTRY_BUF(0, 1), ENTRY_BUF(1, 2), ENTRY_BUF(2, 3), ENTRY_BUF(3, 4), ENTRY_BUF(4, 5), ENTRY_BUF(5, 6),         \
        ENTRY_BUF(6, 7), ENTRY_BUF(7, 8), ENTRY_BUF(8, 9), ENTRY_BUF(9, 10), ENTRY_BUF(10, 11), ENTRY_BUF(11, 12),    \
        ENTRY_BUF(12, 13), ENTRY_BUF(13, 14), ENTRY_BUF(14, 15), ENTRY_BUF(15, 16),                                   \
        SHM u32 *shm [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],                                 \
        uint n_groups [[threadgroups_per_grid]], uint simd [[simdgroup_index_in_threadgroup]],                        \
        uint lane [[thread_index_in_simdgroup]])                                                                      \
    {                                                                                                                 \
        struct bufs b = {{b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15}};                     \
        struct ring ring = {0};                                                                                       \
        k_##name(at_of(group, n_groups, simd, lane, &ring), &a, b, shm);                                              \
    }
GPU_KERNELS(X)
#undef X

#endif
