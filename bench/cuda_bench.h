// What the GPU benchmarks share: calls that must succeed, device memory full of numbers that are none of zero, infinite or NaN, launches, and the time of a graph of them.
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

typedef void kernel(const union gpu_args, const struct bufs);

// early: with programmatic dependent launch.
static inline void launch_kernel(kernel *k, u32 groups, u32 shm, const union gpu_args &a, const struct bufs &b, bool early, cudaStream_t s)
{
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(groups);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shm;
    c.stream = s;
    c.attrs = &attr;
    c.numAttrs = early;
    OK(cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shm));
    OK(cudaLaunchKernelEx(&c, k, a, b));
}

// Microseconds of a graph of what launch(stream) launches, the best of so many runs.
template <typename F> static double graph_us(u32 runs, F launch)
{
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    cudaEvent_t t0, t1;
    float best = 1e30f;
    OK(cudaStreamCreate(&s));
    OK(cudaEventCreate(&t0));
    OK(cudaEventCreate(&t1));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    launch(s);
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    for (u32 r = 0; r < runs; r++) {
        float ms;
        OK(cudaEventRecord(t0, s));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaEventRecord(t1, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaEventElapsedTime(&ms, t0, t1));
        best = ms < best ? ms : best;
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(g));
    OK(cudaEventDestroy(t0));
    OK(cudaEventDestroy(t1));
    OK(cudaStreamDestroy(s));
    return best * 1e3;
}

#endif
