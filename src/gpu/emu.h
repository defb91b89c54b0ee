/* The kernels of src/gpu as C, each GPU thread a fiber. SIMD groups run out of step between barriers, lanes too, in an order that a seed
 * picks: what a missing barrier would let happen on hardware happens here, in most seeds.
 *
 * Owner: one thread calls emu_launch; it may use others inside, a group on one of them from begin to end. */
#ifndef PS_EMU_H
#define PS_EMU_H

#include "gpu/args.h"
#include "gpu/gpu.h"

struct emu;

struct emu_opts {
    u32 n_threads;      /* of the host, 1.. */
    u64 seed;
    bool poison;        /* shared memory starts as signalling NaNs in every group (it always starts undefined) */
    u32 no_file, no_line; /* test builds: the barrier of this text is left out; 0: none */
};

/* NULL: out of memory. */
struct emu *emu_open(const struct emu_opts *o);
void emu_close(struct emu *e);
void emu_set(struct emu *e, const struct emu_opts *o); /* seed and barrier from the next launch on; threads stay */

/* Runs a kernel on n_groups groups, each with shm_bytes of shared memory (16-byte aligned), to its end. 0, or -1: the SIMD groups of a group met
 * at different barriers, or some ended while others wait: err says kernel, group and lines. */
int emu_launch(struct emu *e, enum gpu_kernel kernel, const union gpu_args *args, const struct bufs *b, u32 n_groups,
               u32 shm_bytes, struct err *err);

/* The same for a function that is no kernel: emu.c's own test. */
int emu_run(struct emu *e, void (*fn)(struct at at, void *arg, u32 *shm), void *arg, u32 n_groups, u32 shm_bytes, struct err *err);

/* Barriers (file number, line) that any launch since emu_open has passed; the count. For tests that take each away. */
u32 emu_barriers(const struct emu *e, u32 (*at)[2], u32 max);

#endif
