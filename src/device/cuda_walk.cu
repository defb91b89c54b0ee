/* The walk: one kernel that stays on every SM and runs a list of launches, with a grid-wide barrier between two. See cuda_entry.h. */
#include "device/cuda_entry.h"
#include "gpu/kernels.h"

#ifndef CUDA_WALK_GROUPS /* an SM: 1 leaves 255 registers, 2 leave 128, too few for most kernels here (make cuda NVCCFLAGS=-DCUDA_WALK_GROUPS=2) */
#define CUDA_WALK_GROUPS 1
#endif

/* The barrier. All threads of a group end a phase at a group barrier; then one thread arrives with a release and looks with acquires until all
 * groups have; then a second group barrier lets the others go on.
 *
 * Why every thread then sees what every other group wrote: in PTX's memory model a write before the first group barrier is ordered before the
 * arriving thread's release (barriers synchronise at group scope, a release covers all that its thread has observed: it is
 * cumulative), the release before the acquire that reads it or a later arrival (a chain of atomic adds is one release sequence), and the
 * acquire before what follows the second barrier in any thread of its group. On the chip: the release waits until the SM's
 * earlier writes are in L2, the acquire drops the SM's L1 lines, so that an ordinary load after it misses to L2. What this needs of
 * the kernels: nothing that a kernel writes is ever read by ld.global.nc (gpu.h has it for weights alone), and no `const
 * __restrict__` that would let the compiler choose it.
 *
 * Counting: `arrived` grows by the number of groups at each meeting and is never reset, so a replayed graph needs no memset. A walk starts from
 * `base`, which the walk before left: one thread of group 0 writes it at the end, when all groups have long passed the
 * first meeting and therefore read it. The difference is taken as a signed number, so wrapping does no harm. */
KFN void arrive(struct cuda_meeting *m)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(&m->arrived) : "memory");
}

KFN void await(struct cuda_meeting *m, u32 until)
{
    u32 seen;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&m->arrived) : "memory");
    while ((i32)(seen - until) < 0);
}

/* While thread 0 waits: the next launch's words into shared memory, by the second SIMD group. */
enum { WALK_WORDS = sizeof(struct cuda_walk) / 16 };
static_assert(sizeof(struct cuda_walk) % 16 == 0 && WALK_WORDS <= 32, "one load by each lane of a SIMD group");

KFN void take_launch(struct at at, struct cuda_walk *to, const struct cuda_walk *from)
{
    if (at.simd == 1 && at.lane < WALK_WORDS)
        ((w4 *)to)[at.lane] = ((const w4 *)from)[at.lane];
}

/* And a share of its weights into L2, by all but the first SIMD group: lines of 128 bytes, dealt out over the groups. */
KFN void fetch_ahead(struct at at, const struct cuda_walk *next)
{
    if (at.simd == 0)
        return;
    for (u32 i = 0; i < CUDA_WALK_AHEAD; i++) {
        u64 bytes = next->ahead[i].bytes, step = (u64)at.n_groups * (GPU_THREADS - 32) * 128;
        for (u64 o = ((u64)at.group * (GPU_THREADS - 32) + at.id - 32) * 128; o < bytes; o += step)
            prefetch((const u8 *)next->ahead[i].at + o);
    }
}

/* The launch that is run now. */
static __shared__ struct __align__(16) { struct cuda_walk launch; } now;

/* A function each, called. In one body with the others the kernels spilled 1,608 bytes, though none of them did alone; called, the
 * products and experts spill nothing (nvcc -Xptxas -v, 13.0). Arguments are copied to registers: read in place they would be read again
 * after every store. The ring's state comes and goes by value, so that it stays in a register. */
#define X(name, type)                                                                                                       \
    static __device__ __noinline__ struct ring w_##name(u32 n_groups, struct ring ring)                                     \
    {                                                                                                                       \
        extern __shared__ __align__(16) u32 shm[];                                                                          \
        struct at at = cuda_at(&ring);                                                                                      \
        at.n_groups = n_groups;                                                                                             \
        if (CUDA_WALKS(GK_##name)) {                                                                                        \
            struct type##_args args = now.launch.args.type##_;                                                              \
            struct bufs bufs = now.launch.bufs;                                                                             \
            k_##name(at, &args, bufs, GPU_HAS_RING(GK_##name) ? shm : shm + RING_WORDS); /* the ring is nobody else's */     \
        }                                                                                                                   \
        return ring;                                                                                                        \
    }
GPU_KERNELS(X)
#undef X

KFN struct ring run_launch(struct at at, struct ring ring)
{
    u32 n_groups = least_u32(at.n_groups, now.launch.n_groups);
    if (at.group < n_groups)
        switch (now.launch.kernel) {
#define X(name, type)                                                                                                       \
    case GK_##name: return w_##name(n_groups, ring);
            GPU_KERNELS(X)
#undef X
        }
    return ring;
}

static __global__ void __launch_bounds__(GPU_THREADS, CUDA_WALK_GROUPS)
    walk(const struct cuda_walk *list, u32 n, struct cuda_meeting *m)
{
    extern __shared__ __align__(16) u32 shm[];
    struct ring ring;
    struct at at = cuda_at(&ring);
    u32 base = 0, until = 0;
    ring_open(at, shm);
    if (at.id == 0)
        base = until = *(volatile u32 *)&m->base;
    take_launch(at, &now.launch, list);
    __syncthreads();
    for (u32 i = 0;; i++) {
        ring = run_launch(at, ring);
        if (i + 1 == n)
            break;
        __syncthreads();
        if (at.id == 0) {
            until += at.n_groups;
            arrive(m);
            await(m, until);
        } else {
            take_launch(at, &now.launch, list + i + 1);
            fetch_ahead(at, list + i + 1);
        }
        __syncthreads();
    }
    if (at.group == 0 && at.id == 0 && until != base)
        *(volatile u32 *)&m->base = until;
}

const void *cuda_walk_entry(void)
{
    return (const void *)walk;
}
