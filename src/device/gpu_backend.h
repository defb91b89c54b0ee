/* What differs between GPU devices, as a table of functions: how memory is had, how a list of launches is kept ready and
 * handed over. Read by C and by nvcc (the CUDA backend is a plug-in of its own, cuda_plugin.cu): includes nothing of
 * models. One thread owns a backend. */
#ifndef PS_GPU_BACKEND_H
#define PS_GPU_BACKEND_H

#include "base/base.h"
#include "gpu/args.h"

struct device_opts;

struct gpu_ref { /* a place in device memory: backends say what base means (CUDA, emulator: an address; Metal: a buffer's index) */
    u64 base, offset;
};

struct gpu_launch {
    enum gpu_kernel kernel;
    u32 n_groups, shm_bytes, n_bufs;
    u8 barrier;              /* 1: not before all launches ahead of it are done; 0: beside those since the last 1 (gpu_order.c) */
    struct gpu_ref bufs[GPU_BUFS];
    union gpu_args args;
};

struct gpu_info {
    char name[96];           /* of the chip */
    u64 total_bytes, free_bytes;
    u32 n_groups;            /* groups that run at once: grids are made this large */
    u32 shm_bytes;           /* shared memory a group can have */
    u64 max_buffer_bytes;    /* of one alloc; 0: any */
    double peak_gb_s;        /* of its memory; 0: not known */
    u32 few_rows;            /* device_opts' */
};

struct gpu_backend {
    const char *name;
    /* Before open: free bytes of that GPU. */
    int (*memory)(u32 index, u64 *free_bytes, struct err *err);
    /* Before open, NULL: never: what lets the GPU have `need` bytes more than it holds now, to go behind a refusal: "; do this". "" when nothing
     * does. Where this is, the memory is one with the host's. */
    void (*advise)(u64 need, char *text, size_t n);
    /* index: which of the machine's GPUs, from 0; one backend object drives one. opts: the device's; a plug-in cannot look
     * into them. Fills *info. On failure nothing is left behind. */
    int (*open)(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err);
    void (*close)(void *self); /* memory and programs with it; NULL is accepted */
    int (*alloc)(void *self, u64 bytes, u64 *base, struct err *err); /* zero-filled, 256-aligned; lives until close */
    /* The caller may use `from` again at once. In order with everything below. */
    int (*upload)(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err);
    int (*download)(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err);
    int (*copy)(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err);
    /* Setup: makes a list of launches ready. Each sees what those before its last `barrier` wrote; between two of them any order will do, the
     * list's is one. The list is copied. one_by_one: launched singly each step (--no-setup-cache). -1 with err. */
    int (*prepare)(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err);
    void (*discard)(void *self, void *program); /* NULL is accepted; not while a submission of it is not waited for */
    /* One submission: inputs (n_bytes) to `to`, then the program, then n_out bytes from `out_from` to out. Returns when handed over;
     * inputs may change then, out must stay. */
    int (*submit)(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref out_from,
                  u64 n_out, struct err *err);
    int (*wait)(void *self, struct err *err); /* until the last submission is done: out holds its bytes */
};

#endif
