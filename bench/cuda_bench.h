// What the GPU benchmarks (few.cu, dense.cu, experts.cu) share: calls that must succeed, and device memory full of numbers
// that are none of zero, infinite or NaN.
#ifndef PS_BENCH_CUDA_H
#define PS_BENCH_CUDA_H

#include "gpu/kernels.h"

#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                                                        \
    do {                                                                                                                \
        cudaError_t e_ = (call);                                                                                        \
        if (e_ != cudaSuccess) {                                                                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_));                                                 \
            exit(1);                                                                                                    \
        }                                                                                                               \
    } while (0)

__global__ void fill(u32 *p, u64 n, u32 seed, bool floats)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u32 x = (u32)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = floats ? __float_as_uint((float)(i32)x * 4.6566e-10f) : x & 0x3BFF3BFFu; // in [-1, 1); halves below 1
    }
}

static u8 *device(u64 bytes, bool floats)
{
    u8 *p;
    OK(cudaMalloc(&p, bytes));
    fill<<<1024, 256>>>((u32 *)p, bytes / 4, (u32)bytes, floats);
    return p;
}

#endif
