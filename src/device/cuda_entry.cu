/* The GPU kernels as nvcc's: an entry for each. See cuda_entry.h. Arithmetic is in src/gpu alone.
 *
 * Compiled once for each CUDA_PART, a share of the kernels: side by side, and all together in a quarter of the time that one file takes. */
#include "device/cuda_entry.h"
#include "gpu/kernels.h"

#define PART_OF(kernel)                                                                                                     \
    ((kernel) == GK_prompt ? 1                                                                                              \
     : (kernel) == GK_attend || (kernel) == GK_attend_store || (kernel) == GK_join ? 2                                                                     \
     : (kernel) == GK_product_1 || (kernel) == GK_product_2 ? 3                                 \
     : (kernel) == GK_experts_in_1 || (kernel) == GK_experts_in_2 || (kernel) == GK_experts_out_1 || (kernel) == GK_experts_out_2 ||\
       (kernel) == GK_experts_in_twin || (kernel) == GK_experts_out_twin ? 4 \
     : (kernel) == GK_product_many || (kernel) == GK_experts_in_many || (kernel) == GK_experts_out_many ? 5                  \
     : (kernel) >= GK_few_1 && (kernel) <= GK_dense_4 ? 6                                                                   \
                                                                                                        : 0)
#define NAME_OF_2(part) cuda_entry_##part
#define NAME_OF(part) NAME_OF_2(part)

/* Nanoseconds, of all SMs alike. */
KFN u64 clock_now(void)
{
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

#ifdef GPU_MARKS
#define MARKS_AT(at, clock) (at).marks = (clock) ? (clock) + CUDA_CLOCK_WORDS * (at).group + 2u + GPU_MARK_WORDS * (at).simd : NULL
#else
#define MARKS_AT(at, clock)
#endif
#define X(name, type)                                                                                                       \
    static __global__ void __launch_bounds__(GPU_THREADS, GK_##name == GK_dense_4 || GK_##name == GK_experts_in_many ? 1 : 2)                        \
        e_##name(const __grid_constant__ union gpu_args args, const __grid_constant__ struct bufs bufs, u64 *clock)        \
    {                                                                                                                       \
        if (PART_OF(GK_##name) != CUDA_PART)                                                                                \
            return;                                                                                                         \
        extern __shared__ __align__(16) u32 shm[];                                                                          \
        struct ring ring;                                                                                                   \
        struct at at = cuda_at(&ring);                                                                                      \
        if (GPU_HAS_RING(GK_##name))                                                                                        \
            ring_open(at, shm);                                                                                             \
        if (!GPU_LOADS_FIRST(GK_##name))                                                                                    \
            in_turn();                                                                                                      \
        MARKS_AT(at, clock);                                                                                                \
        MARK(at, 0u);                                                                                                       \
        if (clock && at.id == 0u)                                                                                           \
            clock[CUDA_CLOCK_WORDS * at.group] = clock_now();                                                               \
        k_##name(at, &args.type##_, bufs, shm);                                                                             \
        MARK(at, 15u);                                                                                                      \
        if (clock) {                                                                                                        \
            __syncthreads();                                                                                                \
            if (at.id == 0u)                                                                                                \
                clock[CUDA_CLOCK_WORDS * at.group + 1u] = clock_now();                                                      \
        }                                                                                                                   \
    }
GPU_KERNELS(X)
#undef X

const void *NAME_OF(CUDA_PART)(enum gpu_kernel kernel)
{
    static const void *const ENTRY[GK_COUNT] = {
#define X(name, type) (const void *)e_##name,
        GPU_KERNELS(X)
#undef X
    };
    return PART_OF(kernel) == CUDA_PART ? ENTRY[kernel] : NULL;
}
