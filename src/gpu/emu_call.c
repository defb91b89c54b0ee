/* Every kernel's text compiled as C. See emu_call.h. */
#include "gpu/emu_call.h"

#include "gpu/kernels.h"

/* A function each: a lane's stack then holds one kernel's variables, not all kernels'. */
#define X(name, args_of)                                                                                         \
    static __attribute__((noinline)) void call_##name(struct at at, const union gpu_args *args, const struct bufs *b, u32 *shm) \
    {                                                                                                            \
        k_##name(at, &args->args_of##_, *b, shm);                                                                \
    }
GPU_KERNELS(X)
#undef X

void emu_call(enum gpu_kernel kernel, struct at at, const union gpu_args *args, const struct bufs *b, u32 *shm)
{
    switch (kernel) {
#define X(name, args_of)                                                                                         \
    case GK_##name:                                                                                              \
        call_##name(at, args, b, shm);                                                                           \
        break;
        GPU_KERNELS(X)
#undef X
    case GK_COUNT:
        break;
    }
}

const char *emu_name(enum gpu_kernel kernel)
{
    switch (kernel) {
#define X(name, args_of)                                                                                         \
    case GK_##name:                                                                                              \
        return #name;
        GPU_KERNELS(X)
#undef X
    case GK_COUNT:
        break;
    }
    return "?";
}
