/* What a device gives to device.c. Not for callers. */
#ifndef PS_DEVICE_IMPL_H
#define PS_DEVICE_IMPL_H

#include "device/device.h"

struct device_ops {
    const char *name;
    int (*open)(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err);
    void (*close)(struct device *d);
    int (*step)(struct device *d, const struct row *rows, u32 n_rows, struct err *err);
    void (*copy)(struct device *d, u32 from, u32 to, u32 n);
    const float *(*logits)(const struct device *d, u32 i);
    void (*each)(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg); /* NULL: no threads */
};

struct device { /* first member of every device's own struct */
    const struct device_ops *ops;
    const struct plan *plan;
    struct device_opts opts;
    struct device_stats stats;
    device_trace *trace;
    void *trace_arg;
};

extern const struct device_ops device_cpu;

#endif
