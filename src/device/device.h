/* Runs a plan. A device holds the weights in its own layout, the KV arena, and what it prepares once and keeps from
 * step to step. One thread owns it; every call below is that thread's. */
#ifndef PS_DEVICE_H
#define PS_DEVICE_H

#include "plan/plan.h"

struct device_opts {
    const char *name;    /* "cpu" */
    const char *isa;     /* NULL: the best */
    u32 n_threads;       /* 0: every core */
    u32 n_slots, n_ctx;  /* the arena: slots x positions */
    enum kv_type kv;
    u32 max_rows;        /* in a step */
    u32 max_logits;      /* rows of a step that may want logits */
    bool no_setup_cache; /* prepare every step anew */
    bool experts_per_row; /* every (row, rank) a group of its own */
    void (*tell)(void *arg, const char *what, u64 done, u64 total); /* progress of loading, or NULL */
    void *tell_arg;
};

struct device_stats { /* counted since open */
    u64 steps, submissions, waits, rows, logit_rows;
    u64 expert_groups;   /* grouped operations' groups: (expert, layer) pairs run */
    u64 bytes_read;      /* weights (file format) and keys and values, by the plan's count */
    u64 setups;          /* times a step was prepared anew */
    u64 copied;          /* positions copied between slots */
    double setup_s;      /* preparing: looking up, cutting work, row tables */
    double submit_s;     /* handing work over: on a CPU the host's serial work between two loops */
    double wait_s;       /* waiting for the device: on a CPU inside the loops */
    u64 weight_bytes, kv_bytes, scratch_bytes, setup_bytes;
    double load_s;
    u32 n_threads;
    const char *name, *isa;
};

struct device;

/* Called after each operation of a step with a hash of each row's output: for verify. */
typedef void device_trace(void *arg, const struct plan_op *op, u32 row, u64 hash);

/* p and the file it points into must outlive the device. Refuses non-finite weights, naming the tensor. */
int device_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err);
void device_close(struct device *d);

/* One step: one submission, one wait. rows: n_rows <= max_rows, of which at most max_logits want logits; a slot's rows
 * come in position order, each at a position the slot has reached. Keys and values of the rows are stored. A
 * failure leaves the slots' contents at the rows' positions undefined. */
int device_step(struct device *d, const struct row *rows, u32 n_rows, struct err *err);

/* Copies the keys and values of positions [0, n) from one slot to another: how a stream starts from a prefix that
 * another slot holds. Not a submission; n <= n_ctx. */
void device_copy(struct device *d, u32 from, u32 to, u32 n);

/* Logits of the i-th row that wanted them: (n_vocab), valid until the next step. */
const float *device_logits(const struct device *d, u32 i);

/* Runs fn(arg, i, thread) once for each i < n on the threads the device has on the host, between two steps, and returns
 * when all are done: the engine's own work over rows. Which thread takes which i is not settled. A device without such
 * threads runs them on the caller's. */
void device_each(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg);

void device_stats(const struct device *d, struct device_stats *s);
void device_set_trace(struct device *d, device_trace *fn, void *arg);

#endif
