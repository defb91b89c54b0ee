/* What the checks of GPU kernels by rows share: device memory with poison around it, compared as a whole; launches on the emulator with
 * some number of groups, in some order. Included by one test program each, which has `emu` opened by open_emu. */
#ifndef PS_GPU_AREA_H
#define PS_GPU_AREA_H

#include "check.h"

#include "gpu_act.h"

#include "gpu/emu.h"
#include "gpu/layout.h"
#include "kernel/tables.h"

enum { EDGE = 16, POISON = 0x7FA5A5A5 /* a signalling NaN */ };

/* Device memory of n words, poisoned, and what should be there after a launch. */
struct area {
    u32 *got, *want, n; /* got - EDGE .. got + n + EDGE */
};

static inline struct area area_of(u64 n)
{
    u64 room = (n + 2 * EDGE + 3) / 4 * 4;
    struct area m = {mem_array(room, sizeof *m.got), mem_array(room, sizeof *m.want), (u32)n};
    for (u64 i = 0; i < room; i++)
        m.got[i] = m.want[i] = POISON;
    m.got += EDGE;
    m.want += EDGE;
    return m;
}

static inline void area_free(struct area *m)
{
    free(m->got - EDGE);
    free(m->want - EDGE);
}

static inline void area_put(struct area *m, u64 i, u32 word)
{
    m->got[i] = m->want[i] = word;
}

static inline void area_floats(struct area *m, u64 at, u32 n, float (*value)(void))
{
    for (u32 i = 0; i < n; i++)
        area_put(m, at + i, EX_BITS(value()));
}

static inline bool is_nan(u32 u)
{
    return (u & 0x7FFFFFFF) > 0x7F800000;
}

/* The index of the first difference, or -1. A NaN's payload is nobody's promise, but poison is not a result. */
static inline i64 area_differs(const struct area *m)
{
    for (i64 i = -EDGE; i < (i64)m->n + EDGE; i++) {
        u32 a = m->got[i], b = m->want[i];
        if (a != b && !(is_nan(a) && is_nan(b) && a != POISON && b != POISON))
            return i + EDGE;
    }
    return -1;
}

static inline void area_same(const char *what, const struct area *m)
{
    i64 i = area_differs(m) - EDGE;
    if (i >= -EDGE)
        fail_msg("%s: word %lld of %u is %08x, expected %08x", what, (long long)i, m->n, m->got[i], m->want[i]);
}

static inline float *floats(u32 *w)
{
    return (float *)w;
}

static struct emu *emu;

/* A launch with some number of groups, in some order. */
static inline int launch_on(enum gpu_kernel k, const union gpu_args *a, struct bufs b, u32 n_groups, u32 shm_bytes, struct err *err)
{
    return emu_launch(emu, k, a, &b, n_groups, shm_bytes, err);
}

static inline void launch(enum gpu_kernel k, const union gpu_args *a, struct bufs b, u32 shm_bytes)
{
    struct err err = {.text = ""};
    struct emu_opts o = {.n_threads = 1, .seed = check_u32(), .poison = true};
    emu_set(emu, &o);
    if (launch_on(k, a, b, (u32[]){1, 2, 3, 5}[check_below(4)], shm_bytes, &err))
        fail_msg("%s", err.text);
}

/* Inputs with row counts of both tables and one table's rows after the header. */
static inline struct area inputs_of(u32 rows, u32 which)
{
    struct area in = area_of(IN_HEADER + 4 * (u64)rows);
    area_put(&in, IN_ROWS + which, rows);
    return in;
}

static inline int open_emu(void **state)
{
    (void)state;
    struct emu_opts o = {.n_threads = 1, .poison = true};
    emu = emu_open(&o);
    return emu ? 0 : -1;
}

static inline int close_emu(void **state)
{
    (void)state;
    emu_close(emu);
    return 0;
}

#endif
