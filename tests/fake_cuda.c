/* A CUDA plug-in (device/cuda_plugin.c) whose GPU is the emulator, for tests of what a program makes of one that fails: `--device cuda` on a machine
 * without a GPU. Memory is FAKE_FREE bytes, and taking more fails. While a file of a call's name (alloc, upload, submit, wait, ...) is in the folder
 * FAKE_FAULTS that call fails; `hang`: a step does not end; `slow`: it takes a fifth of a second; `none`: there is no backend. */
#include "device/dev_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static u64 taken;

static bool asked(const char *what)
{
    char path[4096];
    const char *folder = getenv("FAKE_FAULTS");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", what);
    return folder && access(path, F_OK) == 0;
}

static bool fails(const char *call, struct err *err)
{
    if (asked(call))
        err_set(err, "CUDA: %s: the chip is on fire", call);
    return asked(call);
}

static u64 memory(void)
{
    const char *bytes = getenv("FAKE_FREE");
    return bytes ? strtoull(bytes, NULL, 10) : 8ull << 30;
}

static int f_memory(u32 index, u64 *free_bytes, struct err *err)
{
    (void)index;
    *free_bytes = memory();
    return fails("memory", err) ? -1 : 0;
}

static int f_open(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err)
{
    int rc = fails("open", err) ? -1 : gpu_backend_emu.open(self, index, opts, info, err);
    info->free_bytes = info->total_bytes = memory();
    return rc;
}

static int f_alloc(void *self, u64 bytes, u64 *base, struct err *err)
{
    taken += bytes;
    if (taken > memory())
        return err_set(err, "CUDA: more is taken than there is");
    return fails("alloc", err) ? -1 : gpu_backend_emu.alloc(self, bytes, base, err);
}

static int f_upload(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err)
{
    return fails("upload", err) ? -1 : gpu_backend_emu.upload(self, to, from, bytes, err);
}

static int f_download(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err)
{
    return fails("download", err) ? -1 : gpu_backend_emu.download(self, to, from, bytes, err);
}

static int f_copy(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err)
{
    return fails("copy", err) ? -1 : gpu_backend_emu.copy(self, to, from, bytes, err);
}

static int f_prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    return fails("prepare", err) ? -1 : gpu_backend_emu.prepare(self, list, n, one_by_one, program, err);
}

static int f_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref from, u64 n_out,
                    struct err *err)
{
    return fails("submit", err) ? -1 : gpu_backend_emu.submit(self, program, to, inputs, n_bytes, out, from, n_out, err);
}

static int f_wait(void *self, struct err *err)
{
    if (asked("slow"))
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    while (asked("hang"))
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    return fails("wait", err) ? -1 : gpu_backend_emu.wait(self, err);
}

__attribute__((visibility("default"))) const u32 plainsong_cuda_abi = PS_GPU_ABI;
__attribute__((visibility("default"))) const struct gpu_backend *plainsong_cuda_backend(void);

const struct gpu_backend *plainsong_cuda_backend(void)
{
    static struct gpu_backend b;
    b = gpu_backend_emu;
    b.name = "cuda";
    b.memory = f_memory;
    b.open = f_open;
    b.alloc = f_alloc;
    b.upload = f_upload;
    b.download = f_download;
    b.copy = f_copy;
    b.prepare = f_prepare;
    b.submit = f_submit;
    b.wait = f_wait;
    return asked("none") ? NULL : &b;
}
