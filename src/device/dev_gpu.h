/* What every GPU device shares: memory laid out once, weights packed, the plan turned into launches, the step. What differs is a
 * backend: how memory is had, how a list of launches is kept ready and handed over. One thread owns a device and its backend. */
#ifndef PS_DEV_GPU_H
#define PS_DEV_GPU_H

#include "device/device_impl.h"
#include "gpu/args.h"

struct gpu_ref { /* a place in device memory: backends say what base means (CUDA, emulator: an address; Metal: a buffer's index) */
    u64 base, offset;
};

struct gpu_launch {
    enum gpu_kernel kernel;
    u32 n_groups, shm_bytes, n_bufs;
    struct gpu_ref bufs[16];
    union gpu_args args;
};

struct gpu_info {
    char name[96];           /* of the chip */
    u64 total_bytes, free_bytes;
    u32 n_groups;            /* groups that run at once: grids are made this large */
    u32 shm_bytes;           /* shared memory a group can have */
};

struct gpu_backend {
    const char *name;
    /* opts: the device's. Fills *info. On failure nothing is left behind. */
    int (*open)(void **self, const struct device_opts *opts, struct gpu_info *info, struct err *err);
    void (*close)(void *self); /* memory and programs with it; NULL is accepted */
    int (*alloc)(void *self, u64 bytes, u64 *base, struct err *err); /* zero-filled, 256-aligned; lives until close */
    int (*upload)(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err);
    int (*download)(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err);
    int (*copy)(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err);
    /* Setup: makes a list of launches ready, in order, each seeing what those before it wrote. The list is copied. one_by_one: launched
     * singly each step (--no-setup-cache). -1 with err. */
    int (*prepare)(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err);
    void (*discard)(void *self, void *program); /* NULL is accepted */
    /* One submission: inputs (n_bytes) to `to`, then the program, then n_out bytes from `out_from` to out. Returns when handed over. */
    int (*submit)(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref out_from,
                  u64 n_out, struct err *err);
    int (*wait)(void *self, struct err *err); /* until the last submission is done: out holds its bytes */
};

extern const struct gpu_backend gpu_backend_emu;
/* Opens libplainsong-cuda.so (beside the program or library, or where PLAINSONG_CUDA names it); NULL with err when it is not there. */
const struct gpu_backend *gpu_backend_cuda(struct err *err);

/* gpu_pack.c: a matrix in the file's layout -> panels of gpu/layout.h. */
u64 gpu_panel_bytes(u32 type, u32 n_in); /* 0: not a type that GPUs read */
/* Panels [p0, p1) of src (n_out, n_in) to dst, which holds panel p0 first. Values not finite: -1 and *bad_row. As kernel/pack.h. Any thread. */
int gpu_pack(u32 type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row);

/* gpu_shm.c: shared memory of a launch, from its kernel and arguments. */
u32 gpu_shm_bytes(enum gpu_kernel kernel, const union gpu_args *args);

#endif
