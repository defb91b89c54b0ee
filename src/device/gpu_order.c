/* Which launches of a list must wait for which: the one place that knows. A launch gets a barrier when it reads what
 * a launch since the last barrier wrote, or writes what one of those read or wrote. What kernels do with their buffers
 * is GPU_ACCESS of gpu/args.h; which buffers are the same memory is told by the parts that dev_gpu.c cuts the scratch
 * into. Two that write different rows of one part are in each other's way, unless the table says that their rows never
 * meet. Weights and the rotation are only read. The arena is one part, not one for each layer: a layer's store and the
 * attention before it are kept apart by the rows of q in any case.
 *
 * A backend whose launches run in order anyway (CUDA) may ignore the flags. tests/test_gpu_order.c takes each away in
 * turn. */
#include "device/gpu_host.h"

#include <assert.h>
#include <string.h>

enum {
#define X(name, access) ORDER_##name,
    GPU_ACCESS(X)
#undef X
    ORDER_COUNT
};
#define X(name, access) _Static_assert((int)ORDER_##name == (int)GK_##name, "GPU_ACCESS has GPU_KERNELS' order");
GPU_ACCESS(X)
#undef X
_Static_assert((int)ORDER_COUNT == (int)GK_COUNT, "GPU_ACCESS has every kernel");

const char *gpu_access(enum gpu_kernel kernel)
{
    static const char *const ACCESS[] = {
#define X(name, access) access,
        GPU_ACCESS(X)
#undef X
    };
    return ACCESS[kernel];
}

u64 gpu_region(const struct gpu *g, struct gpu_ref r)
{
    u32 i = g->n_regions;
    if (r.base == g->arena.base)
        return 1ull << GPU_REGIONS;
    if (r.base != g->inputs.base)
        return 0;
    while (i && g->regions[i - 1] > r.offset)
        i--;
    return i ? 1ull << (i - 1) : 0;
}

void gpu_order(struct gpu *g)
{
    u64 read = 0, wrote = 0, owned = 0; /* since the last barrier */
    for (u32 i = 0; i < g->list.n; i++) {
        struct gpu_launch *l = &g->list.at[i];
        const char *access = gpu_access(l->kernel);
        u64 reads = 0, writes = 0, owns = 0;
        assert(l->n_bufs <= strlen(access));
        for (u32 b = 0; b < l->n_bufs; b++) {
            u64 part = l->bufs[b].base ? gpu_region(g, l->bufs[b]) : 0;
            reads |= access[b] == 'r' || access[b] == 'x' ? part : 0;
            writes |= access[b] == 'w' || access[b] == 'x' ? part : 0;
            owns |= access[b] == 'o' ? part : 0;
            assert(part || access[b] == 'r' || access[b] == '-' || !l->bufs[b].base);
        }
        l->barrier = (reads & (wrote | owned)) || (writes & (read | wrote | owned)) || (owns & (read | wrote));
        if (l->barrier)
            read = wrote = owned = 0;
        read |= reads;
        wrote |= writes;
        owned |= owns;
    }
}
