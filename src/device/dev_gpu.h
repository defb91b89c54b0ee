/* What every GPU device shares: memory laid out once, weights packed, the plan turned into launches, the step. What differs is a
 * backend (gpu_backend.h). One thread owns a device and its backend. */
#ifndef PS_DEV_GPU_H
#define PS_DEV_GPU_H

#include "device/device_impl.h"
#include "device/gpu_backend.h"

extern const struct gpu_backend gpu_backend_emu;
enum { EMU_GROUPS = 6, EMU_SHM = PS_METAL ? 32 << 10 : 227 << 10 /* as Apple's GPUs have, or Hopper */ };
extern const struct gpu_backend gpu_backend_metal; /* of PS_METAL builds */
/* Opens libplainsong-cuda.so (beside the program or library, or where PLAINSONG_CUDA names it); NULL with err when it is not there. */
const struct gpu_backend *gpu_backend_cuda(struct err *err);

/* gpu_pack.c: a matrix in the file's layout -> panels of gpu/layout.h. */
u64 gpu_panel_bytes(u32 type, u32 n_in); /* 0: not a type that GPUs read */
/* Panels [p0, p1) of src (n_out, n_in) to dst, which holds panel p0 first. Values not finite: -1 and *bad_row. As kernel/pack.h. Any thread. */
int gpu_pack(u32 type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row);

/* gpu_selftest.c: k_probe on an open backend against the same arithmetic here (rule 15), some milliseconds. 0: it ran, and `bad` (n bytes)
 * names what differs, "" when nothing does. -1 with err: the device failed. */
int gpu_selftest(const struct gpu_backend *b, void *self, char *bad, size_t n, struct err *err);

/* gpu_print.c, for people: the launches of a step of so many rows, each at the end of its stream, and which of them wait; how many there are a
 * layer, over rows. device: "cuda" (an H200), "metal" (an M1 Ultra) or "emu"; none need be there. */
int gpu_print(const struct plan *p, const char *device, u32 rows, FILE *out, struct err *err);
int gpu_print_totals(const struct plan *p, const char *device, FILE *out, struct err *err);

/* gpu_shm.c: shared memory of a launch, from its kernel and arguments. */
u32 gpu_shm_bytes(enum gpu_kernel kernel, const union gpu_args *args);
/* The most query heads in an item of k_attend, of `share` that have one key/value head: 1, 2, 4 or 8, dividing share. */
u32 gpu_item_heads(u32 share, u32 d_head, bool q8);

#endif
