/* The CPU device's insides, shared by its files: memory and the step (dev_cpu.c), weights (cpu_load.c), the operations
 * (cpu_ops.c) and those that touch keys and values (cpu_attend.c). */
#ifndef PS_DEV_CPU_H
#define PS_DEV_CPU_H

#include "base/pool.h"
#include "device/device_impl.h"
#include "kernel/kernel.h"

#include <string.h>

enum { ATTEND_QUERIES = 8 /* query heads that attend together */ };

struct cpu_weight {
    u8 *panels;       /* n_mats matrices of mat_bytes each (pack.h), or NULL for a vector */
    float *floats;    /* a vector's elements, padded to 16 */
    u64 mat_bytes, bytes;
    u32 n_panels;
};

/* A named buffer's rows: row r, rank k is entry r * ranks + k of the arrays below. */
struct cpu_buf {
    float **y;              /* writable view of each row */
    struct act *act;        /* the same rows as input of products */
    const struct act **in;  /* pointers to act, in row order: what kernels take */
    u32 ranks, stride;      /* floats between rows: width rounded up to 16 */
};

/* What a step needs to know of one operation that is the same from step to step: its weights, found by name, and where
 * its work is cut for a number of rows. */
struct cpu_cut {
    const struct cpu_weight *w[PLAN_MAX_MATS], *bias[PLAN_MAX_MATS], *norm[2]; /* NULL where there is none */
    u32 chunk;        /* panels in a task */
    u32 n_tasks;      /* 0: decided in the step (experts) */
    u32 first[PLAN_MAX_MATS + 1]; /* first task of each matrix; experts: first[1] = tasks of a group */
};

/* The cuts of all operations for one geometry: so many rows, so many of them with logits. A few are kept, the one used
 * longest ago makes room. */
enum { CPU_SETUPS = 16 };
struct cpu_setup {
    u32 rows, logits; /* rows 0: empty */
    u64 used;         /* step in which it was used last */
    struct cpu_cut *cuts; /* [plan.n_ops] */
};

struct cpu_group { /* the rows of one expert (or one row, --experts=per-row) */
    u32 expert, begin, end; /* a range of pairs */
};

struct cpu {
    struct device dev;
    const struct kernels *k;
    struct pool *pool;
    struct cpu_weight *weights;  /* [plan.n_weights] */
    struct cpu_buf bufs[BUF_COUNT];
    float *exp_up;               /* the up products of the chosen experts, shaped as BUF_EXP_ACT */
    float **exp_up_rows;
    u8 *arena;                   /* slots x layers x (keys, values); see cpu_k and cpu_v */
    u64 arena_bytes, slot_bytes, layer_bytes, head_bytes; /* head: one head's keys, or values, of one layer */
    u32 panel_bytes;             /* of one head's keys of 32 positions; its values take as much */
    float *rope;                 /* (n_ctx, d_rope/2, 2) */
    u64 rope_bytes;
    void *scratch;
    u64 scratch_bytes;

    /* of the step in progress */
    const struct row *rows;
    u32 n_rows, n_logits;
    u32 *logit_rows;             /* [n_logits] index of the row */
    const struct plan_op *op;
    const struct cpu_cut *cut;
    u16 *route_ids;              /* (rows, n_used) */
    float *route_w;
    u32 *pairs;                  /* rows * n_used entries r * n_used + rank, sorted by expert, stable */
    struct cpu_group *groups;
    u32 n_groups;
    u32 *counts;                 /* [n_experts + 1] */
    const struct act **pair_in;  /* the pairs' inputs and outputs, in that order */
    float **pair_y, **pair_up;
    float *att_parts;            /* per thread: one chunk's o of ATTEND_QUERIES queries */

    struct cpu_setup setups[CPU_SETUPS];
    u32 *by_name;                /* weights' indices in order of their names */
};

/* Order of tensor names, as memcmp has it. */
static inline int cpu_name_order(const struct gguf_str *a, const struct gguf_str *b)
{
    int c = memcmp(a->at, b->at, min_u64(a->len, b->len));
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* cpu_load.c: weights into panels. */
int cpu_load(struct cpu *c, struct err *err);
void cpu_unload(struct cpu *c);

/* cpu_ops.c, cpu_attend.c */
void cpu_prepare(struct cpu *c, struct cpu_setup *s); /* fills the cuts for n_rows, n_logits */
void cpu_run_op(struct cpu *c, const struct plan_op *op, const struct cpu_cut *cut);

/* cpu_attend.c: tasks of OP_ROPE_STORE (a row) and OP_ATTEND (a key/value head of cpu_attend_rows rows). */
void cpu_rope_store_task(void *cpu, u32 row, u32 thread);
void cpu_attend_task(void *cpu, u32 task, u32 thread);
u32 cpu_attend_rows(const struct hparams *hp);

/* Rule 1 over columns [c0, c1) of a row, multiples of 32, when the buffer is kept in quantised form too. */
void cpu_quantise_part(const struct cpu *c, enum plan_buf b, u32 row, u32 c0, u32 c1);

/* Rows an operation works on. */
static inline u32 cpu_op_rows(const struct cpu *c, const struct plan_op *op)
{
    return op->last ? c->n_logits : c->n_rows;
}

/* The step's row that stands at row r of an operation. */
static inline u32 cpu_row(const struct cpu *c, const struct plan_op *op, u32 r)
{
    return op->last ? c->logit_rows[r] : r;
}

/* Keys (panels of 32 positions) and values of one key/value head of a slot's layer, in the arena's type. */
static inline u8 *cpu_k(const struct cpu *c, u32 slot, u32 layer, u32 head)
{
    return c->arena + slot * c->slot_bytes + layer * c->layer_bytes + head * c->head_bytes;
}

static inline u8 *cpu_v(const struct cpu *c, u32 slot, u32 layer, u32 head)
{
    return cpu_k(c, slot, layer, c->dev.plan->hp.n_kv + head);
}

#endif
