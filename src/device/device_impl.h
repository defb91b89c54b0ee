/* What a device gives to device.c. Not for callers. */
#ifndef PS_DEVICE_IMPL_H
#define PS_DEVICE_IMPL_H

#include "device/device.h"

struct device_ops {
    const char *name;
    u32 chunk; /* see device_chunk */
    int (*memory)(u64 *free_bytes, struct err *err); /* NULL: the host's */
    void (*advise)(u64 need, char *text, size_t n); /* see device_advise; NULL: nothing */
    int (*open)(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err);
    void (*close)(struct device *d);
    int (*step)(struct device *d, const struct row *rows, u32 n_rows, struct err *err);
    void (*copy)(struct device *d, u32 from, u32 to, u32 n);
    const float *(*logits)(const struct device *d, u32 i);
    const u32 *(*picks)(const struct device *d, u32 i); /* NULL: none */
    void (*each)(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg); /* NULL: no threads */
};

struct device { /* first member of every device's own struct */
    const struct device_ops *ops;
    const struct plan *plan;
    struct device_opts opts;
    struct device_stats stats;
    device_trace *trace;
    void *trace_arg;
    char broken[256], warning[256]; /* stats points here when they are not empty */
};

extern const struct device_ops device_cpu, device_emu, device_cuda;
extern const struct device_ops device_metal; /* of PS_METAL builds */

#endif
