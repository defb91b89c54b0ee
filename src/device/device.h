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
    u32 few_rows;        /* tests of the emulated GPU: up to so many rows the kernels of gpu/k_few.h; 0: as many as is best, DEVICE_NO_FEW: none */
    void (*tell)(void *arg, const char *what, u64 done, u64 total); /* progress of loading, or NULL */
    void *tell_arg;
};

enum { DEVICE_NO_FEW = 0x7FFFFFFF };

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
    u32 n_threads;       /* of the host that the device works with; 0: none of its own */
    const char *name, *isa; /* isa: of a GPU the chip's name */
    double peak_gb_s;    /* what its memory gives at most; 0: not known */
    const char *warning; /* NULL, or one line: by the self-test results are not the promised bits */
    const char *broken;  /* NULL, or one line: it failed and stays so. Both live as long as the device */
};

/* The head of a row of logits, made by the device so that the row itself can stay there. Words: [0] 1 when every logit of
 * the row is finite, [1] tokens listed: DEVICE_PICKS, or all there are, then for each its id and its logit's bits, by
 * (logit down, id up); -0 equals +0. */
enum { DEVICE_PICKS = 64, DEVICE_PICK_WORDS = 2 + 2 * DEVICE_PICKS };

struct device;

/* ---- before one is open: of the device of that name (NULL: the default). Any thread. -1 with err: there is none ---- */

/* Free bytes of a device with memory of its own; 0: it takes the host's. */
int device_memory(const char *name, u64 *free_bytes, struct err *err);

/* What would let that device have `need` bytes where they do not fit now: text gets "" or a sentence to go behind a refusal, from its "; " on. True
 * where its memory is one with the host's, so that other processes' counts. */
bool device_advise(const char *name, u64 need, char *text, size_t n);

/* Prompt rows that fill a step well. */
int device_chunk(const char *name, u32 *rows, struct err *err);

/* ---- an open one ---- */

/* Called after each operation of a step with a hash of each row's output: for verify. */
typedef void device_trace(void *arg, const struct plan_op *op, u32 row, u64 hash);

/* p and the file it points into must outlive the device. Refuses non-finite weights, naming the tensor. */
int device_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err);
void device_close(struct device *d);

/* One step: one submission, one wait. rows: n_rows <= max_rows, of which at most max_logits want logits; a slot's rows
 * come in position order, each at a position the slot has reached. Keys and values of the rows are stored. A
 * failure leaves the slots' contents at the rows' positions undefined. A broken device fails every step with its line. */
int device_step(struct device *d, const struct row *rows, u32 n_rows, struct err *err);

/* Copies the keys and values of positions [0, n) from one slot to another: how a stream starts from a prefix that
 * another slot holds. Not a submission; n <= n_ctx. */
void device_copy(struct device *d, u32 from, u32 to, u32 n);

/* Logits of the i-th row that wanted them: (n_vocab), valid until the next step; a device with memory of its own fetches
 * them now. NULL: it broke meanwhile. */
const float *device_logits(const struct device *d, u32 i);

/* Their head: DEVICE_PICK_WORDS words, valid until the next step; NULL: this device makes none. */
const u32 *device_picks(const struct device *d, u32 i);

/* Runs fn(arg, i, thread) once for each i < n on the threads the device has on the host, between two steps, and returns
 * when all are done: the engine's own work over rows. Which thread takes which i is not settled. A device without such
 * threads runs them on the caller's. */
void device_each(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg);

void device_stats(const struct device *d, struct device_stats *s);

/* What a device says of itself once it knows: nothing it does will succeed any more (later steps fail at once with this
 * line, copies do nothing), or its results are not the promised bits although it works. The first line stays. For
 * backends, and for tests. */
void device_break(struct device *d, const char *why);
void device_warn(struct device *d, const char *what);

void device_set_trace(struct device *d, device_trace *fn, void *arg);

#endif
