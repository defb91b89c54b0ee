/* A GPU device's insides on the host, shared by its files: memory, the step and what device.h promises (dev_gpu.c), weights
 * (gpu_load.c), a step's rows as input words (gpu_inputs.c), the plan as launches (gpu_lower.c). What differs from chip to chip is behind
 * struct gpu_backend (dev_gpu.h). */
#ifndef PS_GPU_HOST_H
#define PS_GPU_HOST_H

#include "base/pool.h"
#include "device/dev_gpu.h"
#include "gpu/layout.h"

struct gpu_weight {
    struct gpu_ref at;      /* matrices: panels of gpu/layout.h, one matrix after another; a vector: floats */
    u64 mat_bytes, bytes;
    u32 piece;              /* it lies in */
};

/* A named buffer: row r, rank k is row r * ranks + k. */
struct gpu_buf {
    struct gpu_ref x, act;  /* float rows; act rows where a product reads it in quantised form */
    u32 ranks, stride;      /* floats between rows. Act rows lie GPU_ACT_BYTES of the width in use apart */
};

/* All that the launches of a step depend on: steps of one class share a setup. Rows and logits are the most rows of their tables, one
 * of a few numbers (gpu_inputs.c). No padding: compared as bytes. */
struct gpu_class {
    u32 rows, logits;       /* logits 0: no row wants any, the last operations have no launches */
    u8 keep;                /* some rows want none: the last operations work on table 1 */
    u8 plain;               /* nothing fused: every operation of the plan by launches of its own */
    u8 apart;               /* attention's launch may store besides (gpu_inputs.c) */
    u8 items[2], join[2], tiles[2]; /* of the tables: any rows by k_attend, of several chunks, by k_prompt */
    u8 none[3];
};
_Static_assert(sizeof(struct gpu_class) == 20, "no padding");

/* Where the inputs' parts are, in words: the same for all steps of a class. */
struct gpu_offsets {
    u32 rows[2], tiles[2], items[2];
};

struct gpu_list { /* launches, and the index of the plan's operation that each belongs to */
    struct gpu_launch *at;
    u32 *op;
    u32 n, cap;
};

enum { GPU_APART = 128 /* rows that are looked at for it */ };
enum { GPU_PIECES = 32 /* of weights: one, or as many as the largest buffer asks for */ };

enum {
    GPU_SETUPS = 24,
    GPU_OP_LAUNCHES = 4, /* the most of one operation */
    GPU_REGIONS = 63     /* of the scratch: a bit each, and one for the arena (gpu_order.c) */
};

struct gpu_setup { /* kept from step to step; the one used longest ago makes room */
    struct gpu_class key;
    void *program;          /* NULL: empty */
    u64 used;               /* step in which it was used last */
};

struct gpu {
    struct device dev;
    const struct gpu_backend *backend;
    void *self;             /* the backend's */
    struct gpu_info info;
    struct pool *pool;      /* packs weights */

    struct gpu_weight *weights; /* [plan.n_weights] */
    u64 weight_bytes, piece_bytes[GPU_PIECES]; /* of all; of each piece */
    u32 n_pieces;
    struct gpu_buf bufs[BUF_COUNT];
    struct gpu_buf kept_x, kept_q; /* table 1's rows of x and q */
    struct gpu_buf exp_up;  /* up products of chosen experts with float weights */
    struct gpu_ref inputs, rope, arena, lists, route_parts, parts, hits, picks, pick_keys;
    u64 regions[GPU_REGIONS]; /* where the scratch's parts begin, rising: what one launch writes another may read */
    u32 n_regions;
    u32 ids_at, w_at, pairs_at, tiles_at; /* words of the route lists */
    u32 head_bytes;         /* one head's keys, or values, of a slot's layer */
    u64 layer_bytes, slot_bytes, arena_bytes, rope_bytes, scratch_bytes;
    u32 chunks, max_items;  /* chunks of a whole context; items that the parts have room for */

    /* of the step in progress */
    const struct row *rows;
    u32 n_rows, n_logits, n_words;
    u32 *logit_rows;        /* [max_logits] index of the row */
    struct gpu_class class;
    u32 *words;             /* the inputs */
    u32 *items[2], *tiles[2]; /* as they are cut, before their place in the inputs is known */
    u32 *out;               /* what comes back: different experts of each layer's routes, then picks of the rows that wanted logits */
    u32 hits_words;         /* of out, before the picks */
    float *logits;          /* (max_logits, n_vocab): rows that were asked for */
    u64 *logits_step;       /* [max_logits] the step that row i of logits is of */
    float *traced;          /* one buffer's rows, grown on demand */
    u64 traced_bytes;

    struct gpu_list list;
    struct gpu_setup setups[GPU_SETUPS];
};

static inline struct gpu_ref gpu_at(struct gpu_ref r, u64 bytes)
{
    return (struct gpu_ref){r.base, r.offset + bytes};
}

/* The step's rows of an operation: on table 1 after OP_KEEP, unless all rows want logits. */
static inline u32 gpu_table(const struct gpu_class *c, const struct plan_op *op)
{
    return op->last && c->keep;
}

/* Bytes of out in the step in progress. */
static inline u64 gpu_out_bytes(const struct gpu *g)
{
    return (g->hits_words + (u64)g->n_logits * PICK_WORDS) * sizeof *g->out;
}

/* gpu_inputs.c: rows, n_rows, n_logits and logit_rows are set; fills words, n_words and class. */
void gpu_fill_inputs(struct gpu *g);
struct gpu_offsets gpu_offsets(const struct gpu *g, const struct gpu_class *c);
u32 gpu_inputs_words(const struct gpu *g); /* the most a step has */
u32 gpu_attend_groups(const struct gpu *g, const struct gpu_class *c, u32 table); /* of k_attend's launches */

/* gpu_lower.c: the launches of a class, in order, into g->list. -1 with err when the model has a form that no kernel takes. */
int gpu_lower(struct gpu *g, const struct gpu_class *c, struct err *err);
struct gpu_buf gpu_buf_of(const struct gpu *g, const struct gpu_class *c, const struct plan_op *op, enum plan_buf b);
const char *gpu_kernel_name(enum gpu_kernel kernel);

/* gpu_load.c: sizes and places of all weights in pieces of memory, each weight whole in one; then their contents. bases: the pieces'. */
/* gpu_order.c: `barrier` of each launch of g->list, which lies in memory as gpu_lay_out has it; gpu_lower calls it. */
void gpu_order(struct gpu *g);
const char *gpu_access(enum gpu_kernel kernel); /* GPU_ACCESS' letters */
u64 gpu_region(const struct gpu *g, struct gpu_ref r); /* a bit for the part of memory that holds r; 0: weights, which no launch writes */

int gpu_place_weights(struct gpu *g, struct err *err);
int gpu_load(struct gpu *g, const u64 *bases, struct err *err);

/* gpu_trace.c: the step whose inputs are filled, operation by operation, each told to dev.trace. */
int gpu_trace_step(struct gpu *g, struct err *err);

/* dev_gpu.c: a device on a backend. ops: its table. */
void gpu_lay_out(struct gpu *g, u32 n_ctx, u64 base); /* sizes for this context; the scratch's places from base on (0: counting) */
int gpu_device_open(struct device **out, const struct device_ops *ops, const struct gpu_backend *backend, const struct plan *p,
                    const struct device_opts *opts, struct err *err);

#endif
